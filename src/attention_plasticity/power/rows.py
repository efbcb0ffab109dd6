"""Rows of a run: whether they are enough for predictions, and what to capture if not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attention_plasticity.numeric.errors.variance_parts import VarianceParts
from attention_plasticity.power.prediction import Limits

LEAST_QUERIES = 8  # per query bucket; below, predictions were wrong by up to 2.4 times
LEAST_PAIRS = 4  # per key bucket

# The rule of the sampler `auto` of a capture.
_BUCKETS = 16
_QUERIES_PER_BUCKET = 128  # of all texts
_KEYS_PER_QUERY = 4


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
