"""Baselines of a run for the page: their means over heads and over draws, and mean profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.page.estimates import head_means
from attention_plasticity.page.shown_plasticity import ShownCells
from attention_plasticity.page.type_means import type_means
from attention_plasticity.tables.baselines import BASELINES, Array, mean_of_draws
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import groups_of


def baseline_content(
    run: FinishedRun, at_one_position: bool
) -> tuple[list[dict[str, Any]], dict[str, pd.DataFrame]]:
    """The baselines of a run with their means, and their mean profiles.

    The profile of the baseline number `i` is the table `baseline_i`, and that of its layers of the
    type number `j` the table `baseline_i_mean_j`, as in `type_means`.
    """
    found: list[dict[str, Any]] = []
    tables: dict[str, pd.DataFrame] = {}
    for words, draws in run.baseline_draws.items():
        shown = [ShownCells.of(draw) for draw in draws]
        if any(cells.at_one_position != at_one_position for cells in shown):
            continue
        name, groups = f"baseline_{len(found)}", np.array([groups_of(draw) for draw in draws])
        parts = [_draw(draw, cells) for draw, cells in zip(draws, shown, strict=True)]
        for own in parts[0][2]:
            tables[f"{name}{own}"] = _mean_profile([part[2][own] for part in parts], groups)
        types = [
            {**first, "means": _means([part[1][number]["means"] for part in parts], groups)}
            for number, first in enumerate(parts[0][1])
        ]
        found.append(
            {
                "words": words,
                "look": list(BASELINES.values()).index(words),  # of its line
                "texts": draws[0].texts.get("count"),
                "draws": len(draws),
                "types": types,
                "means": _means([part[0] for part in parts], groups),
            }
        )
    return found, tables


def _draw(
    draw: FinishedRun, cells: ShownCells
) -> tuple[dict[str, list[float]], list[dict[str, Any]], dict[str, pd.DataFrame]]:
    """The means of a draw, those of its types of layers, and the mean profiles of both."""
    profiles = cells.profiles(draw)
    types, of_types = type_means(draw, cells, profiles)
    tables = {"": cells.mean(draw, profiles)}
    return head_means(draw), types, tables | {f"_{own}": one for own, one in of_types.items()}


def _means(draws: Sequence[dict[str, list[float]]], groups: Array) -> dict[str, list[float]]:
    """Means and half widths over draws; those that every draw has."""
    names = [name for name in draws[0] if all(name in one for one in draws)]
    if not names:
        return {}
    numbers = np.array([[one[name] for name in names] for one in draws])  # (draws, names, 2)
    wide = np.broadcast_to(groups[:, None], numbers.shape[:2])
    value, half = mean_of_draws(numbers[..., 0], numbers[..., 1], wide)
    return {name: [*map(float, pair)] for name, *pair in zip(names, value, half, strict=True)}


def _mean_profile(draws: Sequence[pd.DataFrame], groups: Array) -> pd.DataFrame:
    """The mean profile over draws. A draw without some of the bins is left out."""
    first = draws[0]
    kept = [number for number, one in enumerate(draws) if len(one) == len(first)]
    if len(kept) == 1:
        return first
    values = np.stack([draws[number]["plasticity"] for number in kept])  # (draws, bins)
    if "half_width" in first:
        half = np.stack([draws[number]["half_width"] for number in kept])
    else:
        half = np.full(values.shape, np.nan)
    wide = np.broadcast_to(groups[kept, None], values.shape)
    value, reach = mean_of_draws(values, half, wide)
    errors = {"half_width": reach} if "half_width" in first else {}
    return first.assign(plasticity=value, **errors)
