"""Compare vectors at known positions with a rotary record.

How RoPE turns the vectors of a layer: a rotary record, or the reason why there is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from qk_dump.rotary import Pairing, RotaryError, RotaryRecord, pair_dimensions, rotate
from qk_sniffer.model.rotary_tables import FrequencyTable
from qk_toolkit.arrays import Array

_ANGLE_ROUNDING = 2.0**-22  # of an angle that the model computes in float32, relative to it
_SMALL = 0.1  # share of the mean length of a pair that counts where a pair is shorter


@dataclass(frozen=True)
class Misfit:
    """How far vectors are from a rotation."""

    error: float  # the largest of all pairs, relative to the allowed error; above 1: no fit
    factor: float  # median length of a vector relative to its rotated source


NO_FIT = Misfit(np.inf, 1.0)


def misfit(
    source: Array,
    positions: Array,
    target: Array,
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


def _rearranged(vectors: Array, one: RotaryRecord, other: RotaryRecord) -> Array:
    if one.pairing == other.pairing:
        return vectors
    result = vectors.copy()
    for before, after in zip(pair_dimensions(one), pair_dimensions(other), strict=True):
        result[:, after] = vectors[:, before]
    return result


def _by_pair(vectors: Array, record: RotaryRecord) -> Array:
    """Lengths (pairs + 1,) over all rows of every pair, and of the dimensions that do not turn."""
    squares = (vectors**2).sum(0)  # (d,)
    first, second = pair_dimensions(record)
    pairs = squares[first] + squares[second]  # (pairs,)
    rest = np.delete(squares, slice(record.start, record.end)).sum()
    lengths: Array = np.sqrt(np.append(pairs, rest))
    return lengths


@dataclass(frozen=True)
class Rotation:
    """The rotary record of captured vectors.

    Without a record, `problem` is the reason. It is None in layers without a rotary embedding.
    """

    record: RotaryRecord | None = None
    problem: str | None = None
    table: FrequencyTable | None = field(default=None, repr=False, compare=False)
    """Where the frequencies come from, if they depend on the length of a text."""

    def for_texts(self, lengths: Iterable[int]) -> Rotation:
        """The record of texts with these numbers of tokens.

        Frequencies of the rope types dynamic and longrope depend on the length of a text. If the
        texts have different ones, there is no record.
        """
        if self.record is None or self.table is None:
            return self
        found: dict[tuple[float, ...], int] = {}  # frequencies → length of the first such text
        for length in sorted({length for length in lengths if length > 0}):
            found.setdefault(self.table.frequencies(length), length)
            if len(found) > 1:
                one, other = found.values()
                return Rotation(
                    problem="the frequencies depend on the length of a text (rope type dynamic or "
                    f"longrope), and texts of {one:,} and {other:,} tokens have different ones"
                )
        try:
            frequencies = next(iter(found), self.record.frequencies)
            return Rotation(replace(self.record, frequencies=frequencies))
        except RotaryError as error:
            return Rotation(problem=f"the frequencies of long texts cannot be used: {error}")


@dataclass(frozen=True)
class Rotations:
    """The rotation of vectors that are captured after RoPE, and of those captured before it."""

    after: Rotation = Rotation()
    before: Rotation = Rotation()
