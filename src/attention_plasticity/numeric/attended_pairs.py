"""Key pairs in proportion to the attention that their keys receive.

Arrays in, arrays out; numpy only. Both keys of a pair belong to one text. The probability of a text
is that of `context` pairs: proportional to its number of pairs. Within a text, the probability of a
pair is proportional to the product of the attention of its two keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.attention_received import Received
from attention_plasticity.numeric.key_pairs import KeyIndex, KeyPairs
from attention_plasticity.numeric.pair_pool import PairPool, keys_with_partner, times_others

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_LEAST = 2.0**-149  # attention; smaller values are zero in float32


class AttendedKeys:
    """The keys of a head that receive attention, sorted by text."""

    def __init__(self, index: KeyIndex, received: Received) -> None:
        order = index.by_position
        self._rows = order[received.attention[order] >= _LEAST]  # (n,)
        self._codes = index.codes[self._rows]
        self._texts = index.examples[self._rows]
        self._attention = received.attention[self._rows]
        self._queries = received.queries[self._rows]

    def pool(self, eligible: Bools) -> AttendedPool:
        """The possible pairs of keys in the eligible key buckets."""
        kept = np.flatnonzero(eligible[self._codes])
        paired, sizes = keys_with_partner(self._texts[kept])
        kept = kept[paired]
        pool = PairPool.of(self._rows[kept], self._codes[kept], self._attention[kept], sizes)
        return AttendedPool(pool, self._queries[kept])


@dataclass(frozen=True)
class AttendedPool:
    """Keys from which the pairs of one query bucket are drawn, and numbers of later queries."""

    keys: PairPool
    queries: Ints  # (n,) later queries of the keys

    @property
    def _shares(self) -> Array:
        """(texts,) probability of each text."""
        pairs = self.keys.pairs
        return np.asarray(pairs / pairs.sum())

    @property
    def effective_pairs(self) -> float:
        """1 / Σ P² over all possible pairs; NaN if there is none."""
        pool = self.keys
        if len(pool.rows) == 0:
            return float("nan")
        concentration = pool.text.sums(times_others(pool.weight**2, pool.text, pool.largest))
        return float(1.0 / (self._shares**2 @ (2.0 * concentration / pool.total**2)))

    @property
    def later_queries(self) -> float:
        """Mean number of later queries of a drawn key; NaN if there is no pair."""
        if len(self.keys.rows) == 0:
            return float("nan")
        return float(self._shares @ self.keys.text.sums(self.keys.first * self.queries))

    def draw(self, number: int, rng: np.random.Generator) -> KeyPairs:
        """Draw `number` pairs independently; none if there is no possible pair."""
        return self.keys.draw_of(self.keys.texts_by_pairs(number, rng), rng)


@dataclass(frozen=True)
class AttendedDraw:
    """Draws the pairs of one query bucket after the other, and records the sizes of the pools."""

    keys: AttendedKeys
    num_pairs: int
    per_key_bucket: bool  # `num_pairs` for every eligible key bucket, or for all of them
    rng: np.random.Generator
    effective_pairs: list[float] = field(default_factory=list)
    later_queries: list[float] = field(default_factory=list)

    def draw(self, eligible: Bools) -> KeyPairs:
        """The pairs of the next query bucket, with these eligible key buckets."""
        pool = self.keys.pool(eligible)
        self.effective_pairs.append(pool.effective_pairs)
        self.later_queries.append(pool.later_queries)
        factor = int(eligible.sum()) if self.per_key_bucket else 1
        return pool.draw(self.num_pairs * factor, self.rng)
