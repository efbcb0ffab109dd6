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

from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.metrics import (
    ALIGNED,
    ALIGNED_DROP,
    DISTANCE_QUANTITY,
    GROUP_COLUMNS,
    HEAD,
    NEAR,
    NEAR_DROP,
    PHASE,
    PHASE_DROP,
    POOLED,
)
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import HeadColumn, at_common_heads, bin_influences
from attention_plasticity.tables.main_plasticity import OVER_BUCKETS
from attention_plasticity.tables.profiles import Profiles, near_reach, profiles_of
from qk_toolkit.arrays import Array, Bools

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
    rows = bin_influences(run, DISTANCE_QUANTITY)
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
    if bins is not None:
        for name in (ALIGNED, POOLED, PHASE, *([NEAR] if bins.near else [])):
            for place, middle in enumerate(bins.middles.tolist()):
                yield (name, f"{middle:g}"), bins.over(name, place)
    elif (found := profiles_of(run, OVER_BUCKETS.level)) is not None:
        middles = np.where(np.isnan(found.mean_position), found.buckets, found.mean_position)
        for place, middle in enumerate(middles.tolist()):
            yield (OVER_BUCKETS.level, f"{middle:g}"), found.over(place)


@dataclass(frozen=True, eq=False)
class _Bins:
    """The profiles of a run over the same bins of queries."""

    profiles: dict[str, Profiles]  # by column
    middles: Array  # (bins,) tokens
    longest: float  # tokens of the longest text
    near: float | None  # largest distance in tokens of `NEAR`; None: it is not known

    def mean_of(self, name: str, part: Part) -> HeadColumn:
        """Every head's mean over its bins with a value in a part."""
        return self.over(name, (self.middles >= part.start) & (self.middles < part.end))

    def over(self, name: str, places: int | Bools) -> HeadColumn:
        """Every head's mean over its bins with a value at some places."""
        if name != PHASE:
            return self.profiles[name].over(places)
        both = at_common_heads(self.over(POOLED, places), self.over(ALIGNED, places))
        return both[0].difference(both[1], paired=True)


def _bins(run: FinishedRun) -> _Bins | None:
    """None if the run has no bins, or its longest text is not known."""
    if not run.has("bins") or math.isnan(run.context):
        return None
    table = run.table("bins")
    known = {name: profiles_of(run, name) for name in (ALIGNED, POOLED, NEAR)}
    profiles = {name: found for name, found in known.items() if found is not None}
    starts = table.groupby("q_bin")[["q_start", "q_end"]].first()
    starts = starts.reindex(profiles[ALIGNED].buckets)
    middles = ((starts["q_start"] + starts["q_end"] + 1.0) / 2.0).to_numpy(np.float64)
    near = near_reach(table, run.context) if NEAR in profiles else None
    return _Bins(profiles, middles, run.context, near)
