"""What the query heads of a key head share: pairs, and sums over keys.

The heads of a group usually have queries at the same places. Pairs that depend on these places are
drawn again if they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from attention_plasticity.read.rows import Queries

T = TypeVar("T")


class Shared:
    """Results that were computed for an earlier query head of the group."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, ...]] = {}

    def get(self, name: str, queries: Queries | None, make: Callable[[], T]) -> T:
        """The result `name`. It is computed again for queries at other places."""
        places = () if queries is None else _places(queries)
        known = self._known.get(name)
        if known is not None and _equal(known[1], places):
            found: T = known[0]
            return found
        made = make()
        self._known[name] = (made, places)
        return made


def _places(queries: Queries) -> tuple[Any, ...]:
    return queries.position, queries.text, queries.weight, queries.visible


def _equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        for a, b in zip(one, other, strict=True)
    )
