"""Write the glossary of docs/plasticity.md: the main columns of `attention_plasticity.metrics`.

The part of the page between `<!-- glossary: begin -->` and `<!-- glossary: end -->` is replaced.
"""

from __future__ import annotations

from pathlib import Path

from attention_plasticity.metric import Metric
from attention_plasticity.metrics import TABLES

PAGE = Path(__file__).parents[1] / "docs" / "plasticity.md"
_BEGIN, _END = "<!-- glossary: begin -->", "<!-- glossary: end -->"
SHOWN = {
    "head_metrics": (
        *("ap_aligned", "ap_aligned_drop", "ap_aligned_drop_position", "ap_aligned_drop_distance"),
        *("ap_aligned_counted", "ap_pooled", "ap_phase", "ap_attended", "ap_overall"),
        *("q_mean_share", "attn_sink_mass", "attn_far_mass"),
    ),
    "roles": ("role",),
    "key_heads": ("aligned_plasticity", "static_error"),
}
"""Columns of the glossary, by their tables."""


def with_glossary(page: str) -> str:
    """The page with the glossary as it is now."""
    before, found, rest = page.partition(_BEGIN)
    _, closed, after = rest.partition(_END)
    if not (found and closed):
        raise ValueError(f"{PAGE}: has no part {_BEGIN} … {_END}")
    rows = [
        _row(table.by_name[name]) for kind, table in TABLES.items() for name in SHOWN.get(kind, ())
    ]
    lines = ["| term | column | meaning |", "|---|---|---|", *rows]
    return "\n".join([f"{before}{_BEGIN}", *lines, f"{_END}{after}"])


def _row(metric: Metric) -> str:
    meaning = metric.meaning.removeprefix(f"{metric.label}: ")
    note = f"; {metric.note}" if metric.note else ""
    return f"| {metric.label} | `{metric.column}` | {meaning}{note} |"


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_glossary(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
