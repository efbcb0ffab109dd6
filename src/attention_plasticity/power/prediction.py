"""Standard errors to expect with other numbers of texts, queries, keys and key pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.errors.variance_parts import VarianceParts

Array = npt.NDArray[np.float64]

_FACTORS = (1, 2, 4, 8, 16)
_ROW_FACTORS = (*_FACTORS, 32, 64, 128, 256)  # rows cost little compared with texts


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
