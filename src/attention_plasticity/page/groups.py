"""Means and mean profiles of groups of heads: all heads, and those of each type of layers.

Baselines have the same groups, with means over their draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.metrics import HEAD_METRICS
from attention_plasticity.page.cells import ShownCells
from attention_plasticity.page.tables import Columns, Tables, columns_of
from attention_plasticity.tables.baselines import BASELINES, mean_of_draws
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import groups_of, mean_half_width, mean_over_heads
from attention_plasticity.tables.layer_types import layers_by_type, type_words
from qk_toolkit.arrays import Array
from qk_toolkit.formatting import index_ranges

Group = dict[str, Any]


def head_groups(
    run: FinishedRun, cells: ShownCells, profiles: pd.DataFrame, tables: Tables
) -> list[dict[str, Any]]:
    """All heads, then those of each type of layers: numbers, means, and a mean profile.

    `profile` names the table of the mean profile, which is added to `tables`.
    """
    types = layers_by_type(run.layer_types)
    found: list[dict[str, Any]] = []
    for name, layers in [(None, None), *types.items()]:
        part = run if name is None or len(types) == 1 else run.select(layer_type=name)
        of_part = profiles if layers is None else profiles[profiles["layer"].isin(layers)]
        profile = f"mean_{len(found)}"
        if not of_part.empty:
            tables[profile] = columns_of(cells.mean(part, of_part))
        found.append(
            {
                "name": name,
                "words": "" if name is None else type_words(name),
                "layers": "" if layers is None else index_ranges(layers),
                "heads": len(part.head_metrics),
                "eligible_heads": part.eligible_heads,
                "means": _head_means(part),
                "profile": profile,
            }
        )
    return found


def _head_means(run: FinishedRun) -> dict[str, list[float]]:
    """Mean over heads and half of its 95 % interval; without means whose interval is not known."""
    names = [name for name in HEAD_METRICS.averaged if name in run.head_metrics]
    means = {name: mean_over_heads(run, name) for name in names}
    numbers = {name: [mean.value, mean_half_width(mean)] for name, mean in means.items()}
    return {name: pair for name, pair in numbers.items() if all(map(math.isfinite, pair))}


def baselines(run: FinishedRun, at_one_position: bool, tables: Tables) -> list[dict[str, Any]]:
    """The baselines of a run that show the same kind of plasticity; `look` is that of a line."""
    found: list[dict[str, Any]] = []
    for words, draws in run.baselines.items():
        cells = [ShownCells.of(draw) for draw in draws]
        if any(one.at_one_position != at_one_position for one in cells):
            continue
        of_texts = np.array([groups_of(draw) for draw in draws])
        own: list[Tables] = [{} for _ in draws]
        groups = [
            head_groups(draw, one, one.profiles(draw), into)
            for draw, one, into in zip(draws, cells, own, strict=True)
        ]
        for group in groups[0]:
            name = group["profile"]
            group["profile"] = f"baseline_{len(found)}_{name}"
            with_bins = [number for number, into in enumerate(own) if name in into]
            if with_bins:
                shown = [own[number][name] for number in with_bins]
                tables[group["profile"]] = _mean_profile(shown, of_texts[with_bins])
        for number, group in enumerate(groups[0]):
            group["means"] = _means([parts[number]["means"] for parts in groups], of_texts)
        found.append(
            {
                "words": words,
                "look": list(BASELINES.values()).index(words),
                "texts": draws[0].texts.get("count"),
                "draws": len(draws),
                "groups": groups[0],
            }
        )
    return found


def _means(draws: Sequence[dict[str, list[float]]], groups: Array) -> dict[str, list[float]]:
    """Means and half widths over draws; those that every draw has."""
    names = [name for name in draws[0] if all(name in one for one in draws)]
    if not names:
        return {}
    numbers = np.array([[one[name] for name in names] for one in draws])  # (draws, names, 2)
    wide = np.broadcast_to(groups[:, None], numbers.shape[:2])
    value, half = mean_of_draws(numbers[..., 0], numbers[..., 1], wide)
    return {name: [*map(float, pair)] for name, *pair in zip(names, value, half, strict=True)}


def _mean_profile(draws: Sequence[Columns], groups: Array) -> Columns:
    """The mean profile over draws. A draw without some of the bins is left out."""
    first = draws[0]
    size = len(first["q_bucket"])
    kept = [number for number, one in enumerate(draws) if len(one["q_bucket"]) == size]
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
    return {**first, "plasticity": value, **errors}
