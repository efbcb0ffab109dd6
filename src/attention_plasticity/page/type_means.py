"""Means of the heads of each type of layer, for the page."""

from __future__ import annotations

from typing import Any

import pandas as pd

from attention_plasticity.page.estimates import head_means
from attention_plasticity.page.shown_plasticity import ShownCells
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.layer_types import layers_by_type, type_words
from qk_toolkit.formatting import index_ranges


def type_means(
    run: FinishedRun, cells: ShownCells, profiles: pd.DataFrame
) -> tuple[list[dict[str, Any]], dict[str, pd.DataFrame]]:
    """The types of the layers with their means, and a mean profile of every type.

    The profile of the type number `i` is the table `mean_i`. If all layers have one type, its means
    are those of the run, and there are no tables.
    """
    groups = layers_by_type(run.layer_types)
    several = len(groups) > 1
    types: list[dict[str, Any]] = []
    tables: dict[str, pd.DataFrame] = {}
    for number, (name, layers) in enumerate(groups.items()):
        part = run.select(layer_type=name) if several else run
        types.append(
            {
                "name": name,
                "words": type_words(name),
                "layers": index_ranges(layers),
                "heads": len(part.head_metrics),
                "eligible_heads": part.eligible_heads,
                "means": head_means(part) if several else {},
            }
        )
        of_type = profiles[profiles["layer"].isin(layers)]
        if several and not of_type.empty:
            tables[f"mean_{number}"] = cells.mean(part, of_type)
    return types, tables
