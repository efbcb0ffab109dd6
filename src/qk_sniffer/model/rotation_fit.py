"""Compare vectors at known positions with a rotary record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qk_dump.rotary import Pairing, RotaryRecord, pair_dimensions, rotate

Floats = npt.NDArray[np.float64]

_ANGLE_ROUNDING = 2.0**-22  # of an angle that the model computes in float32, relative to it
_SMALL = 0.1  # share of the mean length of a pair that counts where a pair is shorter


@dataclass(frozen=True)
class Misfit:
    """How far vectors are from a rotation."""

    error: float  # the largest of all pairs, relative to the allowed error; above 1: no fit
    factor: float  # median length of a vector relative to its rotated source


NO_FIT = Misfit(np.inf, 1.0)


def misfit(
    source: Floats,
    positions: Floats,
    target: Floats,
    record: RotaryRecord,
    rounding: float,
    pairing: Pairing | None = None,
) -> Misfit:
    """Compare `target` (n, d) with `source` (n, d), rotated from position 0 to `positions` (n,).

    Each row may have a factor of its own, such as that of a norm after RoPE. `rounding` is the
    allowed error of a pair relative to its length. The pairs of `target` may be arranged in
    another way, `pairing`.
    """
    predicted = np.asarray(rotate(source, 0, positions, record), np.float64)  # (n, d)
    arranged = RotaryRecord(record.frequencies, record.start, pairing or record.pairing)
    predicted = _rearranged(predicted, record, arranged)
    with np.errstate(all="ignore"):
        factors = (predicted * target).sum(1) / (predicted**2).sum(1)  # (n,)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            return NO_FIT
        error = target - factors[:, None] * predicted  # (n, d)
    errors, lengths = _by_pair(error, arranged), _by_pair(target, arranged)  # (pairs + 1,) each
    frequencies = np.array([*record.frequencies, 0.0])  # (pairs + 1,); the rest does not turn
    angles = np.abs(positions).max() * np.abs(frequencies) * _ANGLE_ROUNDING
    usual = np.sqrt((lengths**2).mean())
    allowed = (rounding + angles) * np.maximum(lengths, _SMALL * usual)
    if not usual > 0:
        return NO_FIT
    return Misfit(float((errors / allowed).max()), float(np.median(factors)))


def _rearranged(vectors: Floats, one: RotaryRecord, other: RotaryRecord) -> Floats:
    if one.pairing == other.pairing:
        return vectors
    result = vectors.copy()
    for before, after in zip(pair_dimensions(one), pair_dimensions(other), strict=True):
        result[:, after] = vectors[:, before]
    return result


def _by_pair(vectors: Floats, record: RotaryRecord) -> Floats:
    """Lengths (pairs + 1,) over all rows of every pair, and of the dimensions that do not turn."""
    squares = (vectors**2).sum(0)  # (d,)
    first, second = pair_dimensions(record)
    pairs = squares[first] + squares[second]  # (pairs,)
    rest = np.delete(squares, slice(record.start, record.end)).sum()
    lengths: Floats = np.sqrt(np.append(pairs, rest))
    return lengths
