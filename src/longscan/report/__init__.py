"""Reports: a page for each run, and a page that compares our results with published ones. Reads records, independent of models.

The modules of pages need jinja2, which is imported at the first access to a name here.
"""

from typing import TYPE_CHECKING

from longscan._lazy import lazy

if TYPE_CHECKING:
    from longscan.report.records import append_record as append_record
    from longscan.report.records import read_records as read_records
    from longscan.report.results import fill_markdown as fill_markdown
    from longscan.report.results import quick_markdown as quick_markdown
    from longscan.report.results import results_markdown as results_markdown
    from longscan.report.results import results_report as results_report
    from longscan.report.run import run_report as run_report
    from longscan.report.sweep import sweep_report as sweep_report

__all__ = [
    "append_record",
    "fill_markdown",
    "quick_markdown",
    "read_records",
    "results_markdown",
    "results_report",
    "run_report",
    "sweep_report",
]

__getattr__ = lazy(
    __name__,
    {
        "append_record": "longscan.report.records",
        "read_records": "longscan.report.records",
        "fill_markdown": "longscan.report.results",
        "quick_markdown": "longscan.report.results",
        "results_markdown": "longscan.report.results",
        "results_report": "longscan.report.results",
        "run_report": "longscan.report.run",
        "sweep_report": "longscan.report.sweep",
    },
)
