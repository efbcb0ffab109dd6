"""Standard errors to expect with other numbers of texts, queries, keys and key pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from attention_plasticity.numeric.errors.variance_parts import VarianceParts

_FACTORS = (1, 2, 4, 8, 16)


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
        parts = [
            f"{_times(factor)} the {name}"
            for name, factor in (
                ("texts", self.texts),
                ("queries of every text", self.queries),
                ("keys of every text", self.keys),
                ("key pairs", self.pairs),
            )
            if factor != 1.0
        ]
        return " and ".join(parts) or "the same sample"


def _predicted_parts(parts: VarianceParts, change: Change) -> tuple[float, float]:
    """The part of the texts, and all other parts, after a change of the sample."""
    available = np.array(parts.available, np.float64)
    more = available * change.texts * change.keys**2
    drawn = np.minimum(available, parts.pairs_per_bucket).sum()
    then = np.minimum(more, parts.pairs_per_bucket * change.pairs).sum()
    others = (
        parts.queries / (change.texts * change.queries)
        + parts.keys / (change.texts * change.keys)
        + (parts.pairs * drawn / then if then > 0 else 0.0)
    )
    return parts.texts / change.texts, others


def typical_error(heads: Sequence[VarianceParts], change: Change) -> float:
    """Standard error of `ap_overall` of a head after a change of the sample.

    The root of the mean over heads of the squared error. The part of the texts is uncertain in a
    single head, so it is averaged over heads before it is cut at zero.
    """
    predicted = [_predicted_parts(parts, change) for parts in heads]
    texts = math.fsum(part for part, _ in predicted)
    others = math.fsum(part for _, part in predicted)
    return math.sqrt((max(0.0, texts) + others) / len(heads))


def cheapest_change(heads: Sequence[VarianceParts], wanted: float) -> Change | None:
    """The cheapest change with a typical error of at most `wanted`; None if there is none."""
    return next((change for change in _by_cost() if typical_error(heads, change) <= wanted), None)


def _by_cost() -> Iterator[Change]:
    changes = [
        Change(texts, queries, keys, pairs)
        for texts, queries, keys, pairs in product(_FACTORS, repeat=4)
    ]
    yield from sorted(changes, key=lambda change: change.cost)


def _times(factor: float) -> str:
    words = {2.0: "twice", 4.0: "four times"}
    return words.get(factor, f"{factor:g} times")
