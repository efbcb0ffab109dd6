"""Sampled queries with their attention columns, and which keys they can see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qk_dump.attention_columns import AttentionRows, first_distances
from qk_toolkit.arrays import Array, Bools

ROUNDING = 1e-2  # of logits, of entropies, and of the sum of all weights of a query
_RELATIVE_ROUNDING = 2.0**-7  # of logits and entropies; a bfloat16 is rounded by half of it


@dataclass(frozen=True)
class LayerAttention:
    """The attention of a layer, as far as `dump.json` has it."""

    chunked: bool = False  # the window is a chunk
    learned_sinks: bool | None = None  # None: not known
    softcap: float | None = None


UNKNOWN_ATTENTION = LayerAttention()


class Rule(NamedTuple):
    """A limit of a column, and the rows that break it."""

    column: str
    broken: Bools  # (n,)
    reason: Callable[[int], str]  # of a row


@dataclass(frozen=True)
class Queries:
    """The columns of n queries, and which keys these see."""

    rows: AttentionRows
    position: Array  # (n,) whole numbers
    window: int | None
    layer: LayerAttention

    @cached_property
    def visible(self) -> Array:
        """(n,) number of keys that a query can see."""
        if self.window is None:
            return self.position + 1
        if self.layer.chunked:
            return self.position % self.window + 1
        return np.minimum(self.position + 1, self.window)

    @cached_property
    def starts(self) -> Array:
        """(bins,) smallest distance of every bin."""
        return np.array(first_distances(self.rows.mass_by_distance.shape[1]), np.float64)

    @cached_property
    def sizes(self) -> Array:
        """(bins,) number of distances in every bin; the last one has no end."""
        return np.append(np.diff(self.starts), np.inf)

    @cached_property
    def last_bin(self) -> npt.NDArray[np.intp]:
        """(n,) the bin of the farthest visible key."""
        return self.bin_of(self.visible - 1)

    @cached_property
    def last_keys(self) -> Array:
        """(n,) number of visible keys in this bin; in all bins before it, every key is visible."""
        return self.visible - self.starts[self.last_bin]

    @cached_property
    def last_mass(self) -> npt.NDArray[np.float32]:
        """(n,) weight of this bin."""
        return self.rows.mass_by_distance[np.arange(len(self.position)), self.last_bin]

    @cached_property
    def sums(self) -> Array:
        """(n, 1 + bins) weight of the bins before each bin, then of all."""
        masses = self.rows.mass_by_distance
        sums = np.zeros((len(masses), 1 + masses.shape[1]))
        np.cumsum(masses, axis=1, out=sums[:, 1:])
        return sums

    @property
    def total(self) -> Array:
        """(n,) the sum M of the weights."""
        return self.sums[:, -1]

    def bin_of(self, distance: Array) -> npt.NDArray[np.intp]:
        """(n,) the bin of a distance, the first one for negative distances."""
        return np.maximum(np.searchsorted(self.starts, distance, side="right") - 1, 0)

    def weight_from(self, bins: npt.NDArray[np.intp]) -> Array:
        """(n,) weight of a bin and all farther ones."""
        return self.total - self.sums[np.arange(len(bins)), bins]

    @cached_property
    def gap(self) -> Array:
        """(n,) lse − max_logit."""
        return self.rows.lse.astype(np.float64) - self.rows.max_logit

    @cached_property
    def logit_rounding(self) -> Array:
        """(n,) rounding of the gap."""
        size = np.maximum(np.abs(self.rows.lse), np.abs(self.rows.max_logit))
        return ROUNDING + _RELATIVE_ROUNDING * size.astype(np.float64)

    @cached_property
    def largest_weight(self) -> tuple[Array, Array]:
        """(n,) least and most of p₁ = exp(max_logit − lse), the largest weight."""
        with np.errstate(over="ignore", under="ignore"):
            return (
                np.exp(-self.gap - self.logit_rounding),
                np.exp(-self.gap + self.logit_rounding),
            )

    def first_token_bounds(self, tokens: int) -> tuple[Array, Array]:
        """(n,) least and most weight of the first tokens of a text.

        A key at distance d is token p − d. Bins with no distance below that of the last of these
        tokens have only these tokens. Bins with such a distance among the visible ones can have
        them, other bins cannot.
        """
        nearest = self.position - (tokens - 1)  # (n,) distance of the last one, negative if later
        first = self.bin_of(nearest)  # with the last one
        most = np.where(self.visible > nearest, self.weight_from(first), 0.0)
        return self.weight_from(first + (self.starts[first] < nearest)), most

    @cached_property
    def entropy_rounding(self) -> Array:
        """(n,) rounding of the entropy."""
        return ROUNDING + _RELATIVE_ROUNDING * np.abs(self.rows.entropy).astype(np.float64)
