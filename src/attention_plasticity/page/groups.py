"""Means and mean profiles of groups of heads: all heads, and those of each type of layers.

Baselines have the same groups, with means over their draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.metrics import HEAD_METRICS
from attention_plasticity.page.cells import ShownCells, mean_columns
from attention_plasticity.page.tables import Tables
from attention_plasticity.tables.baselines import BASELINES, Level, levels
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.layer_types import layers_by_type, type_words
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, main_plasticity
from attention_plasticity.tables.profiles import Profiles, over_draws, profiles_of
from qk_toolkit.formatting import index_ranges

Group = dict[str, Any]


def head_groups(
    run: FinishedRun, cells: ShownCells, tables: Tables
) -> tuple[list[Group], list[dict[str, Any]]]:
    """The groups of heads of a run, all heads first, and its baselines with the same groups.

    A group has the numbers, means, and the name of the table of its mean profile, which is added
    to `tables`.
    """
    parts = _parts(run)
    means = [levels(part, HEAD_METRICS.averaged) for _, _, part in parts]
    groups: list[Group] = []
    for place, (name, layers, part) in enumerate(parts):
        group = _group(part, name, layers, _means(means[place], ""), f"mean_{place}")
        own = cells.profiles
        if name is not None:
            own = own.of_layers(layers, part.eligible_heads)
        _add(tables, group, mean_columns(own))
        tables[f"spreads_{place}"] = _spreads(part.head_metrics)
        groups.append({**group, "spreads": f"spreads_{place}"})
    return groups, [
        _baseline(words, draws, parts, means, cells, tables)
        for words, draws in run.baselines.items()
        if (main_plasticity(*draws) is AT_ONE_POSITION) == cells.at_one_position
    ]


def _parts(run: FinishedRun) -> list[tuple[str | None, Sequence[int], FinishedRun]]:
    """All heads, then those of each type of layers: its name, its layers, and their run."""
    types = layers_by_type(run.layer_types)
    found: list[tuple[str | None, Sequence[int], FinishedRun]] = [(None, (), run)]
    for name, layers in types.items():
        found.append((name, layers, run if len(types) == 1 else run.select(layer_type=name)))
    return found


def _group(
    part: FinishedRun, name: str | None, layers: Sequence[int], means: Any, profile: str
) -> Group:
    return {
        "name": name,
        "words": "" if name is None else type_words(name),
        "layers": "" if name is None else index_ranges(layers),
        "heads": len(part.head_metrics),
        "eligible_heads": part.eligible_heads,
        "means": means,
        "profile": profile,
    }


def _spreads(heads: pd.DataFrame) -> dict[str, Any]:
    """Number, mean, quartiles and range of the heads with a value, a row per column."""
    rows = []
    for name in map(str, heads.select_dtypes("number")):
        values = heads[name].to_numpy(np.float64)
        if len(known := values[np.isfinite(values)]):
            ends = np.quantile(known, [0.0, 0.25, 0.75, 1.0]).tolist()
            rows.append((name, len(known), float(known.mean()), *ends))
    names = ["metric", "count", "mean", "low", "q1", "q3", "high"]
    found = pd.DataFrame(rows, columns=names).astype({"metric": object})
    return {name: found[name].to_numpy() for name in names}


def _baseline(
    words: str,
    draws: Sequence[FinishedRun],
    parts: Sequence[tuple[str | None, Sequence[int], FinishedRun]],
    means: Sequence[Mapping[str, Mapping[str, Level]]],
    cells: ShownCells,
    tables: Tables,
) -> dict[str, Any]:
    """The groups of a baseline; `look` is that of its line."""
    look = list(BASELINES.values()).index(words)
    drawn = [found for draw in draws if (found := profiles_of(draw, cells.shown.level))]
    groups: list[Group] = []
    for (name, layers, part), known in zip(parts, means, strict=True):
        group = _group(part, name, layers, _means(known, words), f"baseline_{look}_{len(groups)}")
        own = drawn
        if name is not None:
            own = [one.of_layers(layers, part.eligible_heads) for one in drawn]
        _add(tables, group, _over_draws([one.known for one in own]))
        groups.append(group)
    texts = draws[0].texts.get("count")
    return {"words": words, "look": look, "texts": texts, "draws": len(draws), "groups": groups}


def _over_draws(draws: Sequence[Profiles]) -> dict[str, Any]:
    """The mean profile over draws with a value."""
    known = [draw for draw in draws if len(draw.buckets)]
    if not known:
        return {}
    found = over_draws(known)
    values = {"plasticity": np.array([one.value for one in found])}
    half = np.array([one.half for one in found])
    return {**mean_columns(known[0]), **values, **({"half_width": half} if len(half) else {})}


def _add(tables: Tables, group: Group, columns: dict[str, Any]) -> None:
    if columns:
        tables[group["profile"]] = columns


def _means(known: Mapping[str, Mapping[str, Level]], name: str) -> dict[str, list[float | None]]:
    """Mean over heads and half of its 95 % interval, None if that is not known."""
    found = {column: level[name] for column, level in known.items() if name in level}
    return {
        column: [level.value, level.half if math.isfinite(level.half) else None]
        for column, level in found.items()
    }
