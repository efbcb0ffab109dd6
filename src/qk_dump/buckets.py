"""The bucket of a position: the one formula that captures, checks and figures share.

Integer arithmetic throughout, so that position 2^k − 1 is right at any k. Numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

BucketType = Literal["uniform", "log"]
Ints = npt.NDArray[np.int64]

_MOST = 2**63 - 1
_LOG_STARTS = np.array([2**k - 1 for k in range(64)], np.int64)  # (64,)
_LARGEST_SIZE = 2**62


@dataclass(frozen=True)
class BucketGeometry:
    """How positions fall into buckets.

    uniform: bucket b holds `b · min_size` up to `(b + 1) · min_size − 1`. log: bucket b holds the
    positions with `floor(log2(p + 1)) = b`, which begin at `2^b − 1`; the first bucket,
    `ceil(log2(min_size))`, also holds everything before it.
    """

    type: BucketType
    min_size: int

    @property
    def first(self) -> int:
        """The lowest bucket there can be."""
        return (self.min_size - 1).bit_length() if self.type == "log" else 0

    def bucket(self, position: npt.ArrayLike) -> Ints:
        """Bucket of every position that is not negative; a fraction counts as its whole part."""
        place = _whole(np.asarray(position))  # (n,)
        if self.type == "uniform":
            return place // self.min_size
        number = np.searchsorted(_LOG_STARTS, place, side="right") - 1  # (n,) floor(log2(p + 1))
        return np.maximum(number, self.first)

    def starts(self, buckets: npt.ArrayLike) -> Ints:
        """The first position of each bucket; beyond 2^63 − 1 it stays there."""
        number = np.asarray(buckets, np.int64)  # (n,)
        if self.type == "uniform":
            return np.minimum(number, _MOST // self.min_size) * self.min_size
        return np.where(number <= self.first, 0, _LOG_STARTS[np.clip(number, 0, 63)])

    def ends(self, buckets: npt.ArrayLike) -> Ints:
        """The last position of each bucket."""
        number = np.asarray(buckets, np.int64)  # (n,)
        return np.maximum(self.starts(number + 1) - 1, self.starts(number))


def geometry_of(bucket_type: object, min_bucket_size: object) -> BucketGeometry | None:
    """The geometry that two fields of `dump.json` tell, None when they tell none."""
    if bucket_type not in ("uniform", "log") or type(min_bucket_size) is not int:
        return None
    if not 1 <= min_bucket_size <= _LARGEST_SIZE:
        return None
    return BucketGeometry("log" if bucket_type == "log" else "uniform", min_bucket_size)


def _whole(place: npt.NDArray[np.number]) -> Ints:
    """Positions as int64, without wrapping those that are too large for it."""
    if place.dtype.kind == "f":
        below = np.nextafter(2.0**63, 0.0)  # the largest float64 that int64 holds
        place = np.minimum(np.floor(place.astype(np.float64)), below)
    elif place.dtype.kind == "u":
        place = np.minimum(place.astype(np.uint64), _MOST)
    return place.astype(np.int64)
