"""Which positions and which heads are kept. Arrays in, arrays out.

A choice depends on (seed, example, layer, kind) and nothing else, and the heads of one layer and
kind share it. A longer text keeps what its beginning would have kept alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from qk_dump.buckets import BucketGeometry
from qk_dump.layout import Kind

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
SamplerType = Literal["log_uniform", "uniform", "all"]

_KIND_CODE = {"q": 0, "k": 1}


@dataclass(frozen=True)
class PositionSampler:
    """Buckets of positions, and a random choice of positions with a rate per bucket."""

    type: SamplerType = "log_uniform"
    min_bucket_size: int = 128
    base_rate: float = 1.0
    seed: int = 0

    @property
    def bucket_type(self) -> Literal["uniform", "log"]:
        """Geometry of the buckets, as `dump.json` spells it."""
        return "log" if self.type == "log_uniform" else "uniform"

    def bucket(self, position: npt.ArrayLike) -> Ints:
        """Bucket of every position."""
        return BucketGeometry(self.bucket_type, self.min_bucket_size).bucket(position)

    def rate(self, bucket: npt.ArrayLike) -> Floats:
        """Chance that a position of the bucket is kept."""
        number = np.asarray(bucket, np.int64)  # (n,)
        if self.type == "all":
            return np.ones(number.shape)
        if self.type == "uniform":
            return np.full(number.shape, min(1.0, self.base_rate / self.min_bucket_size))
        return np.minimum(1.0, self.base_rate / np.exp2(number))

    def positions(self, length: int, *, example: int, layer: int, kind: Kind) -> Ints:
        """Positions kept of a text of `length` tokens, ascending."""
        if self.type == "all":
            return np.arange(length)
        rng = np.random.default_rng([self.seed, example, layer, _KIND_CODE[kind]])
        return np.flatnonzero(rng.random(length) < _rates(self, length))

    def expected_rows(self, length: int) -> float:
        """Positions kept of a text of `length` tokens, on average."""
        return float(_rates(self, length).sum())


@lru_cache(maxsize=8)  # the layers and kinds of a text ask for the same ones
def _rates(sampler: PositionSampler, length: int) -> Floats:
    return sampler.rate(sampler.bucket(np.arange(length)))  # (length,)


def sample_heads(
    eligible: Iterable[tuple[int, int]], count: int, seed: int
) -> list[tuple[int, int]]:
    """`count` of the (layer, query head) pairs without replacement, sorted; the same for a seed."""
    pairs = sorted(eligible)
    chosen = np.random.default_rng(seed).choice(len(pairs), count, replace=False)
    return [pairs[index] for index in np.sort(chosen)]
