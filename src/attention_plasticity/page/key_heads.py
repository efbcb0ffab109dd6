"""The table of key heads on the page, as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attention_plasticity.export.budget import kept_at
from attention_plasticity.export.order import ordered_heads
from attention_plasticity.export.settings import DEFAULT_ORDER
from attention_plasticity.metrics import KEY_HEADS
from attention_plasticity.page.ordered import ordered
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import half_width
from qk_toolkit.errors import ToolkitError

_METRICS = {metric.column: metric for metric in KEY_HEADS.columns}
_SHOWN = {
    "aligned_plasticity": "plasticity at one position",
    "plasticity": "over all positions",
    "static_error": "static error",
    "static_error_heads": "query heads alone",
    "attended_static_error": "attended pairs",
    "far_mass": "far attention",
    "received_gini": "Gini of attention",
    "received_half": "keys with half",
}
_KEPT = [
    "kept at 50\u00a0%",
    "share of its keys that the head keeps if half of all keys are pruned by its plasticity at one "
    "position (export --to kvpress-budget)",
]


def key_head_rows(run: FinishedRun) -> dict[str, Any] | None:
    """Headings with their meanings, and a row of texts per key head; None without the table.

    A row begins with the numbers of layer, key head and query heads. Columns without a value are
    left out.
    """
    if not run.has("key_heads"):
        return None
    table = ordered(run.table("key_heads"), ["layer", "k_head"], run.path("key_heads"))
    shown = [name for name in _SHOWN if table[name].notna().any()]
    ids = ["layer", "k_head", "n_q_heads"]
    headings, kept = [[_SHOWN[name], _METRICS[name].meaning] for name in shown], _kept(run)
    if kept:
        headings.insert(0, _KEPT)
    rows = [
        [
            *(int(row[name]) for name in ids),
            *([kept[int(row["layer"]), int(row["k_head"])]] if kept else []),
            *(_text(name, row) for name in shown),
        ]
        for row in table.to_dict("records")
    ]
    return {"headings": headings, "rows": rows}


def _kept(run: FinishedRun) -> dict[tuple[int, int], str]:
    """The share that each key head keeps of its keys; empty if the run lacks heads or values."""
    try:
        heads = ordered_heads(replace(run, layers=None), DEFAULT_ORDER)
    except ToolkitError:
        return {}
    shares = zip(heads.layer, heads.k_head, kept_at(heads, 50), heads.counted, strict=True)
    return {
        (int(layer), int(head)): f"{100 * share:.0f} %" if counted else "all"
        for layer, head, share, counted in shares
    }


def _text(name: str, row: Mapping[Any, Any]) -> str:
    """`0.181 ± 0.008` with half of the 95 % interval, or a dash."""
    half = float(half_width(row[f"{name}_se"], row["n_groups"]))
    return _METRICS[name].show_half(row[name], half)
