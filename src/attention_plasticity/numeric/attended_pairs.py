"""Key pairs in proportion to the attention that their keys receive.

Arrays in, arrays out; numpy only. Both keys of a pair belong to one text. The probability of a text
is proportional to the weight of the queries of this text in the query bucket. Within a text, the
probability of a pair is proportional to the product of the weights of its two keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from attention_plasticity.numeric.key_pairs import KeyIndex, KeyPairs
from attention_plasticity.numeric.pair_pool import PairPool, keys_with_partner, times_others
from qk_toolkit.arrays import Array, Bools, Ints

FIRST_TOKENS = 4  # of a text; they are left out
_LEAST = 2.0**-149  # attention; smaller values are zero in float32


@dataclass(frozen=True)
class KeyAttention:
    """Weights of keys: the attention that a key receives over the probability of its row."""

    weight: Array  # (keys,); 0 for the first tokens of a text
    queries: Ints | None = None  # (keys,) later queries that the attention comes from

    @classmethod
    def of(
        cls, attention: Array, weight: Array, position: Array, queries: Ints | None = None
    ) -> KeyAttention:
        """From the attention of keys (n,) and the numbers of tokens that they stand for."""
        known = (position >= FIRST_TOKENS) & (attention >= _LEAST)
        return cls(np.where(known, attention * weight, 0.0), queries)


class AttendedKeys:
    """The keys of a head that receive attention, sorted by text."""

    def __init__(self, index: KeyIndex, attention: KeyAttention) -> None:
        order = index.by_position
        self._rows = order[attention.weight[order] > 0]  # (n,)
        self._codes = index.codes[self._rows]
        self._texts = index.examples[self._rows]
        self._weight = attention.weight[self._rows]
        self._queries = None if attention.queries is None else attention.queries[self._rows]

    def pool(self, eligible: Bools, text_weight: Array) -> AttendedPool:
        """The possible pairs of keys in the eligible key buckets.

        `text_weight` (texts,) are the weights of the queries of every text of the keys. Texts
        without queries or with one key have no pairs.
        """
        kept = np.flatnonzero(eligible[self._codes] & (text_weight[self._texts] > 0))
        paired, sizes = keys_with_partner(self._texts[kept])
        kept = kept[paired]
        pool = PairPool.of(self._rows[kept], self._codes[kept], self._weight[kept], sizes)
        weight = text_weight[self._texts[kept[pool.text.starts]]]  # (texts,)
        share = weight / weight.sum() if len(weight) else weight
        return AttendedPool(pool, share, None if self._queries is None else self._queries[kept])


@dataclass(frozen=True)
class AttendedPool:
    """Keys from which the pairs of one query bucket are drawn, and numbers of later queries."""

    keys: PairPool
    share: Array  # (texts,) probability of each text
    queries: Ints | None  # (n,) later queries of the keys

    @property
    def effective_pairs(self) -> float:
        """1 / Σ P² over all possible pairs; NaN if there is none."""
        pool = self.keys
        if len(pool.rows) == 0:
            return float("nan")
        concentration = pool.text.sums(times_others(pool.weight**2, pool.text, pool.largest))
        return float(1.0 / (self.share**2 @ (2.0 * concentration / pool.total**2)))

    @property
    def later_queries(self) -> float:
        """Mean number of later queries of a drawn key; NaN if it is not known or has no pair."""
        if len(self.keys.rows) == 0 or self.queries is None:
            return float("nan")
        return float(self.share @ self.keys.text.sums(self.keys.first * self.queries))

    def draw(self, number: int, rng: np.random.Generator) -> KeyPairs:
        """Draw `number` pairs; none if there is no possible pair.

        Texts are drawn in strata, so that a text has its expected number of pairs up to one.
        """
        if not len(self.share):
            number = 0
        place = (np.arange(number) + rng.random(number)) / max(1, number)
        text = np.searchsorted(np.cumsum(self.share), place, side="right")
        return self.keys.draw_of(np.minimum(text, len(self.share) - 1), rng)


@dataclass(frozen=True)
class AttendedDraw:
    """Draws the pairs of one query bucket after the other, and records the sizes of the pools."""

    keys: AttendedKeys
    text_weight: Array  # (query buckets, texts)
    num_pairs: int
    per_key_bucket: bool  # `num_pairs` for every eligible key bucket, or for all of them
    rng: np.random.Generator
    effective_pairs: list[float] = field(default_factory=list)
    later_queries: list[float] = field(default_factory=list)

    def draw(self, eligible: Bools) -> KeyPairs:
        """The pairs of the next query bucket, with these eligible key buckets."""
        pool = self.keys.pool(eligible, self.text_weight[len(self.effective_pairs)])
        self.effective_pairs.append(pool.effective_pairs)
        self.later_queries.append(pool.later_queries)
        factor = int(eligible.sum()) if self.per_key_bucket else 1
        return pool.draw(self.num_pairs * factor, self.rng)


def in_units_of_text(weight: Array, text: Ints) -> Array:
    """(keys,) weights over the largest one of their text; `text` has the numbers of the texts."""
    largest = np.zeros(int(text.max(initial=-1)) + 1)
    np.maximum.at(largest, text, weight)
    largest[largest == 0] = 1.0
    return np.asarray(weight / largest[text])


def text_weights(
    code: Ints, query_buckets: int, text: Ints, weight: Array, key_text: Ints
) -> Array:
    """(query buckets, texts of the keys) sums of the weights of queries.

    Queries have a bucket code (−1: not used), a text and a weight; `key_text` are the texts of the
    keys.
    """
    texts = np.unique(key_text)
    place = np.minimum(np.searchsorted(texts, text), len(texts) - 1)
    used = np.flatnonzero((code >= 0) & (texts[place] == text))
    slot = code[used] * len(texts) + place[used]
    sums = np.bincount(slot, weight[used], query_buckets * len(texts))
    return np.asarray(sums, np.float64).reshape(query_buckets, len(texts))
