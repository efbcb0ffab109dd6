"""The bucket of a position. Capture, checks and figures use this formula.

All arithmetic is in integers, so positions near 2^k − 1 are exact for every k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from qk_toolkit.arrays import Ints

BucketType = Literal["uniform", "log"]

_LARGEST = 2**63 - 1
_LOG_STARTS = np.array([2**k - 1 for k in range(64)], np.int64)  # (64,)
_LARGEST_SIZE = 2**62


@dataclass(frozen=True)
class BucketGeometry:
    """Assignment of positions to buckets.

    uniform: bucket b holds positions `b · min_size` to `(b + 1) · min_size − 1`. log: bucket b
    holds positions with `floor(log2(p + 1)) = b`, which begin at `2^b − 1`. The first log bucket,
    `ceil(log2(min_size))`, also holds all smaller positions.
    """

    type: BucketType
    min_size: int

    @property
    def first(self) -> int:
        """The smallest bucket number."""
        return (self.min_size - 1).bit_length() if self.type == "log" else 0

    def bucket(self, position: npt.ArrayLike) -> Ints:
        """The bucket of every position. Positions must not be negative; fractions are dropped."""
        whole = _whole(np.asarray(position))  # (n,)
        if self.type == "uniform":
            return whole // self.min_size
        number = np.searchsorted(_LOG_STARTS, whole, side="right") - 1  # (n,) floor(log2(p + 1))
        return np.maximum(number, self.first)

    def starts(self, buckets: npt.ArrayLike) -> Ints:
        """The first position of each bucket, at most 2^63 − 1."""
        number = np.asarray(buckets, np.int64)  # (n,)
        if self.type == "uniform":
            return np.minimum(number, _LARGEST // self.min_size) * self.min_size
        return np.where(number <= self.first, 0, _LOG_STARTS[np.clip(number, 0, 63)])

    def ends(self, buckets: npt.ArrayLike) -> Ints:
        """The last position of each bucket."""
        number = np.asarray(buckets, np.int64)  # (n,)
        return np.maximum(self.starts(number + 1) - 1, self.starts(number))


def geometry_of(bucket_type: object, min_bucket_size: object) -> BucketGeometry | None:
    """The geometry given by two fields of `dump.json`; None when they are absent or invalid."""
    if bucket_type not in ("uniform", "log") or type(min_bucket_size) is not int:
        return None
    if not 1 <= min_bucket_size <= _LARGEST_SIZE:
        return None
    return BucketGeometry("log" if bucket_type == "log" else "uniform", min_bucket_size)


def _whole(position: npt.NDArray[np.number]) -> Ints:
    """Positions as int64; larger values are capped."""
    if position.dtype.kind == "f":
        below = np.nextafter(2.0**63, 0.0)  # the largest float64 that fits int64
        position = np.minimum(np.floor(position.astype(np.float64)), below)
    elif position.dtype.kind == "u":
        position = np.minimum(position.astype(np.uint64), _LARGEST)
    return position.astype(np.int64)
