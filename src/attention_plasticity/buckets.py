"""Where buckets of positions begin: the geometry a dump was captured with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

BucketType = Literal["uniform", "log"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BucketGeometry:
    """How positions fall into buckets.

    uniform: bucket b holds positions from `b · min_size` on. log: bucket b holds those with
    `floor(log2(p + 1)) = b`, which begin at `2^b − 1`; the first bucket, `ceil(log2(min_size))`,
    also holds everything before it.
    """

    type: BucketType
    min_size: int

    @property
    def first(self) -> int:
        """The lowest bucket there can be."""
        return (self.min_size - 1).bit_length() if self.type == "log" else 0

    def starts(self, buckets: npt.ArrayLike) -> Floats:
        """The first position of each bucket."""
        number = np.asarray(buckets, dtype=np.float64)
        if self.type == "uniform":
            return number * self.min_size
        return np.where(number <= self.first, 0.0, np.exp2(number) - 1.0)


def geometry_of(dump: dict[str, Any] | None) -> BucketGeometry | None:
    """The geometry that a dump's manifest tells, None when it does not."""
    if not dump or not dump.get("bucket_type") or not dump.get("min_bucket_size"):
        return None
    return BucketGeometry(dump["bucket_type"], int(dump["min_bucket_size"]))
