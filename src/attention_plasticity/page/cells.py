"""The plasticity that the page shows first: cells and profiles of heads, and groups of heads.

The groups are all heads, and those of each type of layers. Baselines have the same groups, with
means over their draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.metrics import ALIGNED, HEAD, HEAD_METRICS, NEAR, POOLED
from attention_plasticity.page.shown_columns import Columns, Tables, ordered
from attention_plasticity.tables.baselines import BASELINES, Level, levels
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.layer_types import layers_by_type, type_words
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    OVER_BUCKETS,
    PlasticityColumns,
    main_plasticity,
)
from attention_plasticity.tables.names import clean
from attention_plasticity.tables.profiles import Profiles, over_draws, profiles_of, shown_cells
from qk_toolkit.formatting import index_ranges

Group = dict[str, Any]

_CELL = (*HEAD, "q_bucket", "k_bucket", "plasticity", "pooled", "n_pairs")
_NOT_THERE = "the tables of this run do not have it"
_QUARTILES = (0.25, 0.75)


@dataclass(frozen=True)
class ShownCells:
    """Cells of bins, or of buckets if no head of the run has bins. `q_bucket` can be a bin."""

    table: pd.DataFrame
    shown: PlasticityColumns
    profiles: Profiles

    @classmethod
    def of(cls, run: FinishedRun) -> ShownCells:
        """The cells of the plasticity that a reader sees first."""
        cells, shown = shown_cells(run)
        path = run.path("bins" if shown is AT_ONE_POSITION else "bucket_plasticity")
        profiles = profiles_of(run, shown.level)
        assert profiles is not None
        return cls(ordered(cells, (*HEAD, "q_bucket", "k_bucket"), path), shown, profiles)

    @property
    def at_one_position(self) -> bool:
        """Whether the cells are bins."""
        return self.shown is AT_ONE_POSITION

    @property
    def columns(self) -> Columns:
        """The cells as the page stores them, with half widths of their 95 % intervals."""
        found = {name: self.table[name].to_numpy() for name in _CELL if name in self.table}
        if "plasticity_se" in self.table and np.isfinite(self.profiles.groups).any():
            groups = _at_cells(self.profiles, self.table)
            found["half_width"] = half_width(self.table["plasticity_se"], groups)
        return found

    def profile_columns(self, run: FinishedRun) -> Columns:
        """One row per head and bucket: plasticity, over the bin, and with near keys.

        Each has half widths if they are known.
        """
        profiles = self.profiles
        others = {name: profiles_of(run, name) for name in (POOLED, NEAR) * self.at_one_position}
        there = np.isfinite(profiles.position) | np.isfinite(profiles.texts)
        head, bucket = np.nonzero(there | np.isfinite(profiles.values))
        found = {
            "layer": np.array([layer for layer, _ in profiles.heads])[head],
            "q_head": np.array([number for _, number in profiles.heads])[head],
            "q_bucket": profiles.buckets[bucket],
        }
        for name, grid in (("q_position", profiles.position), ("n_texts", profiles.texts)):
            if np.isfinite(grid).any():
                found[name] = grid[head, bucket]
        named = {"plasticity": profiles, "pooled": others.get(POOLED), "near": others.get(NEAR)}
        for name, own in named.items():
            if own is None:
                continue
            found[name] = own.values[head, bucket]
            if np.isfinite(own.half).any():
                words = "half_width" if own is profiles else f"{name}_half_width"
                found[words] = own.half[head, bucket]
        return found

    def places(self, run: FinishedRun) -> tuple[pd.DataFrame, str]:
        """All buckets or bins with their positions, and the unit of these positions.

        If the geometry is known, they have a start and an end. Otherwise they have the mean
        position of their keys or queries, or their number.
        """
        cells = self.table
        seen = np.unique(np.concatenate([cells["k_bucket"], cells["q_bucket"]]))
        table = pd.DataFrame({"bucket": seen})
        if self.at_one_position:
            for edge in ("start", "end"):
                table[edge] = self._of_place(edge).reindex(seen).to_numpy(np.float64)
            return table, "tokens"
        if run.geometry is not None:
            table["start"] = run.geometry.starts(seen).astype(np.float64)
            table["end"] = run.geometry.ends(seen).astype(np.float64)
            return table, "tokens"
        if {"q_position", "k_position"} <= set(cells.columns):
            table["start"] = self._of_place("position").reindex(seen).to_numpy()
            return table, "tokens"
        table["start"] = seen.astype(np.float64)
        return table, "bucket"

    def _of_place(self, name: str) -> pd.Series[Any]:
        """A position of every bucket or bin: that of its keys, else that of its queries."""
        of_queries = self.table.groupby("q_bucket")[f"q_{name}"].mean()
        return self.table.groupby("k_bucket")[f"k_{name}"].mean().combine_first(of_queries)


def _at_cells(profiles: Profiles, cells: pd.DataFrame) -> Any:
    """(cells,) groups of texts behind the bin of queries of every cell."""
    heads = pd.MultiIndex.from_tuples(profiles.heads)
    head = heads.get_indexer(pd.MultiIndex.from_frame(cells[HEAD]))
    return profiles.groups[head, np.searchsorted(profiles.buckets, cells["q_bucket"])]


def mean_columns(profiles: Profiles) -> Columns:
    """The mean profile over heads, with quartiles; empty if no head has a value."""
    known = profiles.known
    if not len(known.buckets):
        return {}
    low, high = known.spread(_QUARTILES)
    found = {"q_bucket": known.buckets, "plasticity": known.mean, "low": low, "high": high}
    if np.isfinite(known.position).any():
        found["q_position"] = known.mean_position
    if np.isfinite(known.influences).any():
        found["half_width"] = known.mean_half
    return found


def kinds() -> dict[str, dict[str, Any]]:
    """The columns and words of both kinds of plasticity, for the page."""
    return {"position": asdict(AT_ONE_POSITION), "bucket": asdict(OVER_BUCKETS)}


def why_over_buckets(run: FinishedRun, cells: ShownCells) -> str | None:
    """Why RoPE-aligned plasticity is not shown, in words; None if it is shown."""
    if cells.at_one_position:
        return None
    missing = run.missing
    reasons = missing.loc[missing["column"] == ALIGNED, "reason"].unique()
    return "; ".join(clean(str(reason)) for reason in reasons) or _NOT_THERE


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
