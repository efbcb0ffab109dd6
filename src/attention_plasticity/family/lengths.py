"""Plasticity at one position and rotary phase by absolute length of the context, with errors.

A part of the context is a range of positions, such as 0–8K. The value of a head in a part is the
mean over the bins of queries whose middle is in the part. All bins have the same number of
positions, so this is a mean over positions; the texts have no influence on its weights, and its
standard error follows from the influences of the bins. The means over tokens of the table of heads
are other means: a position counts there as often as texts reach it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.comparison.runs import ALL_LAYERS, ComparedRun
from attention_plasticity.metrics import (
    ALIGNED,
    ALIGNED_DROP,
    BIN_QUANTITY,
    GROUP_COLUMNS,
    PHASE,
    POOLED_BIN_QUANTITY,
)
from attention_plasticity.tables.bin_cells import bin_cells
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import HeadColumn, at_common_heads, mean_numbers
from attention_plasticity.tables.profiles import HEAD, head_profiles

PHASE_DROP = "ap_phase_drop"
"""Rotary phase in the first part minus that in this part."""
LENGTH_COLUMNS = (
    *("run", "layer_type", "divided", "part", "start", "end", "quantity"),
    *("mean", "standard_error", "low", "high", "degrees_of_freedom"),
    *("heads", "bins", "first_position", "last_position", "texts"),
)
BY_LENGTH, BY_FIFTH = "length", "fifth"
FIFTH_NAMES = tuple(f"{start}–{start + 20} %" for start in range(0, 100, 20))
_FIRST = 8192  # tokens of the first part, if the longest text has more than 16,384
_KILO = 1024


@dataclass(frozen=True)
class Part:
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
    return [Part(*part) for part in zip(FIFTH_NAMES, edges[:-1], edges[1:], strict=True)]


def _range_name(start: int, end: int) -> str:
    """`8–16K`, `512–1K`, `0–64`."""
    if end < _KILO:
        return f"{start}–{end}"
    first = str(start) if start % _KILO else str(start // _KILO)
    return f"{first}–{end // _KILO}K"


def length_table(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    """One row per run, type of layers, part of the context and quantity, for runs with bins.

    By length: plasticity at one position, phase, and the drop of both from the first part in which
    all runs have a value. By fifths: phase and its drop. Parts without a value have no row.
    """
    known = [run for run in runs if run.run.has("bins") and not math.isnan(run.run.context)]
    if not known:
        return pd.DataFrame(columns=list(LENGTH_COLUMNS))
    lengths = length_parts(max(run.run.context for run in known))
    whole = [_BinValues(run.run) for run in known]
    first = _first_common(whole, lengths)
    rows: list[tuple[Any, ...]] = []
    for run, all_heads in zip(known, whole, strict=True):
        for layer_type, selected in run.parts.items():
            values = all_heads.of(selected)
            rows += _rows(run.label, layer_type, values, BY_LENGTH, lengths, first)
            rows += _rows(run.label, layer_type, values, BY_FIFTH, fifth_parts(run.run.context), 0)
    return pd.DataFrame(rows, columns=list(LENGTH_COLUMNS))


def _first_common(values: Sequence[_BinValues], parts: Sequence[Part]) -> int | None:
    """The place of the first part in which every run has a value; None if there is none."""
    for place, part in enumerate(parts):
        if all(one.mean_of(BIN_QUANTITY, part).heads for one in values):
            return place
    return None


def _rows(
    label: str,
    layer_type: str,
    values: _BinValues,
    divided: str,
    parts: Sequence[Part],
    first: int | None,
) -> Iterator[tuple[Any, ...]]:
    for place, part in enumerate(parts):
        where = (label, layer_type, divided, part.name, part.start, part.end)
        start = None if first is None or place <= first else parts[first]
        for quantity, column in _columns(values, part, start):
            if divided == BY_FIFTH and quantity in (ALIGNED, ALIGNED_DROP):
                continue
            mean = column.mean
            if not mean.heads:
                continue
            numbers = mean_numbers(mean)
            seen = values.seen_in(part)
            yield (*where, quantity, *numbers, mean.freedom, mean.heads, *seen)


def _columns(
    values: _BinValues, part: Part, start: Part | None
) -> Iterator[tuple[str, HeadColumn]]:
    """The quantities of a part, and their drops from the part `start`."""
    aligned, pooled = (values.mean_of(name, part) for name in _QUANTITIES)
    phase = minus(pooled, aligned)
    yield ALIGNED, aligned
    yield PHASE, phase
    if start is not None:
        first, first_pooled = (values.mean_of(name, start) for name in _QUANTITIES)
        yield ALIGNED_DROP, minus(first, aligned)
        yield PHASE_DROP, minus(minus(first_pooled, first), phase)


_QUANTITIES = (BIN_QUANTITY, POOLED_BIN_QUANTITY)
_ERRORS = [*GROUP_COLUMNS]


def minus(one: HeadColumn, other: HeadColumn) -> HeadColumn:
    """The difference of two quantities of one run, at the heads that have both."""
    one, other = at_common_heads(one, other)
    return HeadColumn(
        one.heads,
        one.values - other.values,
        one.influences - other.influences,
        np.minimum(one.groups, other.groups),
        one.eligible,
    )


class _BinValues:
    """Values and influences of every head and bin of queries of a run."""

    def __init__(self, run: FinishedRun) -> None:
        self._run = run
        self._found: dict[tuple[str, Part], HeadColumn] = {}

    def of(self, selected: FinishedRun) -> _BinValues:
        """The same for the heads of some layers, without reading the tables again."""
        if selected.layers is None:
            return self
        found = _BinValues(selected)
        found._tables = {name: _of_layers(one, selected) for name, one in self._tables.items()}
        found._bins = _of_layers(self._bins, selected)
        return found

    @cached_property
    def _bins(self) -> pd.DataFrame:
        bins = self._run.table("bins")
        return bins[bins["plasticity"].notna()]

    @cached_property
    def _places(self) -> pd.DataFrame:
        """First and last position and fewest texts of each bin of queries with a value."""
        grouped = self._bins.groupby("q_bin")
        return pd.DataFrame(
            {
                "start": grouped["q_start"].first(),
                "end": grouped["q_end"].first(),
                "texts": grouped["n_texts"].min(),
            }
        ).astype(np.float64)

    def _in(self, part: Part) -> pd.DataFrame:
        """The rows of `_places` of the bins whose middle is in a part."""
        middle = (self._places["start"] + self._places["end"] + 1.0) / 2.0
        return self._places[(middle >= part.start) & (middle < part.end)]

    def seen_in(self, part: Part) -> tuple[int, float, float, float]:
        """Bins, first position, last position, and fewest texts of the bins of a part."""
        places = self._in(part)
        first, last = float(places["start"].min()), float(places["end"].max())
        return len(places), first, last, float(places["texts"].min())

    def mean_of(self, quantity: str, part: Part) -> HeadColumn:
        """Every head's mean over its bins with a value in a part."""
        key = (quantity, part)
        if key not in self._found:
            self._found[key] = self._mean_of(quantity, self._in(part).index)
        return self._found[key]

    def _mean_of(self, quantity: str, bins: pd.Index[Any]) -> HeadColumn:
        rows = self._tables[quantity]
        rows = rows[rows["bin"].isin(bins)]
        grouped = rows.groupby(HEAD)
        means = grouped[["value", *_ERRORS]].mean()
        complete = grouped[_ERRORS].count().eq(grouped.size(), axis=0)
        means[_ERRORS] = means[_ERRORS].where(complete)
        heads = tuple((int(layer), int(head)) for layer, head in means.index)
        return HeadColumn(
            heads,
            means["value"].to_numpy(np.float64),  # (heads,)
            means[_ERRORS].to_numpy(np.float64),  # (heads, groups)
            grouped["n_groups"].min().to_numpy(np.float64),
            self._run.eligible_heads,
        )

    @cached_property
    def _tables(self) -> dict[str, pd.DataFrame]:
        """The rows of influences of bins; values without errors if the texts are not known."""
        influences = self._run.influences
        if influences is not None:
            known = influences[influences["value"].notna()]
            return {name: known[known["quantity"] == name] for name in _QUANTITIES}
        cells = bin_cells(self._run.table("bins"), self._run.pair_sampling)
        found = {}
        for name, column in zip(_QUANTITIES, ("plasticity", "pooled"), strict=True):
            values = head_profiles(cells.assign(plasticity=cells[column]))
            values = values.rename(columns={"plasticity": "value", "q_bucket": "bin"})
            values = values.dropna(subset=["value"])
            found[name] = values.reindex(columns=[*HEAD, "bin", "value", "n_groups", *_ERRORS])
        return found


def _of_layers(table: pd.DataFrame, selected: FinishedRun) -> pd.DataFrame:
    assert selected.layers is not None
    return table[table["layer"].isin(selected.layers)]


def of_all_layers(table: pd.DataFrame, divided: str, quantity: str) -> pd.DataFrame:
    """The rows of one quantity over all layers, by length or by fifths."""
    chosen = (table["layer_type"] == ALL_LAYERS) & (table["divided"] == divided)
    return table[chosen & (table["quantity"] == quantity)].reset_index(drop=True)
