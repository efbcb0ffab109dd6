"""Rotary records: how RoPE turns the vectors of a layer, and the rotation of vectors with them.

RoPE turns pair m of the rotary dimensions of a vector at position p by the angle p·ω_m. A record
holds the frequencies ω and says which two dimensions form a pair. It describes the vectors of the
dump. Records are in the entries of `layers` in `dump.json`, or in a file of their own for a dump
whose `dump.json` cannot be changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, get_args

import numpy as np
import numpy.typing as npt

from qk_toolkit.arrays import Vectors

Pairing = Literal["halves", "interleaved"]

_BLOCK = 512  # rows whose angles are in memory at the same time
_FREQUENCY_TOLERANCE = 0.01  # a model in bfloat16 may round its frequencies


class RotaryError(ValueError):
    """A rotary record that cannot be used."""


@dataclass(frozen=True)
class RotaryRecord:
    """How RoPE turns the vectors of a layer.

    With `halves`, dimension `start + m` and dimension `start + dimensions / 2 + m` form pair m.
    With `interleaved`, dimensions `start + 2m` and `start + 2m + 1` do. Other dimensions do not
    turn. `scaling` is the factor on cos and sin. Vectors captured after RoPE contain it already,
    so `rotate` does not apply it.
    """

    frequencies: tuple[float, ...]  # ω_m in radians per token
    start: int = 0
    pairing: Pairing = "halves"
    scaling: float = 1.0

    def __post_init__(self) -> None:
        numbers = self.frequencies
        if not numbers or not all(_is_number(value) for value in numbers):
            raise RotaryError(f"frequencies: expected finite numbers, got {numbers!r:.60}")
        if type(self.start) is not int or self.start < 0:
            raise RotaryError(f"start: expected a dimension, got {self.start!r:.40}")
        if self.pairing not in get_args(Pairing):
            raise RotaryError(f"pairing: expected halves or interleaved, got {self.pairing!r:.40}")
        if not _is_number(self.scaling) or not self.scaling > 0:
            raise RotaryError(f"scaling: expected a positive number, got {self.scaling!r:.40}")

    @property
    def dimensions(self) -> int:
        """The number of rotary dimensions."""
        return 2 * len(self.frequencies)

    @property
    def end(self) -> int:
        """The first dimension after the rotary dimensions."""
        return self.start + self.dimensions

    def require_width(self, width: int) -> None:
        """Raise a `RotaryError` if vectors of this width do not hold the rotary dimensions."""
        if self.end > width:
            raise RotaryError(
                f"rotary dimensions {self.start} to {self.end - 1} do not fit vectors of {width} "
                "dimensions"
            )

    def to_json(self) -> dict[str, Any]:
        """The record as it stands in `dump.json`."""
        return {
            "frequencies": list(self.frequencies),
            "start": self.start,
            "dimensions": self.dimensions,
            "pairing": self.pairing,
            "scaling": self.scaling,
        }

    @classmethod
    def from_json(cls, content: object) -> RotaryRecord:
        """The record in `dump.json`; unknown fields are ignored. Raises a `RotaryError`."""
        if not isinstance(content, dict) or not isinstance(content.get("frequencies"), list):
            raise RotaryError(f"expected an object with a list of frequencies, got {content!r:.40}")
        names = ("start", "pairing", "scaling")
        values = {name: content[name] for name in names if name in content}
        record = cls(tuple(content["frequencies"]), **values)
        if content.get("dimensions", record.dimensions) != record.dimensions:
            raise RotaryError(
                f"dimensions: expected {record.dimensions}, two per frequency, got "
                f"{content['dimensions']!r:.40}"
            )
        return record


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)


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


Entries = Sequence[Mapping[str, Any]]
"""Entries of `layers` in `dump.json`."""


def rotary_record(entries: Entries | None, layer: int) -> RotaryRecord | None:
    """The rotary record of a layer in the `layers` of `dump.json`; None if there is none."""
    for entry in entries or ():
        if entry.get("layer") == layer and entry.get("rotary") is not None:
            return RotaryRecord.from_json(entry["rotary"])
    return None


def check_rotary(entries: Entries, rope: Mapping[str, Any] | None) -> None:
    """Raise a `RotaryError` for a record that cannot be used, or that contradicts `rope`.

    `rope` are the rope parameters of the model's config.
    """
    for entry in entries:
        try:
            content, width = entry.get("rotary"), entry.get("head_dim")
            if content is None:
                continue
            record = RotaryRecord.from_json(content)
            if type(width) is int:
                record.require_width(width)
            _require_frequencies(record, width, _rope_of(entry, rope or {}))
        except RotaryError as error:
            raise RotaryError(f"rotary of layer {entry.get('layer')!r:.20}: {error}") from error


def _rope_of(entry: Mapping[str, Any], rope: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rope parameters of a layer; some models have one set per type of layer."""
    if any(isinstance(value, Mapping) for value in rope.values()):
        found = rope.get(str(entry.get("type")))
        return found if isinstance(found, Mapping) else {}
    return rope


def _require_frequencies(record: RotaryRecord, width: Any, rope: Mapping[str, Any]) -> None:
    """Compare a record with rope parameters of the types whose frequencies are one formula."""
    kind, theta, share = (
        rope.get(name) for name in ("rope_type", "rope_theta", "partial_rotary_factor")
    )
    factor = {"default": 1.0, "linear": rope.get("factor")}.get(str(kind))
    if not (_is_number(theta) and _is_number(factor) and theta > 0 and factor > 0):
        return
    partial = _is_number(share) and type(width) is int and record.start == 0
    if partial and record.dimensions != int(width * share):
        raise RotaryError(
            f"has {record.dimensions} dimensions, but head_dim {width} and rope_parameters "
            f"(partial_rotary_factor {share:g}) give {int(width * share)}"
        )
    for m, found in enumerate(record.frequencies):
        frequency = theta ** (-2 * m / record.dimensions) / factor
        if abs(abs(found) - frequency) > _FREQUENCY_TOLERANCE * frequency:
            raise RotaryError(
                f"frequency {m} is {found:g}, but rope_parameters give {frequency:g} "
                f"(rope_type {kind}, rope_theta {theta:g})"
            )


@dataclass(frozen=True)
class RotaryFile:
    """Rotary records from a file of their own, which come before those of `dump.json`."""

    path: str
    digest: str  # of the records, 16 hexadecimal digits
    layers: Entries
    pre_rope: bool
    model: str
    rope: Mapping[str, Any]  # the rope parameters of the model

    def as_record(self) -> dict[str, str]:
        """Path and digest, for run.json."""
        return {"path": self.path, "sha256": self.digest}
