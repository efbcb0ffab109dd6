"""The queries of a head in bins of positions, and means over these bins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attention_plasticity.estimate.quantity import Quantity, leave_one_out, quantity, sums_by
from attention_plasticity.estimate.score import Singles
from attention_plasticity.estimate.sizes import FIFTHS, GROUPS
from attention_plasticity.read.bins import Bins
from attention_plasticity.read.rows import Queries
from qk_dump.rotary import rotate
from qk_toolkit.arrays import Array, Bools, Ints

MOST_QUERIES = 512  # of a bin that are scored; the error comes from keys and pairs
FEWEST_TEXTS = 4  # behind a bin


def equal_places(queries: Mapping[int, Queries]) -> list[list[int]]:
    """Query heads with queries at the same places, in lists: usually all heads of a key head."""
    found: list[list[int]] = []
    for q_head, own in queries.items():
        for others in found:
            if _equal(own, queries[others[0]]):
                others.append(q_head)
                break
        else:
            found.append([q_head])
    return found


def _equal(one: Queries, other: Queries) -> bool:
    if (one.visible, one.text is None) != (other.visible, other.text is None):
        return False
    texts = one.text is None or other.text is None or np.array_equal(one.text, other.text)
    places = np.array_equal(one.position, other.position)
    return texts and places and np.array_equal(one.weight, other.weight)


@dataclass(frozen=True)
class Grid:
    """Bins with two or more queries. Without known texts, the group of all queries is 0."""

    heads: tuple[Queries, ...]  # query heads with queries at the same places
    bins: Bins
    number: Ints  # (b,) numbers of the bins
    rows: tuple[Ints, ...]  # rows of all queries of each bin, by text and position
    target: Array  # (b,) mean position of the queries
    group: Ints  # (n,) of the text of each query

    @classmethod
    def of(cls, heads: Sequence[Queries], bins: Bins, *, with_first: bool) -> Grid:
        """The bins of the queries of some heads at the same places.

        Queries of bin 0 see no earlier bin, only their own.
        """
        queries = heads[0]
        position = queries.position
        code = bins.of(position)  # (n,)
        text = np.zeros(len(code), np.int64) if queries.text is None else queries.text
        order = np.lexsort((position, text, code))
        number, starts, counts = np.unique(code[order], return_index=True, return_counts=True)
        kept = np.flatnonzero((counts >= 2) & ((number != 0) | with_first))
        rows = tuple(order[starts[one] : starts[one] + counts[one]] for one in kept)
        target = [position[one[0]] + (position[one] - position[one[0]]).mean() for one in rows]
        group = np.zeros(len(code), np.int64) if queries.group is None else queries.group
        return cls(tuple(heads), bins, number[kept], rows, np.array(target), group)

    def __len__(self) -> int:
        return len(self.number)

    @property
    def queries(self) -> Queries:
        """The places of the queries; their vectors are those of the first head."""
        return self.heads[0]

    @cached_property
    def chosen(self) -> tuple[Ints, ...]:
        """Rows of the queries of every bin that are scored, evenly spread over its texts."""
        step = np.arange(MOST_QUERIES)
        return tuple(
            rows if len(rows) <= MOST_QUERIES else rows[step * len(rows) // MOST_QUERIES]
            for rows in self.rows
        )

    @property
    def no_rotation(self) -> str | None:
        """Why queries cannot be de-rotated; None if they can."""
        return self.queries.layer.rotation.problem

    def captured(self, place: int) -> Singles:
        """(heads, n, d) the chosen queries of a bin as they enter the attention."""
        return np.stack([queries.after[self.chosen[place]] for queries in self.heads])

    def turned(self, place: int) -> Singles:
        """(heads, n, d) the same, de-rotated to the mean position of the bin."""
        return self._turned[place]

    def turned_of(self, head: int) -> Callable[[int], Singles]:
        """The same of one head alone, (1, n, d)."""
        return lambda place: self._turned[place][head : head + 1]

    @cached_property
    def _turned(self) -> list[Singles]:
        record = self.queries.layer.rotation.record
        if record is None or not self.chosen:
            return [self.captured(place) for place in range(len(self))]
        sizes, rows = [len(one) for one in self.chosen], np.concatenate(self.chosen)
        position, target = self.queries.position[rows], np.repeat(self.target, sizes)
        heads = len(self.heads)
        captured = np.concatenate([one.after[rows] for one in self.heads])  # (heads · n, d)
        turned = rotate(captured, np.tile(position, heads), np.tile(target, heads), record)
        turned = turned.reshape(heads, len(rows), -1)
        found: list[Singles] = np.split(turned, np.cumsum(sizes)[:-1], axis=1)
        return found

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

    @cached_property
    def weight_of_fifths(self) -> list[Array]:
        """(g, b) each, the same in every fifth of the longest text; a bin can be in two."""
        fifths = self.bins.fifths(self.queries.position)
        return [self._weights(self.queries.weight * (fifths == one)) for one in range(FIFTHS)]

    @cached_property
    def counts(self) -> Array:
        """(g, b) numbers of queries."""
        return self._weights(np.ones(len(self.group)))

    def _weights(self, weight: Array) -> Array:
        rows, slot = self._slots
        return sums_by(weight[rows], slot, len(self) * GROUPS).reshape(-1, GROUPS).T

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
