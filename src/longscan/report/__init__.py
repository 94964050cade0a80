"""Reports: a page for each run, and our results beside the published ones. Reads records, knows no model."""

from longscan.report.records import append_record as append_record
from longscan.report.records import read_records as read_records
from longscan.report.results import fill_markdown as fill_markdown
from longscan.report.results import results_markdown as results_markdown
from longscan.report.results import results_report as results_report
from longscan.report.run import run_report as run_report

__all__ = ["append_record", "fill_markdown", "read_records", "results_markdown", "results_report", "run_report"]
