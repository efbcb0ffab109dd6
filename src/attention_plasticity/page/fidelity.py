"""Scores that rank keys without a query on the page, as text."""

from __future__ import annotations

from typing import Any

from attention_plasticity.metrics import FIDELITY
from attention_plasticity.page.ordered import ordered
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.names import FIDELITY_CAUTION, SCORE_WORDS
from qk_toolkit.formatting import count

_HEADINGS = {"spearman": "Spearman", "kept_50": "50 %", "kept_25": "25 %", "kept_10": "10 %"}
_MEANINGS = {metric.column: metric.meaning for metric in FIDELITY.columns}


def fidelity_content(run: FinishedRun) -> dict[str, Any] | None:
    """Headings, scores, means over key heads, and values of every key head; None without them.

    `means` has a list of texts per score. `heads` has such lists by `layer.key head`.
    """
    if not run.has("fidelity"):
        return None
    keys = ["layer", "k_head", "score", "value_norm"]
    table = ordered(run.table("fidelity"), keys, run.path("fidelity"))
    kinds = set(zip(table["score"], table["value_norm"].astype(int), strict=True))
    scores = [(name, kind) for name in SCORE_WORDS for kind in (0, 1) if (name, kind) in kinds]
    values: dict[tuple[int, int], dict[tuple[str, int], list[str]]] = {}
    for row in table.to_dict("records"):
        texts = [_text(row[name], row[f"{name}_se"], row["n_groups"]) for name in _HEADINGS]
        head = values.setdefault((row["layer"], row["k_head"]), {})
        head[row["score"], int(row["value_norm"])] = texts
    unknown = ["–"] * len(_HEADINGS)
    return {
        "caution": FIDELITY_CAUTION,
        "of": f"mean over {count(len(values), 'key head')}",
        "headings": [[heading, _MEANINGS[name]] for name, heading in _HEADINGS.items()],
        "scores": [
            {"id": f"{name}.{kind}", "label": score_label(name, kind)} for name, kind in scores
        ],
        "means": [_mean_texts(run, score) for score in scores],
        "heads": {
            f"{layer}.{head}": [own.get(score, unknown) for score in scores]
            for (layer, head), own in values.items()
        },
    }


def score_label(name: str, value_norm: int) -> str:
    """`exact rotation × ‖v‖`."""
    return f"{SCORE_WORDS[name]} × ‖v‖" if value_norm else SCORE_WORDS[name]


def _mean_texts(run: FinishedRun, score: tuple[str, int]) -> list[str]:
    means = run.fidelity_means.get(score, {})
    return [_text(*means[name]) if name in means else "–" for name in _HEADINGS]


def _text(value: float, error: float, groups: float) -> str:
    """`0.812 ± 0.009` with half of the 95 % interval, or a dash."""
    return FIDELITY.by_name["kept_50"].show_half(value, float(half_width(error, groups)))
