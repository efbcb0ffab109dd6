"""The rotation of vectors by RoPE, with the rotary record of their layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qk_toolkit.arrays import Vectors

if TYPE_CHECKING:  # the rotation needs numpy alone
    from qk_dump.layers import RotaryRecord

_BLOCK = 512  # rows whose angles are in memory at the same time


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
