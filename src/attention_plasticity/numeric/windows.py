"""Windows and chunks: which keys a query sees.

Arrays in, arrays out; numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qk_toolkit.arrays import Array


@dataclass(frozen=True)
class Window:
    """A query at t sees the keys in (t − size, t], or the keys of its own chunk up to t."""

    size: int  # tokens
    chunked: bool = False

    def end_position(self, key_position: Array) -> Array:
        """(keys,) queries at this position or later do not see a key."""
        if self.chunked:
            return (np.floor(key_position / self.size) + 1.0) * self.size
        return key_position + self.size

    def visible(self, position: Array) -> Array:
        """(n,) number of keys that queries at `position` (n,) see, with their own."""
        if self.chunked:
            return position % self.size + 1
        return np.minimum(position + 1, self.size)
