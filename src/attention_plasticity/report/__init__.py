"""The interactive page: one HTML file that shows runs, opens offline and fetches nothing."""

from attention_plasticity.report.report import Report, make_report, require_target

__all__ = ["Report", "make_report", "require_target"]
