"""Means over key heads of the fidelity of every score, for run.json."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attention_plasticity.metrics import FIDELITY
from attention_plasticity.tables.head_means import mean_estimate
from attention_plasticity.tables.names import SCORE_WORDS


def fidelity_means(contents: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over key heads, in the order of the table; None where a value is not known.

    `contents` are those of `measure.fidelity`. The errors of all key heads come from the same
    texts, so their influences are averaged.
    """
    rows: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for content in contents:
        for row in content["rows"]:
            rows.setdefault((row["score"], row["value_norm"]), []).append(row)
    order = list(SCORE_WORDS)
    return [
        {
            "score": score,
            "value_norm": times,
            **{number: _mean(rows[score, times], number) for number in FIDELITY.with_error},
        }
        for score, times in sorted(rows, key=lambda name: (order.index(name[0]), name[1]))
    ]


def _mean(rows: Sequence[Mapping[str, Any]], number: str) -> dict[str, float | None]:
    values, influences, groups = zip(*(row[number] for row in rows), strict=True)
    mean = mean_estimate(values, influences, groups)
    return {
        "value": _known(mean.value),
        "standard_error": _known(mean.standard_error),
        "key_heads": mean.heads,
        "groups": mean.groups or None,
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
