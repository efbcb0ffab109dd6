"""Which keys a query sees, by the window or the chunks of its layer."""

from __future__ import annotations

from typing import Any


def first_visible(position: Any, window: int | None, chunked: bool) -> Any:
    """(n,) the first key that the query at each `position` (n,) sees; the last one is its own.

    `window` counts tokens: a query sees the last `window` of them, its own included. With `chunked`
    it sees those of its own chunk of `window` tokens. Positions are a numpy array or a tensor.
    """
    if window is None:
        return position - position
    first = position - position % window if chunked else position - window + 1
    return first * (first > 0)
