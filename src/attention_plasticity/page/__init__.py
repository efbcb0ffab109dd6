"""The interactive page: one HTML file that works offline."""

from attention_plasticity.page.report import Report, make_report, require_target

__all__ = ["Report", "make_report", "require_target"]
