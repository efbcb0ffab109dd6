"""Sample positions and heads. Arrays in, arrays out.

The sampled positions depend on (seed, example, layer, kind) only. All heads of a layer and kind
share them. The beginning of a text gives the same positions, whatever the length of the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from qk_dump.heads import Kind
from qk_dump.positions import BucketGeometry, SamplerType, bucket_rates
from qk_toolkit.arrays import Array, Ints

__all__ = ["PositionSampler", "SamplerType", "sample_heads"]

_KIND_CODE = {"q": 0, "k": 1}


@dataclass(frozen=True)
class PositionSampler:
    """Samples positions at random, with a rate that depends on the bucket of the position.

    Examples:
        >>> from qk_sniffer import PositionSampler
        >>> sampler = PositionSampler(type="uniform", min_bucket_size=4)
        >>> sampler.bucket([0, 3, 4, 9]).tolist()  # (n,) positions → (n,) buckets
        [0, 0, 1, 2]
        >>> sampler.rate([0, 1]).tolist()  # one of four positions is kept, on average
        [0.25, 0.25]
    """

    type: SamplerType = "log_uniform"
    min_bucket_size: int = 128
    base_rate: float = 1.0
    seed: int = 0
    key_base_rate: float | None = None  # None: as `base_rate`

    @property
    def bucket_type(self) -> Literal["uniform", "log"]:
        """The type of the buckets, as in `dump.json`."""
        return "log" if self.type == "log_uniform" else "uniform"

    def bucket(self, position: npt.ArrayLike) -> Ints:
        """The bucket of every position."""
        return BucketGeometry(self.bucket_type, self.min_bucket_size).bucket(position)

    def rate(self, bucket: npt.ArrayLike, kind: Kind = "q") -> Array:
        """The probability that a position of the bucket is kept."""
        base_rate = self.base_rate
        if kind == "k" and self.key_base_rate is not None:
            base_rate = self.key_base_rate
        return bucket_rates(self.type, self.min_bucket_size, base_rate, bucket)

    def positions(self, length: int, *, example: int, layer: int, kind: Kind) -> Ints:
        """The positions that are kept of a text of `length` tokens, ascending."""
        if self.type == "all":
            return np.arange(length)
        rng = np.random.default_rng([self.seed, example, layer, _KIND_CODE[kind]])
        return np.flatnonzero(rng.random(length) < _rates(self, length, kind))

    def expected_rows(self, length: int, kind: Kind = "q") -> float:
        """The expected number of positions that are kept of a text of `length` tokens."""
        return float(_rates(self, length, kind).sum())


@lru_cache(maxsize=16)  # all layers of a text use the same rates
def _rates(sampler: PositionSampler, length: int, kind: Kind) -> Array:
    return sampler.rate(sampler.bucket(np.arange(length)), kind)  # (length,)


def sample_heads(
    eligible: Iterable[tuple[int, int]], count: int, seed: int
) -> list[tuple[int, int]]:
    """`count` random (layer, query head) pairs without replacement, sorted."""
    pairs = sorted(eligible)
    chosen = np.random.default_rng(seed).choice(len(pairs), count, replace=False)
    return [pairs[index] for index in np.sort(chosen)]
