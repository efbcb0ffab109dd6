"""The probability with which a position was kept in a dump, from `dump.json`.

An estimate for all tokens weights every row with the inverse of this probability. It follows from
the sampler of the capture, and from `kept_share` if rows were left out later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qk_dump.buckets import BucketGeometry, geometry_of
from qk_dump.heads import Kind
from qk_dump.manifest import DumpManifest
from qk_toolkit.arrays import Array

SamplerType = Literal["log_uniform", "uniform", "all"]


@dataclass(frozen=True)
class KeepProbabilities:
    """The probability of every position, or the reason why it is not known."""

    values: Array | None  # (n,)
    reason: str | None = None


@dataclass(frozen=True)
class _Sampler:
    type: SamplerType
    geometry: BucketGeometry
    rates: dict[Kind, float]


class _UnknownError(Exception):
    """The probabilities are not known; the text says why."""


def keep_probabilities(
    manifest: DumpManifest | None, kind: Kind, positions: npt.ArrayLike
) -> KeepProbabilities:
    """The probability that a query (`q`) or key (`k`) at each position is in its file."""
    try:
        sampler = _sampler(manifest)
    except _UnknownError as error:
        return KeepProbabilities(None, str(error))
    bucket = sampler.geometry.bucket(positions)  # (n,)
    rate = bucket_rates(sampler.type, sampler.geometry.min_size, sampler.rates[kind], bucket)
    shares = (manifest.kept_share if manifest else None) or {}
    return KeepProbabilities(rate * shares.get(kind, 1.0))


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


def _sampler(manifest: DumpManifest | None) -> _Sampler:
    if manifest is None:
        raise _UnknownError("there is no dump.json")
    recorded = manifest.sampler
    geometry = geometry_of(manifest.bucket_type, manifest.min_bucket_size)
    if recorded is None or geometry is None:
        raise _UnknownError("dump.json has no sampler, bucket_type or min_bucket_size")
    name = recorded.get("type")
    if name == "log_uniform" and geometry.type == "log":
        return _Sampler("log_uniform", geometry, _rates(recorded))
    if name == "uniform" and geometry.type == "uniform":
        return _Sampler("uniform", geometry, _rates(recorded))
    if name == "all":
        return _Sampler("all", geometry, {"q": 1.0, "k": 1.0})
    raise _UnknownError(
        f"dump.json has the sampler {name!r:.40} with buckets of type {geometry.type}, whose "
        "probabilities are not known"
    )


def _rates(recorded: dict[str, object]) -> dict[Kind, float]:
    queries, keys = recorded.get("base_rate"), recorded.get("key_base_rate")
    return {"q": _rate(queries), "k": _rate(queries if keys is None else keys)}


def _rate(value: Any) -> float:
    if type(value) in (int, float) and math.isfinite(value) and value > 0:
        return float(value)
    raise _UnknownError(f"dump.json: sampler: {value!r:.40} is not a rate")


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
