"""RoPE-aligned plasticity and rotary phase by parts of the context.

A part is a range of positions, such as 0–8K. The value of a head in a part is the mean over the
bins of queries whose middle is in the part. All bins have the same number of positions, so this is
a mean over positions; its standard error follows from the influences of the bins. The means over
tokens of the table of heads are other means: a position counts there as often as texts reach it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.metrics import (
    ALIGNED,
    ALIGNED_DROP,
    BIN_QUANTITY,
    DISTANCE_QUANTITY,
    GROUP_COLUMNS,
    HEAD,
    NEAR,
    NEAR_BIN_QUANTITY,
    NEAR_DROP,
    PHASE,
    PHASE_DROP,
    POOLED,
    POOLED_BIN_QUANTITY,
)
from attention_plasticity.tables.bin_cells import bin_cells, near_reach
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import HeadColumn, at_common_heads, bucket_errors
from attention_plasticity.tables.profiles import head_profiles
from qk_toolkit.arrays import Array

FIFTHS = tuple(f"{start}–{start + 20} %" for start in range(0, 100, 20))
_PLACE = [*HEAD, "q_bucket"]
_FIRST = 8192  # tokens of the first part, if the longest text has more than 16,384
_KILO = 1024

Columns = dict[tuple[str, str], HeadColumn]
"""The values of heads by metric and group."""


class Part(NamedTuple):
    """A range of positions: `start` to `end` - 1."""

    name: str
    start: float
    end: float


def length_parts(longest: float) -> list[Part]:
    """0–8K, 8–16K, 16–32K and so on; for at most 16,384 tokens smaller parts: 0–2K, 2–4K, 4–8K.

    The last part has the last token of the longest text.
    """
    top = 1 << max(0, math.ceil(longest) - 1).bit_length()  # power of two, at least `longest`
    edges = [0, _FIRST if top > 2 * _FIRST else max(1, top // 8)]
    while edges[-1] < top:
        edges.append(2 * edges[-1])
    return [Part(_range_name(start, end), start, end) for start, end in pairwise(edges)]


def fifth_parts(longest: float) -> list[Part]:
    """The fifths of the longest text."""
    edges = [longest * number / 5 for number in range(6)]
    return [Part(*part) for part in zip(FIFTHS, edges[:-1], edges[1:], strict=True)]


def _range_name(start: int, end: int) -> str:
    """`8–16K`, `512–1K`, `0–64`."""
    if end < _KILO:
        return f"{start}–{end}"
    first = str(start) if start % _KILO else str(start // _KILO)
    return f"{first}–{end // _KILO}K"


def part_start(name: str) -> float:
    """The start of a part by its name: 8192 for `8–16K`, 512 for `512–1K`, 20 for `20–40 %`."""
    start, end = name.split("–")
    number = float(start)
    in_kilo = end.endswith("K") and number < float(end.removesuffix("K"))
    return number * _KILO if in_kilo else number


def by_length(runs: Sequence[NamedRun]) -> list[Columns]:
    """Plasticity, phase and their drops by absolute length, for each run.

    A drop starts in the first part in which every run with bins has a value.
    """
    bins = [_bins(one.run) for one in runs]
    if len({one.near for one in bins if one is not None}) > 1:  # other distances in each run
        bins = [one and replace(one, near=None) for one in bins]
    longest = max((one.longest for one in bins if one is not None), default=0.0)
    parts = length_parts(longest)
    first = next((part for part in parts if _all_have(bins, part)), None)
    return [{} if one is None else dict(_of_parts(one, parts, first)) for one in bins]


def by_fifth(runs: Sequence[NamedRun]) -> list[Columns]:
    """The same by fifths of the longest text of each run. A drop starts in the first fifth."""
    found: list[Columns] = []
    for one in (_bins(named.run) for named in runs):
        parts = [] if one is None else fifth_parts(one.longest)
        found.append({} if one is None else dict(_of_parts(one, parts, parts[0])))
    return found


def by_bin(runs: Sequence[NamedRun]) -> list[Columns]:
    """The profile over the context: the group is the middle of a bin of queries, in tokens.

    A run without bins has plasticity over each query bucket, at the mean position of its queries,
    or at the number of the bucket if positions are not known; buckets have no errors.
    """
    return [dict(_profile(named.run)) for named in runs]


def by_distance(runs: Sequence[NamedRun]) -> list[Columns]:
    """RoPE-aligned plasticity by distance: the group is the middle of the distances, in tokens.

    Runs without their table have none.
    """
    return [dict(_of_distances(named.run)) for named in runs]


def _of_distances(run: FinishedRun) -> Iterator[tuple[tuple[str, str], HeadColumn]]:
    if not run.has("distances"):
        return
    rows = bucket_errors(run, DISTANCE_QUANTITY)
    table = run.table("distances").rename(columns={"distance_bin": "q_bucket"})
    columns = ["value", "n_groups", *GROUP_COLUMNS]
    if rows is None:
        rows = table.rename(columns={"plasticity": "value"}).reindex(columns=[*_PLACE, *columns])
    middles = table.assign(middle=(table["first_distance"] + table["last_distance"]) / 2.0)
    rows = rows[rows["value"].notna()].merge(middles[[*_PLACE, "middle"]], on=_PLACE)
    for middle, own in rows.groupby("middle"):
        heads = tuple(own[HEAD].itertuples(index=False, name=None))
        values, groups, *shares = own[columns].to_numpy(np.float64).T
        column = HeadColumn(heads, values, np.stack(shares, axis=1), groups, run.eligible_heads)
        yield (ALIGNED, f"{middle:g}"), column


def _all_have(bins: Sequence[_Bins | None], part: Part) -> bool:
    known = [one for one in bins if one is not None]
    return bool(known) and all(one.mean_of(ALIGNED, part).heads for one in known)


def _of_parts(
    bins: _Bins, parts: Sequence[Part], first: Part | None
) -> Iterator[tuple[tuple[str, str], HeadColumn]]:
    names = (ALIGNED, PHASE, *([NEAR] if bins.near else []))
    levels = {(name, part): bins.mean_of(name, part) for name in names for part in parts}
    for (name, part), column in levels.items():
        yield (name, part.name), column
    if first is None:
        return
    drops = {ALIGNED: ALIGNED_DROP, PHASE: PHASE_DROP, NEAR: NEAR_DROP}
    for name in names:
        known = (part for part in parts if part.start >= first.start and levels[name, part].heads)
        start = levels[name, next(known, first)]
        for part in known:
            both = at_common_heads(start, levels[name, part])
            yield (drops[name], part.name), both[0].difference(both[1], paired=True)


def _profile(run: FinishedRun) -> Iterator[tuple[tuple[str, str], HeadColumn]]:
    bins = _bins(run)
    if bins is None:
        yield from _bucket_profile(run)
        return
    for name in (ALIGNED, POOLED, PHASE, *([NEAR] if bins.near else [])):
        for middle in np.unique(bins.middles).tolist():
            part = Part("", middle, math.nextafter(middle, math.inf))
            yield (name, f"{middle:g}"), bins.mean_of(name, part)


def _bucket_profile(run: FinishedRun) -> Iterator[tuple[tuple[str, str], HeadColumn]]:
    profiles = head_profiles(run.bucket_plasticity).dropna(subset=["plasticity"])
    for _, own in profiles.groupby("q_bucket"):
        place = float(own["q_position"].mean() if "q_position" in own else own["q_bucket"].iloc[0])
        unknown = np.full(len(own), np.nan)
        shares = np.full((len(own), len(GROUP_COLUMNS)), np.nan)
        heads = tuple(zip(own["layer"].tolist(), own["q_head"].tolist(), strict=True))
        values = own["plasticity"].to_numpy(np.float64)
        column = HeadColumn(heads, values, shares, unknown, run.eligible_heads)
        yield ("ap_overall", f"{place:g}"), column


@dataclass(frozen=True, eq=False)
class _Bins:
    """Values of all heads in all bins of queries, and the influences of the groups of texts."""

    heads: tuple[tuple[int, int], ...]
    middles: Array  # (bins,) tokens
    longest: float  # tokens of the longest text
    near: float | None  # largest distance in tokens of `NEAR`; None: it is not known
    eligible: int | None
    values: dict[str, Array]  # (heads, bins); NaN if unknown
    influences: dict[str, Array]  # (heads, bins, g)
    groups: dict[str, Array]  # (heads, bins)

    def mean_of(self, name: str, part: Part) -> HeadColumn:
        """Every head's mean over its bins with a value in a part."""
        if name == PHASE:
            both = at_common_heads(self.mean_of(POOLED, part), self.mean_of(ALIGNED, part))
            return both[0].difference(both[1], paired=True)
        inside = (self.middles >= part.start) & (self.middles < part.end)
        values = self.values[name][:, inside]  # (heads, bins of the part)
        known = ~np.isnan(values)
        chosen = np.flatnonzero(known.any(axis=1))
        use, number = known[chosen], known[chosen].sum(axis=1)  # (own, bins), (own,)
        means = np.where(use, values[chosen], 0.0).sum(axis=1) / number
        own = self.influences[name][chosen][:, inside]  # (own, bins, g)
        shares = np.where(use[:, :, None], own, 0.0).sum(axis=1) / number[:, None]
        groups = np.where(use, self.groups[name][chosen][:, inside], np.inf).min(
            axis=1, initial=np.inf
        )
        heads = tuple(self.heads[place] for place in chosen.tolist())
        return HeadColumn(heads, means, shares, groups, self.eligible)


def _bins(run: FinishedRun) -> _Bins | None:
    """None if the run has no bins, or its longest text is not known."""
    if not run.has("bins") or math.isnan(run.context):
        return None
    table = run.table("bins")
    starts = table[table["plasticity"].notna()].groupby("q_bin")[["q_start", "q_end"]].first()
    middles = ((starts["q_start"] + starts["q_end"] + 1.0) / 2.0).to_numpy(np.float64)
    heads = tuple(table[HEAD].drop_duplicates().itertuples(index=False, name=None))
    grids = {name: _grid(heads, starts.index, rows) for name, rows in _rows(run).items()}
    return _Bins(
        heads,
        middles,
        run.context,
        near_reach(table, run.context) if NEAR in grids else None,
        run.eligible_heads,
        {name: grid[..., 0] for name, grid in grids.items()},
        {name: grid[..., 2:] for name, grid in grids.items()},
        {name: grid[..., 1] for name, grid in grids.items()},
    )


def _grid(heads: Sequence[tuple[int, int]], bins: pd.Index[int], rows: pd.DataFrame) -> Array:
    """(heads, bins, 2 + g) value, groups of texts and influences; NaN if they are not known."""
    columns = ["value", "n_groups", *GROUP_COLUMNS]
    places = pd.MultiIndex.from_tuples([(*head, one) for head in heads for one in bins])
    found = rows.set_index([*HEAD, "bin"])[columns].reindex(places).to_numpy(np.float64)
    return found.reshape(len(heads), len(bins), len(columns))


def _rows(run: FinishedRun) -> dict[str, pd.DataFrame]:
    """Rows of heads and bins: `value`, `n_groups` and the influences, NaN if they are not known."""
    if run.influences is not None:
        table = run.influences[run.influences["value"].notna()]
        names = {ALIGNED: BIN_QUANTITY, POOLED: POOLED_BIN_QUANTITY, NEAR: NEAR_BIN_QUANTITY}
        known = set(table["quantity"])
        return {
            name: table[table["quantity"] == quantity]
            for name, quantity in names.items()
            if name != NEAR or quantity in known
        }
    cells = bin_cells(run.table("bins"), run.pair_sampling)
    found = {}
    for name, column in ((ALIGNED, "plasticity"), (POOLED, "pooled")):
        profiles = head_profiles(cells.assign(plasticity=cells[column]))
        rows = profiles.rename(columns={"plasticity": "value", "q_bucket": "bin"})
        rows = rows.dropna(subset=["value"])
        found[name] = rows.reindex(columns=[*HEAD, "bin", "value", "n_groups", *GROUP_COLUMNS])
    return found
