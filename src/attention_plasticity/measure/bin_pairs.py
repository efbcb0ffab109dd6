"""The key pairs of every bin of queries, drawn by tokens.

Without a window, the pairs of a bin of queries are of earlier bins. With `bucket`, both keys are of
one bin; with `local`, they are near each other; with `context`, any two keys of a text. Through a
window or in chunks, a pair is drawn together with a query that sees both keys. For plasticity at
one position the difference of its keys is then turned by the distance from the position t of this
query to the position τ of the bin: w·R(t − τ)q = (R(τ − t)w)·q.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from attention_plasticity.estimate.pairs import Pairs, PairSampler, Seen, dealt, run_starts
from attention_plasticity.estimate.quantity import sums_by
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
    """Keys by text and position."""

    keys: Keys
    rows: Ints  # (n,)
    weight: Array  # (n,) only ratios within a text matter, or all ratios
    text: Ints  # (n,) number of the text among `texts`
    texts: Ints  # (t,) ids
    position: Array  # (n,)
    code: Ints  # (n,) number of the bin among `bins`
    bins: Ints  # (cells,) numbers of the bins with keys

    @classmethod
    def of(cls, keys: Keys, weight: Array, bins: Bins) -> SortedKeys:
        """The keys with `weight` (keys,); those with weight 0 are in no pair."""
        rows = np.lexsort((keys.position, keys.text))
        texts, text = np.unique(keys.text[rows], return_inverse=True)
        numbers, code = np.unique(bins.of(keys.position[rows]), return_inverse=True)
        found = cls(keys, rows, weight, text, texts, keys.position[rows], code, numbers)
        return found.with_weight(weight)

    def with_weight(self, weight: Array) -> SortedKeys:
        """The same with other weights (keys,)."""
        own = weight[self.rows]
        return replace(self, weight=own / (own.max(initial=0.0) or 1.0))

    def in_units_of_text(self, weight: Array) -> Array:
        """(keys,) weights over the largest one of their text."""
        if not len(self.rows):
            return weight
        largest = np.maximum.reduceat(weight[self.rows], self.before(0)[0])[self.text]  # (n,)
        found = np.zeros(len(weight))
        found[self.rows] = weight[self.rows] / np.where(largest > 0, largest, 1.0)
        return found

    def before(self, code: int | Ints) -> Ints:
        """(…, t) the first key of every text that is of bin `code` (…) or a later one."""
        cells = len(self.bins) + 1
        wanted = np.arange(len(self.texts)) * cells + np.atleast_1d(code)[:, None]
        return np.asarray(np.searchsorted(self.text * cells + self.code, wanted))

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
    numbers = share[:, None] * eligible  # (b, cells)
    codes = np.arange(len(sorted_keys.bins))
    begin, end = sorted_keys.before(codes), sorted_keys.before(codes + 1)  # (cells, t)
    pairs = sampler.draw(begin, end, numbers.sum(axis=0), rng)
    of_bin: list[list[Ints]] = [[np.zeros(0, np.int64)] for _ in range(len(grid))]
    starts = np.searchsorted(pairs.row, np.arange(len(codes) + 1))
    for code, (start, stop) in enumerate(pairwise(starts.tolist())):
        for place, own in enumerate(dealt(stop - start, numbers[:, code], rng)):
            of_bin[place].append(start + own)
    own_pairs = tuple(np.concatenate(parts) for parts in of_bin)
    return _finished(sorted_keys, pairs, own_pairs, eligible, of_cells=True)


def attended_pairs(
    sorted_keys: SortedKeys,
    weights: Iterable[Array],
    grid: Grid,
    visible: Visible,
    number: int,
    rngs: Iterable[np.random.Generator],
) -> Iterator[BinPairs]:
    """Pairs of any two keys, for every query head of the grid with the `weights` (keys,) of keys.

    Texts are drawn in proportion to the weight of their queries in the bin.
    """
    low, most = sorted_keys.first_partners("context", 0.0), np.full(len(grid), number)
    eligible = sorted_keys.bins[None, :] < grid.number[:, None]
    texts = _text_weights(sorted_keys, grid)  # (b, t)
    for weight, rng in zip(weights, rngs, strict=True):
        own = sorted_keys.with_weight(weight)
        if visible.is_limited:
            yield _seen_pairs(own, grid, visible, low, most, texts, rng)
        else:
            yield _context_pairs(
                own, grid, PairSampler(own.weight, low), eligible, most, texts, rng
            )


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
    end = own.before(np.searchsorted(own.bins, grid.number))  # (b, t)
    begin = np.broadcast_to(own.before(0), end.shape)
    return _of_rows(own, sampler.draw(begin, end, most, rng, texts), eligible)


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
    first_keys, last_keys = own.before(0), own.before(len(own.bins))  # (1, t) of every text
    none = np.zeros(0, np.int64)
    parts, seen_rows = [Pairs(none, none, none)], [none]
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
        enough = sampler.number(first_keys, last_keys).sum() >= FEWEST_PAIRS
        if enough and len(np.unique(own.text[possible])) >= grid.fewest_texts:
            eligible[place, np.unique(own.code[seen.end > seen.start])] = True
        used = most[place : place + 1] * eligible[place].any()
        weight = None if texts is None else texts[place : place + 1]
        drawn = sampler.draw(first_keys, last_keys, used, rng, weight)
        left, right = seen.start[drawn.later], seen.end[drawn.earlier]
        value = left + rng.random(len(drawn.later)) * (right - left)
        chosen = np.clip(np.searchsorted(before, value, side="right") - 1, 0, len(rows) - 1)
        parts.append(drawn._replace(row=drawn.row + place))
        seen_rows.append(rows[chosen])
    pairs = Pairs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    found = _of_rows(own, pairs, eligible)
    query = np.concatenate(seen_rows)  # (pairs,)
    turned, record = found.W, own.keys.layer.rotation.record
    if record is not None and len(query):
        target = np.repeat(grid.target, [len(part) for part in found.of_bin])  # (pairs,)
        turned = rotate(found.W, grid.queries.position[query], target, record).astype(np.float32)
    at = grid.queries.position[query]  # (pairs,)
    query_facts = {"seen_by": grid.group[query], "seen_from": at, "reach": visible.size}
    return BinPairs(**{**vars(found), "turned": turned, **query_facts})


def _of_rows(own: SortedKeys, pairs: Pairs, eligible: Bools) -> BinPairs:
    """Pairs that were drawn for each bin of queries, a row of the draw."""
    order = np.lexsort((own.code[pairs.later], pairs.row))
    of_bin = np.split(order, np.searchsorted(pairs.row, np.arange(1, len(eligible))))
    return _finished(own, pairs, tuple(of_bin[: len(eligible)]), eligible, of_cells=False)


def _finished(
    own: SortedKeys, pairs: Pairs, of_bin: tuple[Ints, ...], eligible: Bools, *, of_cells: bool
) -> BinPairs:
    """The pairs with the differences of their keys."""
    keys, later = own.keys, pairs.later
    first, second = own.rows[later], own.rows[pairs.earlier]
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
    """(b, t) sums of the weights of the queries of every bin, for the texts of the keys."""
    assert grid.queries.text is not None
    text, number = grid.queries.text, len(own.texts)
    rows = np.concatenate([np.zeros(0, np.int64), *grid.rows])
    bins = np.repeat(np.arange(len(grid)), [len(one) for one in grid.rows])
    if not (number and len(rows)):
        return np.zeros((len(grid), number))
    place = np.minimum(np.searchsorted(own.texts, text[rows]), number - 1)
    weight = np.where(own.texts[place] == text[rows], grid.queries.weight[rows], 0.0)
    return sums_by(weight, bins * number + place, len(grid) * number).reshape(len(grid), number)
