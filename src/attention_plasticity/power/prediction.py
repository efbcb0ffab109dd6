"""Standard errors to expect with other numbers of texts, queries, keys and key pairs.

Rows of a run: whether they are enough for predictions, and what to capture if not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from attention_plasticity.numeric.errors.variance_parts import VarianceParts
from qk_toolkit.arrays import Array

_FACTORS = (1, 2, 4, 8, 16)
_ROW_FACTORS = (*_FACTORS, 32, 64, 128, 256)  # rows cost little compared with texts
LEAST_QUERIES = 8  # per query bucket; below, predictions were wrong by up to 2.4 times
LEAST_PAIRS = 4  # per key bucket

# The rule of the sampler `auto` of a capture.
_BUCKETS = 16
_QUERIES_PER_BUCKET = 128  # of all texts
_KEYS_PER_QUERY = 4


@dataclass(frozen=True)
class Change:
    """Factors by which a sample grows. More texts bring more queries and keys in proportion."""

    texts: float = 1.0
    queries: float = 1.0  # per text
    keys: float = 1.0  # per text
    pairs: float = 1.0  # per key bucket

    @property
    def cost(self) -> tuple[float, float, float, float]:
        """Changes are compared by texts first, then by rows per text, then by pairs.

        More texts need more passes of the model. More queries or keys need a new capture. More
        pairs need only a new analysis.
        """
        rows = max(self.queries, self.keys)
        return self.texts, rows, self.queries * self.keys, self.pairs

    def __str__(self) -> str:
        rows = [("queries of every text", self.queries), ("keys of every text", self.keys)]
        if self.queries == self.keys:
            rows = [("queries and keys of every text", self.keys)]
        parts = [
            f"{_times(factor)} the {name}"
            for name, factor in (("texts", self.texts), *rows, ("key pairs", self.pairs))
            if factor != 1.0
        ]
        return " and ".join(parts) or "the same sample"


@dataclass(frozen=True)
class Limits:
    """The largest factors for rows of a text: no capture can keep more rows than tokens."""

    queries: float = math.inf
    keys: float = math.inf

    def allow(self, change: Change) -> bool:
        """Whether the texts have enough tokens for the change."""
        return change.queries <= self.queries and change.keys <= self.keys


NO_LIMITS = Limits()


def typical_error(heads: Sequence[VarianceParts], change: Change, deviations: float = 0.0) -> float:
    """Standard error of the plasticity of a head after a change of the sample.

    The root of the mean over heads of the squared error. The parts of texts and keys are uncertain
    in a single head, so they are averaged over heads before they are cut at zero. `deviations` is
    a number of standard errors that is added to the part of the texts.
    """
    by_group = np.mean([parts.by_group for parts in heads], axis=0)  # (g,)
    texts = float(by_group.sum()) + deviations * _deviation_of_sum(by_group)
    keys = math.fsum(parts.keys for parts in heads) / len(heads)
    queries = math.fsum(parts.queries for parts in heads) / len(heads)
    pairs = math.fsum(_predicted_pairs(parts, change) for parts in heads) / len(heads)
    return math.sqrt(
        max(0.0, texts) / change.texts
        + queries / (change.texts * change.queries)
        + max(0.0, keys) / (change.texts * change.keys)
        + pairs
    )


def error_range(heads: Sequence[VarianceParts], change: Change) -> tuple[float, float]:
    """Lowest and highest typical error: with the part of the texts ± 2 of its standard errors."""
    return typical_error(heads, change, -2.0), typical_error(heads, change, 2.0)


def _deviation_of_sum(by_group: Array) -> float:
    """Standard error of the sum over groups of texts, from the spread between them."""
    found = by_group[by_group != 0]
    if len(found) < 2:
        return 0.0
    return float(np.std(found, ddof=1) * math.sqrt(len(found)))


def _predicted_pairs(parts: VarianceParts, change: Change) -> float:
    """The part of the pairs after a change; new keys make new pairs possible."""
    available = np.array(parts.available, np.float64)  # (buckets,)
    more = available * change.texts * change.keys**2
    drawn = np.minimum(available, parts.pairs_per_bucket).sum()
    then = np.minimum(more, parts.pairs_per_bucket * change.pairs).sum()
    return float(parts.pairs * drawn / then) if then > 0 else 0.0


def cheapest_change(
    heads: Sequence[VarianceParts], wanted: float, limits: Limits = NO_LIMITS
) -> Change | None:
    """The cheapest change with a typical error of at most `wanted`; None if there is none."""
    return next(
        (change for change in _by_cost(limits) if typical_error(heads, change) <= wanted), None
    )


def _by_cost(limits: Limits) -> Iterator[Change]:
    changes = (
        Change(texts, queries, keys, pairs)
        for texts, queries, keys, pairs in product(_FACTORS, _ROW_FACTORS, _ROW_FACTORS, _FACTORS)
    )
    yield from sorted(filter(limits.allow, changes), key=lambda change: change.cost)


def _times(factor: float) -> str:
    words = {2.0: "twice", 4.0: "four times"}
    return words.get(factor, f"{factor:g} times")


@dataclass(frozen=True)
class RowCounts:
    """Rows of a head of a run, as means over heads."""

    texts: int
    queries: float  # per text
    keys: float  # per text
    tokens: float = math.inf  # per text; infinite if it is not known
    bucket_queries: float = 0.0  # median over query buckets
    bucket_pairs: float = 0.0  # median over key buckets, of possible pairs

    @classmethod
    def of(cls, heads: Sequence[VarianceParts], texts: int, tokens: float) -> RowCounts:
        """Rows of heads whose parts of the error are known; `tokens` is the mean of the texts."""
        texts = max(texts, *(parts.n_texts for parts in heads))
        return cls(
            texts=texts,
            queries=float(np.mean([parts.n_queries for parts in heads])) / texts,
            keys=float(np.mean([parts.n_keys for parts in heads])) / texts,
            tokens=tokens,
            bucket_queries=float(np.mean([_median(one.queries_per_bucket) for one in heads])),
            bucket_pairs=float(np.mean([_median(one.available) for one in heads])),
        )

    @property
    def few(self) -> bool:
        """Whether errors of other samples cannot be predicted."""
        return self.bucket_queries < LEAST_QUERIES or self.bucket_pairs < LEAST_PAIRS

    @property
    def limits(self) -> Limits:
        """How many times more rows the texts have."""
        return Limits(max(1.0, self.tokens / self.queries), max(1.0, self.tokens / self.keys))

    def advice(self) -> str:
        """What to capture instead of so few rows."""
        rate = max(1.0, _QUERIES_PER_BUCKET / self.texts)  # per bucket and text
        queries = min(self.tokens, _BUCKETS * rate)
        keys = min(self.tokens, _BUCKETS * rate * _KEYS_PER_QUERY)
        if self.queries >= 0.95 * self.tokens and self.keys >= 0.95 * self.tokens:
            return "All tokens of the texts are captured: use more texts or longer ones."
        if queries <= self.queries and keys <= self.keys:
            return (
                "The buckets are too small: capture the same texts with capture.sampler.type auto "
                "and without min_bucket_size."
            )
        return (
            "First capture more rows of the same texts: capture.sampler.type auto "
            f"keeps about {queries:,.0f} queries and {keys:,.0f} keys of every text (now "
            f"{self.queries:,.0f} and {self.keys:,.0f}). With another type, set "
            f"capture.sampler.base_rate to {rate:.3g} and key_base_rate to "
            f"{_KEYS_PER_QUERY * rate:.3g}. Then use power again: from so few rows it cannot tell "
            "whether more texts would help more."
        )


def _median(values: Sequence[int]) -> float:
    return float(np.median(values)) if len(values) else 0.0
