"""What follows from a position: its bucket, the probability that it is kept, and what it sees.

Capture, checks, analysis and figures use these formulas. The arithmetic of buckets is in integers,
so positions near 2^k − 1 are exact for every k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qk_dump.heads import Kind
from qk_dump.manifest import DumpManifest
from qk_toolkit.arrays import Array, Ints

BucketType = Literal["uniform", "log"]
SamplerType = Literal["log_uniform", "uniform", "all"]

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


@dataclass(frozen=True)
class KeepProbabilities:
    """The probability of every position, or the reason why it is not known."""

    values: Array | None  # (n,)
    reason: str | None = None


def keep_probabilities(
    manifest: DumpManifest | None, kind: Kind, positions: npt.ArrayLike
) -> KeepProbabilities:
    """The probability that a query (`q`) or key (`k`) at each position is in its file.

    An estimate for all tokens weights every row with its inverse. It follows from the sampler of
    the capture, and from `kept_share` if rows were left out later.
    """
    if manifest is None:
        return KeepProbabilities(None, "there is no dump.json")
    recorded = manifest.sampler
    geometry = geometry_of(manifest.bucket_type, manifest.min_bucket_size)
    if recorded is None or geometry is None:
        return KeepProbabilities(None, "dump.json has no sampler, bucket_type or min_bucket_size")
    sampler: Any = recorded.get("type")
    if sampler != "all" and (sampler, geometry.type) not in _SAMPLERS:
        return KeepProbabilities(
            None,
            f"dump.json has the sampler {sampler!r:.40} with buckets of type {geometry.type}, "
            "whose probabilities are not known",
        )
    rate: Any = recorded.get("key_base_rate") if kind == "k" else None
    rate = recorded.get("base_rate") if rate is None else rate
    if sampler != "all" and not _is_rate(rate):
        return KeepProbabilities(None, f"dump.json: sampler: {rate!r:.40} is not a rate")
    bucket = geometry.bucket(positions)  # (n,)
    kept = bucket_rates(sampler, geometry.min_size, rate, bucket)
    return KeepProbabilities(kept * (manifest.kept_share or {}).get(kind, 1.0))


_SAMPLERS = (("log_uniform", "log"), ("uniform", "uniform"))


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def bucket_rates(
    sampler: SamplerType, min_bucket_size: int, base_rate: float, bucket: npt.ArrayLike
) -> Array:
    """The probability that a capture keeps a position of each bucket."""
    number = np.asarray(bucket, np.int64)  # (n,)
    if sampler == "all":
        return np.ones(number.shape)
    if sampler == "uniform":
        return np.full(number.shape, min(1.0, base_rate / min_bucket_size))
    return np.minimum(1.0, base_rate / np.exp2(number))


def joint_inclusion(base: Array, attended: Array) -> Array:
    """The probability that a key is in the base sample or drawn by attention, independently."""
    return np.asarray(base + (1 - base) * attended)


def thinned_inclusion(
    inclusion: Array, base: Array, base_share: float, attended_share: float = 1.0
) -> Array:
    """The inclusion of keys when only a share of the rows is kept later, independently.

    `base` is the probability that the key is in the base sample. A key that was drawn in both ways
    is in the base file only, so a share s of the base rows gives `inclusion − (1 − s) · base`.
    """
    return np.asarray(attended_share * (inclusion - base) + base_share * base)


def first_visible(position: Any, window: int | None, chunked: bool) -> Any:
    """(n,) the first key that the query at each `position` (n,) sees; the last one is its own.

    `window` counts tokens: a query sees the last `window` of them, its own included. With `chunked`
    it sees those of its own chunk of `window` tokens. Positions are a numpy array or a tensor.
    """
    if window is None:
        return position - position
    first = position - position % window if chunked else position - window + 1
    return first * (first > 0)
