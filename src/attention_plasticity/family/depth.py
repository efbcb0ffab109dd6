"""Means over heads by relative depth: the layers of every model in equal parts of its depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.tables.intervals import mean_numbers, mean_of_heads
from qk_toolkit.formatting import index_ranges

DEPTH_PARTS = 10
DEPTH_COLUMNS = (
    *("run", "metric", "part", "depth_start", "depth_end"),
    *("mean", "standard_error", "low", "high", "degrees_of_freedom"),
    *("heads", "layers"),
)


def depth_table(
    runs: Sequence[ComparedRun], metrics: Sequence[str], parts: int = DEPTH_PARTS
) -> pd.DataFrame:
    """One row per run, metric and part of the depth that has a head with a value.

    The number of layers of a model comes from its layout; if that is not known, from the last
    layer of the table of heads.
    """
    rows: list[tuple[Any, ...]] = []
    for run in runs:
        heads = run.run.head_metrics
        layers = int(run.run.layout.get("num_layers") or heads["layer"].max() + 1)
        of_parts = [layers_of_part(part, parts, layers) for part in range(parts)]
        for metric in metrics:
            if metric not in heads:
                continue
            for part, chosen in enumerate(of_parts):
                own = heads[heads["layer"].isin(chosen)]
                mean = mean_of_heads(own, run.run.influences, metric)
                if not mean.heads:
                    continue
                numbers = mean_numbers(mean)
                listed = index_ranges(set(own["layer"].tolist()))
                where = (run.label, metric, part + 1, part / parts, (part + 1) / parts)
                counts = (mean.freedom, mean.heads, listed)
                rows.append((*where, *numbers, *counts))
    return pd.DataFrame(rows, columns=list(DEPTH_COLUMNS))


def layers_of_part(part: int, parts: int, layers: int) -> list[int]:
    """The layers whose middle is in a part of the depth: 0 to 2 for the first of 10 parts of 30.

    A model with fewer layers than parts has in each part the layer at the middle of the part. A
    middle at an edge belongs to the deeper part.
    """
    if layers < parts:
        return [(2 * part + 1) * layers // (2 * parts)]
    return [one for one in range(layers) if (2 * one + 1) * parts // (2 * layers) == part]
