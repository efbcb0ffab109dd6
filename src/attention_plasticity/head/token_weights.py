"""Weights of the rows of a head: the inverse of the probability that a token was kept.

With these weights a mean over rows estimates the mean over all tokens, for every sampler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from qk_dump.keep_probabilities import keep_probabilities
from qk_dump.layout import Dump, Kind
from qk_dump.manifest import DumpManifest
from qk_dump.reader import HeadRows
from qk_toolkit.arrays import Array


@dataclass(frozen=True)
class TokenWeights:
    """The probability π with which each row was kept, and its weight 1/π."""

    probability: Array  # (n,) that the row is in the file and in the subsample of the analysis
    problem: str | None = None  # why the sampler is not known; all weights are then 1

    @cached_property
    def weight(self) -> Array:
        """(n,) tokens that each row stands for; 1 if the sampler is not known."""
        if self.problem is not None:
            return np.ones(len(self.probability))
        return np.asarray(1.0 / self.probability)

    @cached_property
    def is_constant(self) -> bool:
        """Whether all rows have the same weight."""
        return len(self.weight) == 0 or bool((self.weight == self.weight[0]).all())

    def of(self, rows: npt.NDArray[np.intp]) -> TokenWeights:
        """The weights of some rows."""
        return replace(self, probability=self.probability[rows])


def token_weights(dump: Dump, kind: Kind, rows: HeadRows) -> TokenWeights:
    """Weights of the queries (`q`) or keys (`k`) that were read from a head.

    `dump.json` has the sampler of the capture. `max_tokens_per_head` keeps a further share of the
    rows, the same for every row.
    """
    found = keep_probabilities(dump.manifest, kind, rows.position)
    if found.values is None:
        return TokenWeights(np.full(len(rows), rows.subsampled), found.reason)
    return TokenWeights(found.values * rows.subsampled)


def unknown_weights(n: int) -> TokenWeights:
    """Weights 1, for rows that come from no dump."""
    return TokenWeights(np.ones(n), "the rows come from no dump")


def why_no_weights(manifest: DumpManifest | None) -> str | None:
    """Why the rows of a dump have no weights; None if they have."""
    reasons = (keep_probabilities(manifest, kind, np.zeros(0)).reason for kind in ("q", "k"))
    return next((reason for reason in reasons if reason is not None), None)
