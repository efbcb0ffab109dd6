"""Baselines of a run for the page: their means over heads and their mean profiles."""

from __future__ import annotations

from typing import Any

import pandas as pd

from attention_plasticity.page.estimates import head_means
from attention_plasticity.page.shown_plasticity import ShownCells
from attention_plasticity.page.type_means import type_means
from attention_plasticity.tables.baselines import BASELINES
from attention_plasticity.tables.finished_run import FinishedRun


def baseline_content(
    run: FinishedRun, at_one_position: bool
) -> tuple[list[dict[str, Any]], dict[str, pd.DataFrame]]:
    """The baselines of a run with their means, and their mean profiles.

    The profile of the baseline number `i` is the table `baseline_i`, and that of its layers of the
    type number `j` the table `baseline_i_mean_j`, as in `type_means`.
    """
    found: list[dict[str, Any]] = []
    tables: dict[str, pd.DataFrame] = {}
    for words, baseline in run.baselines.items():
        cells = ShownCells.of(baseline)
        if cells.at_one_position != at_one_position:
            continue
        profiles = cells.profiles(baseline)
        types, of_types = type_means(baseline, cells, profiles)
        name = f"baseline_{len(found)}"
        tables[name] = cells.mean(baseline, profiles)
        tables |= {f"{name}_{own}": table for own, table in of_types.items()}
        texts = baseline.texts
        found.append(
            {
                "words": words,
                "look": list(BASELINES.values()).index(words),  # of its line
                "texts": texts.get("count"),
                "types": types,
                "means": head_means(baseline),
            }
        )
    return found, tables
