"""Which keys a query sees: all earlier ones, a sliding window, or the keys of its chunk.

Arrays in, arrays out; numpy only. Positions are counted in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qk_toolkit.arrays import Array


@dataclass(frozen=True)
class Visible:
    """A query at t sees the keys in (t − size, t], or those of its own chunk up to t."""

    size: int | None = None  # tokens; None: all earlier keys
    chunked: bool = False

    @property
    def is_limited(self) -> bool:
        """Whether queries do not see all earlier keys."""
        return self.size is not None

    def end(self, key_position: Array) -> Array:
        """(keys,) queries at this position or later do not see a key."""
        if self.size is None:
            return np.full(np.shape(key_position), np.inf)
        if self.chunked:
            return (np.floor(key_position / self.size) + 1.0) * self.size
        return key_position + self.size

    def number(self, position: Array) -> Array:
        """(n,) number of keys that queries at `position` (n,) see, with their own."""
        if self.size is None:
            return position + 1
        if self.chunked:
            return position % self.size + 1
        return np.minimum(position + 1, self.size)
