"""Numbers and lists as text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby


def count(number: int, thing: str) -> str:
    """`1 head`, `2 heads`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def with_half(value: float, half: float) -> str:
    """`0.6871 ± 0.0061`: half of an interval has two digits, and the value as many decimals."""
    decimals = _decimals_of(half)
    return f"{round(value, decimals) + 0.0:.{decimals}f} ± {two_digits(half)}"  # no "-0.000"


def two_digits(half: float) -> str:
    """Half of an interval: `0.0061`."""
    return f"{half:.{_decimals_of(half)}f}"


def _decimals_of(half: float) -> int:
    """The decimals with which half of an interval has two digits; 3 if it is 0."""
    if half == 0:
        return 3
    exponent = int(f"{half:.1e}".partition("e")[2])  # after rounding: 0.0996 is 0.10
    return max(0, 1 - exponent)


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def index_ranges(indices: Iterable[int]) -> str:
    """`0-3,8` for 0, 1, 2, 3, 8: the notation that settings take."""
    runs = index_runs(indices)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def index_runs(indices: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive indices."""
    runs: list[tuple[int, int]] = []
    for index in sorted(indices):
        if runs and index <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return runs


def format_heads(heads: Iterable[tuple[int, int]]) -> str:
    """Heads as short text, grouped by layers: `layer 0: 0-3; layers 2-5: 1`."""
    by_layer = groupby(sorted(heads), key=lambda item: item[0])
    listed = [(layer, index_ranges(head for _, head in members)) for layer, members in by_layer]
    parts = []
    for indices, members in groupby(listed, key=lambda item: item[1]):
        layers = [layer for layer, _ in members]
        parts.append(f"layer{'s' * (len(layers) > 1)} {index_ranges(layers)}: {indices}")
    return "; ".join(parts)
