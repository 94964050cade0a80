"""Reports: a page for each run, and our results beside the published ones. Reads records, knows no model."""

from longscan.report.run import run_report as run_report

__all__ = ["run_report"]
