"""The rotary record of a layer, and the rotation of vectors from their positions to others.

RoPE turns pair m of the rotary dimensions of a vector at position p by the angle p·ω_m. A record
holds the frequencies ω and says which two dimensions form a pair. It describes the vectors of the
dump. The file imports numpy only, so that every part of the toolkit can use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from qk_toolkit.arrays import Vectors

Pairing = Literal["halves", "interleaved"]

_MOST_PAIRS = 2048  # half of the largest width of a vector
_LARGEST_FREQUENCY = 64.0  # larger angles at position 2^20 would lose float32 precision
_SMALLEST_SCALING, _LARGEST_SCALING = 1e-6, 1e6
_BLOCK = 512  # rows whose angles are in memory at the same time


class RotaryError(ValueError):
    """A rotary record that cannot be used."""


@dataclass(frozen=True)
class RotaryRecord:
    """How RoPE turns the vectors of a layer.

    With `halves`, dimension `start + m` and dimension `start + dimensions / 2 + m` form pair m.
    With `interleaved`, dimensions `start + 2m` and `start + 2m + 1` do. Other dimensions do not
    turn. `scaling` is the factor on cos and sin. Vectors captured after RoPE contain it already,
    so `rotate` does not apply it.
    """

    frequencies: tuple[float, ...]  # ω_m in radians per token
    start: int = 0
    pairing: Pairing = "halves"
    scaling: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= len(self.frequencies) <= _MOST_PAIRS:
            raise RotaryError(
                f"frequencies: expected 1 to {_MOST_PAIRS} numbers, got {len(self.frequencies)}"
            )
        for value in self.frequencies:
            if not _is_number(value) or not abs(value) <= _LARGEST_FREQUENCY:  # also NaN
                raise RotaryError(
                    f"frequencies: expected numbers of at most {_LARGEST_FREQUENCY:g}, got "
                    f"{value!r:.40}"
                )
        if type(self.start) is not int or not 0 <= self.start < 2 * _MOST_PAIRS:
            raise RotaryError(f"start: expected a dimension, got {self.start!r:.40}")
        if self.pairing not in get_args(Pairing):
            raise RotaryError(f"pairing: expected halves or interleaved, got {self.pairing!r:.40}")
        if not _is_number(self.scaling) or not (
            _SMALLEST_SCALING <= self.scaling <= _LARGEST_SCALING
        ):
            raise RotaryError(f"scaling: expected a positive number, got {self.scaling!r:.40}")

    @property
    def dimensions(self) -> int:
        """The number of rotary dimensions."""
        return 2 * len(self.frequencies)

    @property
    def end(self) -> int:
        """The first dimension after the rotary dimensions."""
        return self.start + self.dimensions

    def require_width(self, width: int) -> None:
        """Raise a `RotaryError` if vectors of this width do not hold the rotary dimensions."""
        if self.end > width:
            raise RotaryError(
                f"rotary dimensions {self.start} to {self.end - 1} do not fit vectors of {width} "
                "dimensions"
            )

    def to_json(self) -> dict[str, Any]:
        """The record as it stands in `dump.json`."""
        return {
            "frequencies": list(self.frequencies),
            "start": self.start,
            "dimensions": self.dimensions,
            "pairing": self.pairing,
            "scaling": self.scaling,
        }

    @classmethod
    def from_json(cls, content: object) -> RotaryRecord:
        """The record in `dump.json`; unknown fields are ignored. Raises a `RotaryError`."""
        if not isinstance(content, dict):
            raise RotaryError(f"expected an object, got {content!r:.40}")
        frequencies = content.get("frequencies")
        if not isinstance(frequencies, list):
            raise RotaryError(f"frequencies: expected a list, got {frequencies!r:.40}")
        record = cls(
            tuple(frequencies),
            content.get("start", 0),
            content.get("pairing", "halves"),
            content.get("scaling", 1.0),
        )
        dimensions = content.get("dimensions", record.dimensions)
        if type(dimensions) is not int or dimensions != record.dimensions:
            raise RotaryError(
                f"dimensions: expected {record.dimensions}, two per frequency, got "
                f"{dimensions!r:.40}"
            )
        return record


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def rotate(
    vectors: npt.ArrayLike,
    positions: npt.ArrayLike,
    targets: npt.ArrayLike,
    record: RotaryRecord,
) -> Vectors:
    """Vectors (n, d) at `positions` (n,), turned to `targets` (n,) or to one target.

    Pair m of a vector is turned by ω_m · (target − position). To undo RoPE, use target 0. Angles
    are computed in float64. float64 vectors stay float64, others become float32; their error is
    that of float32 rounding up to position 2^20.
    """
    given = np.asarray(vectors)
    precision: type[np.floating[Any]] = np.float64 if given.dtype == np.float64 else np.float32
    result: Vectors = np.array(given, dtype=precision)
    if result.ndim != 2:
        raise ValueError(f"vectors: expected two axes (n, d), got {result.ndim}")
    record.require_width(result.shape[1])
    steps = np.asarray(targets, np.float64) - np.asarray(positions, np.float64)
    steps = np.broadcast_to(steps, len(result))  # (n,)
    frequencies = np.array(record.frequencies, np.float64)  # (m,)
    first, second = pair_dimensions(record)
    different, number = np.unique(steps, return_inverse=True)
    known = None  # steps are often equal; their angles are then computed once
    if 2 * len(different) <= len(steps):
        known = _cos_and_sin(different, frequencies, precision)
    for begin in range(0, len(result), _BLOCK):
        rows = result[begin : begin + _BLOCK]  # (block, d), a view
        if known is None:
            cos, sin = _cos_and_sin(steps[begin : begin + _BLOCK], frequencies, precision)
        else:
            cos, sin = (table[number[begin : begin + _BLOCK]] for table in known)
        a, b = rows[:, first], rows[:, second]  # (block, m) views
        a_turned = a * cos - b * sin
        rows[:, second] = a * sin + b * cos
        rows[:, first] = a_turned
    return result


def _cos_and_sin(
    steps: npt.NDArray[np.float64],
    frequencies: npt.NDArray[np.float64],
    precision: type[np.floating[Any]],
) -> tuple[Vectors, Vectors]:
    """(n, m) each, of the angles step · frequency."""
    turns = steps[:, None] * (frequencies / (2.0 * np.pi))  # (n, m)
    turns -= np.rint(turns)  # whole turns change nothing; the rest is exact enough for float32
    angles = turns.astype(precision)
    angles *= precision(2.0 * np.pi)
    return np.cos(angles), np.sin(angles)


def pair_dimensions(record: RotaryRecord) -> tuple[slice, slice]:
    """The first and the second dimensions of all pairs, in the order of the frequencies."""
    if record.pairing == "interleaved":
        return slice(record.start, record.end, 2), slice(record.start + 1, record.end, 2)
    middle = record.start + len(record.frequencies)
    return slice(record.start, middle), slice(middle, record.end)
