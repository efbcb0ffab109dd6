"""The key pairs of every bin of queries, drawn by tokens.

Without a window, the pairs of a bin of queries are of earlier bins. With `bucket`, both keys are of
one bin; with `local`, they are near each other; with `context`, any two keys of a text. Through a
window or in chunks, a pair is drawn together with a query that sees both keys. For plasticity at
one position the difference of its keys is then turned by the distance from the position t of this
query to the position τ of the bin: w·R(t − τ)q = (R(τ − t)w)·q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attention_plasticity.estimate.blocks import LARGE_BLOCK, row_blocks
from attention_plasticity.estimate.pairs import Pairs, PairSampler, Seen, dealt, run_starts
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.grid import Grid
from attention_plasticity.measure.seed_pairs import PairSampling
from attention_plasticity.read.bins import Bins
from attention_plasticity.read.rows import Keys
from qk_dump.rotary import rotate
from qk_toolkit.arrays import Array, Bools, Ints

FEWEST_PAIRS = 64  # that the queries of a bin must see through a window


@dataclass(frozen=True)
class SortedKeys:
    """Keys with a weight above 0, by text and position."""

    keys: Keys
    rows: Ints  # (n,)
    weight: Array  # (n,) only ratios within a text matter, or all ratios
    text: Ints  # (n,) number of the text, from 0
    position: Array  # (n,)
    code: Ints  # (n,) number of the bin among `bins`
    bins: Ints  # (cells,) numbers of the bins with keys

    @classmethod
    def of(cls, keys: Keys, weight: Array, bins: Bins) -> SortedKeys:
        """The keys whose `weight` (keys,) is above 0."""
        order = np.lexsort((keys.position, keys.text))
        rows = order[weight[order] > 0]
        own = weight[rows] / weight[rows].max() if len(rows) else weight[rows]
        text = np.unique(keys.text[rows], return_inverse=True)[1]
        numbers, code = np.unique(bins.of(keys.position[rows]), return_inverse=True)
        return cls(keys, rows, own, text, keys.position[rows], code, numbers)

    def first_partners(self, sampling: PairSampling, max_rel_dist: float) -> Ints:
        """(n,) the first key before each that it may be paired with."""
        start = run_starts(self.text)
        if sampling == "bucket":
            return run_starts(self.text, self.code)
        if sampling == "local":
            sizes = np.bincount(self.text)[self.text]  # (n,)
            reach = np.maximum(1, np.floor(max_rel_dist * sizes).astype(np.int64))
            return np.asarray(np.maximum(start, np.arange(len(start)) - reach))
        return start


@dataclass(frozen=True)
class BinPairs:
    """Key pairs, and which of them every bin of queries uses."""

    W: npt.NDArray[np.float32]  # (pairs, d) differences of keys
    turned: npt.NDArray[np.float32]  # (pairs, d) the same at the position of the bin
    cell: Ints  # (pairs,) code of the bin of the later key
    group: Ints  # (pairs,) of the text; 0 if it is not known
    middle: Array  # (pairs,) mean position of both keys
    seen_by: Ints | None  # (pairs,) group of the query that sees a pair; None without a window
    seen_from: Array | None  # (pairs,) position of this query
    reach: int | None  # distances that queries see are smaller; None: all
    of_bin: tuple[Ints, ...]  # numbers of the pairs of each bin of queries, by cell
    eligible: Bools  # (b, cells) cells that the queries of a bin see
    cells: Ints  # (cells,) numbers of the bins of keys
    position: Array  # (cells,) mean position of their keys
    of_cells: bool  # the value of a bin is the mean over its cells, else over its pairs

    def distances(self, numbers: Ints, target: float) -> Array:
        """(n,) tokens from the query, or from the bin at `target`, to the middle of some pairs."""
        at = target if self.seen_from is None else self.seen_from[numbers]
        return np.asarray(at - self.middle[numbers])


def bin_pairs(
    sorted_keys: SortedKeys,
    grid: Grid,
    visible: Visible,
    sampling: PairSampling,
    max_rel_dist: float,
    number: int,
    rng: np.random.Generator,
) -> BinPairs:
    """The pairs of all bins; `number` for each, and twice as many in the first fifth."""
    most = number * np.where(5 * grid.bins.starts(grid.number) < grid.bins.context, 2, 1)
    low = sorted_keys.first_partners(sampling, max_rel_dist)
    if visible.is_limited:
        return _seen_pairs(sorted_keys, grid, visible, low, most, None, rng)
    eligible = sorted_keys.bins[None, :] < grid.number[:, None]  # (b, cells)
    sampler = PairSampler(sorted_keys.weight, low)
    if sampling == "context":
        return _context_pairs(sorted_keys, grid, sampler, eligible, most, None, rng)
    share = -(-most // np.maximum(eligible.sum(axis=1), 1))  # (b,) pairs of a bin in each cell
    drawn: list[Pairs] = []
    of_bin: list[list[Ints]] = [[np.zeros(0, np.int64)] for _ in range(len(grid))]
    begin = 0
    for code in range(len(sorted_keys.bins)):
        numbers = share * eligible[:, code]  # (b,)
        (part,) = sampler.draw(sorted_keys.code[None] == code, numbers.sum(keepdims=True), rng)
        for place, own in enumerate(dealt(len(part.later), numbers, rng)):
            of_bin[place].append(begin + own)
        drawn.append(part)
        begin += len(part.later)
    later, earlier = _joined(drawn)
    own_pairs = tuple(np.concatenate(parts) for parts in of_bin)
    return _finished(sorted_keys, later, earlier, own_pairs, eligible, of_cells=True)


def attended_pairs(
    sorted_keys: SortedKeys, grid: Grid, visible: Visible, number: int, rng: np.random.Generator
) -> BinPairs:
    """Pairs of any two keys; texts in proportion to the weight of their queries in the bin."""
    low = sorted_keys.first_partners("context", 0.0)
    most = np.full(len(grid), number)
    texts = _text_weights(sorted_keys, grid)  # (b, texts)
    if visible.is_limited:
        return _seen_pairs(sorted_keys, grid, visible, low, most, texts, rng)
    eligible = sorted_keys.bins[None, :] < grid.number[:, None]
    sampler = PairSampler(sorted_keys.weight, low)
    return _context_pairs(sorted_keys, grid, sampler, eligible, most, texts, rng)


def _context_pairs(
    own: SortedKeys,
    grid: Grid,
    sampler: PairSampler,
    eligible: Bools,
    most: Ints,
    texts: Array | None,
    rng: np.random.Generator,
) -> BinPairs:
    """Pairs of any two earlier keys of a text, drawn for every bin of queries."""
    parts: list[Pairs] = []
    for bins in row_blocks(len(grid), len(own.rows), LARGE_BLOCK):
        factor = eligible[bins][:, own.code].astype(np.float64)  # (b, n)
        if texts is not None:
            factor *= _text_factor(sampler.chance * factor, own.text, texts[bins])
        parts += sampler.draw(factor, most[bins], rng)
    return _of_parts(own, parts, eligible)


def _seen_pairs(
    own: SortedKeys,
    grid: Grid,
    visible: Visible,
    low: Ints,
    most: Ints,
    texts: Array | None,
    rng: np.random.Generator,
) -> BinPairs:
    """Pairs that queries of a bin see, each with a query that sees both keys."""
    end = visible.end(own.position)  # (n,) queries from here on do not see a key
    eligible = np.zeros((len(grid), len(own.bins)), np.bool_)
    parts, seen_rows = [], []
    for place in range(len(grid)):
        rows = grid.rows[place]
        rows = rows[np.argsort(grid.queries.position[rows], kind="stable")]
        at = grid.queries.position[rows]  # (m,)
        before = np.concatenate([[0.0], np.cumsum(grid.queries.weight[rows])])
        seen = Seen(before[np.searchsorted(at, own.position)], before[np.searchsorted(at, end)])
        span = 2.0 * before[-1] + 1.0
        first = np.searchsorted(own.text * span + seen.end, own.text * span + seen.start, "right")
        sampler = PairSampler(own.weight, np.maximum(low, first), seen)
        possible = np.flatnonzero(sampler.chance > 0)
        pairs = int((possible - sampler.low[possible]).sum())
        if pairs >= FEWEST_PAIRS and len(np.unique(own.text[possible])) >= grid.fewest_texts:
            eligible[place, np.unique(own.code[seen.end > seen.start])] = True
        factor = np.full((1, len(own.rows)), float(eligible[place].any()))
        if texts is not None:
            factor *= _text_factor(sampler.chance[None], own.text, texts[place, None])
        (drawn,) = sampler.draw(factor, most[place, None], rng)
        left, right = seen.start[drawn.later], seen.end[drawn.earlier]
        value = left + rng.random(len(drawn.later)) * (right - left)
        chosen = np.clip(np.searchsorted(before, value, side="right") - 1, 0, len(rows) - 1)
        parts.append(drawn)
        seen_rows.append(rows[chosen])
    found = _of_parts(own, parts, eligible)
    query = np.concatenate([np.zeros(0, np.int64), *seen_rows])  # (pairs,)
    turned, record = found.W, own.keys.layer.rotation.record
    if record is not None and len(query):
        target = np.repeat(grid.target, [len(part) for part in found.of_bin])  # (pairs,)
        turned = rotate(found.W, grid.queries.position[query], target, record).astype(np.float32)
    at = grid.queries.position[query]  # (pairs,)
    query_facts = {"seen_by": grid.group[query], "seen_from": at, "reach": visible.size}
    return BinPairs(**{**vars(found), "turned": turned, **query_facts})


def _of_parts(own: SortedKeys, parts: Sequence[Pairs], eligible: Bools) -> BinPairs:
    """Pairs that were drawn for each bin of queries."""
    later, earlier = _joined(parts)
    ends = np.cumsum([len(part.later) for part in parts])
    cell = own.code[later]
    numbers = np.split(np.arange(len(later)), ends[:-1]) if parts else []
    of_bin = tuple(one[np.argsort(cell[one], kind="stable")] for one in numbers)
    return _finished(own, later, earlier, of_bin, eligible, of_cells=False)


def _joined(parts: Sequence[Pairs]) -> Pairs:
    """All pairs, one part after the other."""
    none = np.zeros(0, np.int64)
    later = np.concatenate([none, *(part.later for part in parts)])
    return Pairs(later, np.concatenate([none, *(part.earlier for part in parts)]))


def _finished(
    own: SortedKeys,
    later: Ints,
    earlier: Ints,
    of_bin: tuple[Ints, ...],
    eligible: Bools,
    *,
    of_cells: bool,
) -> BinPairs:
    """The pairs with the differences of their keys."""
    keys, first = own.keys, own.rows[later]
    second = own.rows[earlier]
    W = np.subtract(keys.after[first], keys.after[second], dtype=np.float32)
    group = np.zeros(len(first), np.int64) if keys.group is None else keys.group[first]
    position = np.bincount(own.code, own.position) / np.bincount(own.code)
    return BinPairs(
        W=W,
        turned=W,
        cell=own.code[later],
        group=group,
        middle=(keys.position[first] + keys.position[second]) / 2.0,
        seen_by=None,
        seen_from=None,
        reach=None,
        of_bin=of_bin,
        eligible=eligible,
        cells=own.bins,
        position=position,
        of_cells=of_cells,
    )


def _text_weights(own: SortedKeys, grid: Grid) -> Array:
    """(b, texts) sums of the weights of the queries of every bin, for the texts of the keys."""
    assert grid.queries.text is not None
    ids = np.unique(own.keys.text[own.rows])
    if not len(ids):
        return np.zeros((len(grid), 0))
    place = np.minimum(np.searchsorted(ids, grid.queries.text), len(ids) - 1)
    weight = np.where(ids[place] == grid.queries.text, grid.queries.weight, 0.0)
    sums = np.zeros((len(grid), len(ids)))
    for total, rows in zip(sums, grid.rows, strict=True):
        total += np.bincount(place[rows], weight[rows], len(ids))
    return sums


def _text_factor(chance: Array, text: Ints, weight: Array) -> Array:
    """(b, n) factors of keys with which texts have the probabilities of their `weight` (b, texts).

    `chance` (b, n) are those of keys without the factors.
    """
    if not len(text):
        return np.zeros(chance.shape)
    total = np.add.reduceat(chance, np.flatnonzero(np.diff(text, prepend=-1)), axis=1)
    factor = np.where(total > 0, weight / np.where(total > 0, total, 1.0), 0.0)  # (b, texts)
    return np.asarray(factor[:, text])
