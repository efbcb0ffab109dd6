"""The queries of a head in bins of positions, and means over these bins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attention_plasticity.estimate.quantity import Quantity, leave_one_out, quantity
from attention_plasticity.estimate.score import Centred
from attention_plasticity.estimate.sizes import GROUPS
from attention_plasticity.read.bins import Bins
from attention_plasticity.read.rows import Queries
from qk_dump.rotary import rotate
from qk_toolkit.arrays import Array, Bools, Ints

MOST_QUERIES = 1024  # of a bin that are scored; the error comes from keys and pairs
FEWEST_TEXTS = 4  # behind a bin


@dataclass(frozen=True)
class Grid:
    """Bins with two or more queries. Without known texts, the group of all queries is 0."""

    queries: Queries
    bins: Bins
    number: Ints  # (b,) numbers of the bins
    rows: tuple[Ints, ...]  # rows of all queries of each bin, by text and position
    target: Array  # (b,) mean position of the queries
    group: Ints  # (n,) of the text of each query

    @classmethod
    def of(cls, queries: Queries, bins: Bins, *, with_first: bool) -> Grid:
        """The bins of queries. Those of bin 0 see no earlier bin, only their own."""
        position = queries.position
        code = bins.of(position)  # (n,)
        text = np.zeros(len(code), np.int64) if queries.text is None else queries.text
        order = np.lexsort((position, text, code))
        number, starts, counts = np.unique(code[order], return_index=True, return_counts=True)
        kept = np.flatnonzero((counts >= 2) & ((number != 0) | with_first))
        rows = tuple(order[starts[one] : starts[one] + counts[one]] for one in kept)
        target = [position[one[0]] + (position[one] - position[one[0]]).mean() for one in rows]
        group = np.zeros(len(code), np.int64) if queries.group is None else queries.group
        return cls(queries, bins, number[kept], rows, np.array(target), group)

    def __len__(self) -> int:
        return len(self.number)

    @cached_property
    def chosen(self) -> tuple[Ints, ...]:
        """Rows of the queries of every bin that are scored, evenly spread over its texts."""
        step = np.arange(MOST_QUERIES)
        return tuple(
            rows if len(rows) <= MOST_QUERIES else rows[step * len(rows) // MOST_QUERIES]
            for rows in self.rows
        )

    def captured(self, place: int) -> Centred:
        """The chosen queries of a bin as they enter the attention."""
        rows = self.chosen[place]
        return Centred.of(self.queries.after[rows], self.group[rows])

    def turned(self, place: int) -> Centred:
        """The same, turned to the mean position of the bin."""
        return self._turned[place]

    @cached_property
    def _turned(self) -> tuple[Centred, ...]:
        record = self.queries.layer.rotation.record
        if record is None or not self.chosen:
            return tuple(self.captured(place) for place in range(len(self)))
        sizes, rows = [len(one) for one in self.chosen], np.concatenate(self.chosen)
        target = np.repeat(self.target, sizes)
        Q = rotate(self.queries.after[rows], self.queries.position[rows], target, record)
        parts = zip(np.split(Q, np.cumsum(sizes)[:-1]), self.chosen, strict=True)
        return tuple(Centred.of(own, self.group[rows]) for own, rows in parts)

    @cached_property
    def texts(self) -> Ints | None:
        """(b,) numbers of texts of the queries; None if texts are not known."""
        text = self.queries.text
        if text is None:
            return None  # rows of a bin are sorted by text
        return np.array([1 + np.count_nonzero(np.diff(text[rows])) for rows in self.rows], np.int64)

    @cached_property
    def fewest_texts(self) -> int:
        """Texts that a bin needs: 4, or all texts of the queries if they are fewer."""
        text = self.queries.text
        return FEWEST_TEXTS if text is None else min(FEWEST_TEXTS, len(np.unique(text)))

    @cached_property
    def enough_texts(self) -> Bools:
        """(b,) whether a bin has enough texts."""
        if self.texts is None:
            return np.ones(len(self), np.bool_)
        return np.asarray(self.texts >= self.fewest_texts)

    @cached_property
    def weight(self) -> Array:
        """(g, b) tokens that the queries of every group and bin stand for."""
        return self._weights(self.queries.weight)

    def weight_of_fifth(self, fifth: int) -> Array:
        """(g, b) the same in a fifth of the longest text; a bin can be in two."""
        inside = self.bins.fifths(self.queries.position) == fifth
        return self._weights(self.queries.weight * inside)

    @cached_property
    def counts(self) -> Array:
        """(g, b) numbers of queries."""
        return self._weights(np.ones(len(self.group)))

    def _weights(self, weight: Array) -> Array:
        rows, slot = self._slots
        sums = np.bincount(slot, weight[rows], len(self) * GROUPS).astype(np.float64)
        return sums.reshape(-1, GROUPS).T

    @cached_property
    def _slots(self) -> tuple[Ints, Ints]:
        """(all queries of bins,) their rows, and numbers of their bins and groups."""
        rows = np.concatenate([np.zeros(0, np.int64), *self.rows])
        place = np.repeat(np.arange(len(self)), [len(own) for own in self.rows])
        return rows, place * GROUPS + self.group[rows]

    @property
    def has_errors(self) -> bool:
        """Whether groups of texts are known."""
        return self.queries.group is not None

    def mean(self, profile: Array, weight: Array) -> Quantity:
        """Mean over tokens of values (1 + g, b) of bins; `weight` (g, b) is that of their queries.

        A bin that is NaN takes no part.
        """
        known = ~np.isnan(profile)  # (1 + g, b)
        own = leave_one_out(weight) * known  # (1 + g, b)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.where(known, profile * own, 0.0).sum(axis=1) / own.sum(axis=1)
        present = (weight[:, known[0]].sum(axis=1) > 0) & self.has_errors
        if math.isnan(values[0]):
            present = np.zeros(GROUPS, np.bool_)
        return quantity(values, present)

    def of_bins(self, profile: Array) -> Quantity:
        """The values (1 + g, b) of every bin with errors."""
        return quantity(profile, (self.counts > 0) & self.has_errors)
