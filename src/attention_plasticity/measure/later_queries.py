"""The rows of one text, and the later queries for which its keys are ranked.

Rows have weights: a captured row stands for tokens that were not
captured. A row of weight 2 counts as the same row listed twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from attention_plasticity.estimate.sizes import SINK_TOKENS
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.read.rows import Rows
from qk_toolkit.arrays import Array, Bools, Ints


class TextRows(NamedTuple):
    """Keys, or queries of one head; mostly those of one text."""

    vectors: Array  # (n, d) after RoPE, with its factor on cos and sin
    position: Array  # (n,)
    weight: Array  # (n,) tokens that each row stands for

    @classmethod
    def of(cls, rows: Rows, kept: Ints | Bools) -> TextRows:
        """Some of the rows that were read, with vectors in their own scale."""
        vectors = np.ldexp(rows.after[kept].astype(np.float64), rows.exponent)
        return cls(vectors, rows.position[kept], rows.weight[kept])


@dataclass(frozen=True)
class LaterQueries:
    """The queries of a text that count: those at positions `first` to `end − 1`."""

    first: int
    end: int  # tokens of the text
    near: int = 128  # keys at smaller distances are kept anyway
    visible: Visible = field(default_factory=Visible)

    def see(self, query: Array, key: Array) -> Bools:
        """(m, n) which queries (m,) see which keys (n,), not near; without the first four keys."""
        seen = (query[:, None] - key >= self.near) & (key >= SINK_TOKENS)
        return np.asarray(seen & (query[:, None] < self.visible.end(key)))

    def number(self, key: Array, start: int, end: int) -> Array:
        """(n,) queries at `start` to `end − 1` that see keys (n,), not near."""
        low = np.maximum(key + self.near, max(start, self.first))  # (n,)
        high = np.minimum(self.visible.end(key), min(end, self.end))  # (n,)
        return np.asarray(np.maximum(high - low, 0.0))
