"""What is known about the attention layers of a model: `LayerRecord`, with its rotary record.

A capture makes a record per layer, dump.json holds them in `layers`, and every reader asks them.
Records are also in files of `add-rotary`, for a dump without rotary records.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeGuard, get_args

from pydantic_core import core_schema

from qk_dump.heads import LARGEST_FACTOR, MOST_DIMENSIONS, MOST_LAYERS, SMALLEST_FACTOR

CHUNKED_ATTENTION = "chunked_attention"  # type of a layer whose window is a chunk
Pairing = Literal["halves", "interleaved"]

_WORD = re.compile(r"[A-Za-z0-9_+-]{1,64}")
_FREQUENCY_TOLERANCE = 0.01  # a model in bfloat16 may round its frequencies


class LayerError(ValueError):
    """A value of a layer that cannot be used, such as a scale of zero."""


class RotaryError(LayerError):
    """A rotary record that cannot be used."""


@dataclass(frozen=True)
class RotaryRecord:
    """How RoPE turns the vectors of a layer: pair m at position p by the angle p·ω_m.

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


@dataclass(frozen=True)
class LayerRecord:
    """The attention of one layer. None means not known, but for `window` and `softcap`."""

    layer: int
    type: str | None = None  # such as full_attention
    rope: bool | None = None  # False: without a rotary embedding
    head_dim: int | None = None
    window: int | None = None  # tokens of the window or chunk; None: all earlier keys
    selective: bool = False  # the content of keys decides which keys a query sees
    biased: bool = False  # a mask or a bias changes the logits of visible keys
    scale: float | None = None
    softcap: float | None = None  # None: without a soft-cap
    learned_sinks: bool | None = None  # a learned logit per head takes part in the softmax
    rotary: RotaryRecord | None = None
    rotary_problem: str | None = None  # why there is no rotary record
    further: Mapping[str, Any] = field(default_factory=dict)  # fields of later versions

    @property
    def chunked(self) -> bool:
        """Whether the window is a chunk."""
        return self.type == CHUNKED_ATTENTION

    def to_json(self) -> dict[str, Any]:
        """The entry of `layers` in `dump.json`; `rotary` is null where there is no record."""
        values = {name: getattr(self, name) for name in _EXPECTED}
        for name in ("selective", "biased"):
            values[name] = values[name] or None
        values = {name: value for name, value in values.items() if value is not None}
        rotary = None if self.rotary is None else self.rotary.to_json()
        why = {} if self.rotary_problem is None else {"rotary_problem": self.rotary_problem}
        return {**values, "rotary": rotary, **why, **self.further}

    @classmethod
    def from_json(cls, content: object) -> LayerRecord:
        """The record of an entry. Fields may be missing. Raises a `LayerError`."""
        if not isinstance(content, Mapping):
            raise LayerError(f"expected an object per layer, got {content!r:.40}")
        given = {name: value for name, value in content.items() if value is not None}
        values: dict[str, Any] = {"layer": _checked(content, "layer", "")}
        where = f" of layer {values['layer']}"
        values |= {name: _checked(given, name, where) for name in given.keys() & _EXPECTED.keys()}
        if (problem := given.get("rotary_problem")) is not None:
            values["rotary_problem"] = str(problem)
        if "rotary" in given:
            try:
                values["rotary"] = record = RotaryRecord.from_json(given["rotary"])
                record.require_width(values.get("head_dim", MOST_DIMENSIONS))
            except RotaryError as error:
                raise RotaryError(f"rotary{where}: {error}") from error
        known = {one.name for one in fields(cls)}
        return cls(**values, further={n: v for n, v in content.items() if n not in known})

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> core_schema.CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(cls.to_json)
        return core_schema.is_instance_schema(cls, serialization=written)


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _whole(least: int, below: float) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value < below


_FACTOR = (
    f"a number from {SMALLEST_FACTOR:g} to {LARGEST_FACTOR:g}",
    lambda value: _is_number(value) and SMALLEST_FACTOR <= value <= LARGEST_FACTOR,
)
_SWITCH = ("true or false", lambda value: type(value) is bool)
_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "layer": (f"a number from 0 to {MOST_LAYERS - 1}", _whole(0, MOST_LAYERS)),
    "type": (
        "one word, such as full_attention",
        lambda value: isinstance(value, str) and _WORD.fullmatch(value) is not None,
    ),
    "rope": _SWITCH,
    "head_dim": (f"an integer from 1 to {MOST_DIMENSIONS}", _whole(1, MOST_DIMENSIONS + 1)),
    "window": ("a positive number of tokens or null", _whole(1, math.inf)),
    "selective": _SWITCH,
    "biased": _SWITCH,
    "scale": _FACTOR,
    "softcap": _FACTOR,
    "learned_sinks": _SWITCH,
}
"""Plain fields in the order of `dump.json`, with what their values are."""


def _checked(content: Mapping[str, Any], name: str, where: str) -> Any:
    value = content.get(name)
    words, is_right = _EXPECTED[name]
    if not is_right(value):
        raise LayerError(f"{name}{where}: expected {words}, got {value!r:.80}")
    return value


def layer_records(entries: Iterable[object]) -> list[LayerRecord]:
    """The records in `layers` of `dump.json`. Raises a `LayerError`; a layer comes once."""
    found: dict[int, LayerRecord] = {}
    for entry in entries:
        record = entry if isinstance(entry, LayerRecord) else LayerRecord.from_json(entry)
        if record.layer in found:
            raise LayerError(f"layer {record.layer} is listed twice")
        found[record.layer] = record
    return list(found.values())


@dataclass(frozen=True)
class RotaryFile:
    """Rotary records from a file of their own, which come before those of `dump.json`."""

    path: str
    digest: str  # of the records, 16 hexadecimal digits
    layers: Sequence[LayerRecord]
    pre_rope: bool
    model: str
    rope: Mapping[str, Any]  # the rope parameters of the model

    def layer(self, number: int) -> LayerRecord | None:
        """What the file has about a layer; None if it does not list it."""
        return next((one for one in self.layers if one.layer == number), None)

    def as_record(self) -> dict[str, str]:
        """Path and digest, for run.json."""
        return {"path": self.path, "sha256": self.digest}


def check_rotary(records: Iterable[LayerRecord], rope: Mapping[str, Any] | None) -> None:
    """Raise a `RotaryError` for a rotary record that contradicts the rope parameters of a model."""
    for record in records:
        try:
            if record.rotary is not None:
                _require_frequencies(record.rotary, record.head_dim, _rope_of(record, rope or {}))
        except RotaryError as error:
            raise RotaryError(f"rotary of layer {record.layer}: {error}") from error


def _rope_of(record: LayerRecord, rope: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rope parameters of a layer; some models have one set per type of layer."""
    if any(isinstance(value, Mapping) for value in rope.values()):
        found = rope.get(str(record.type))
        return found if isinstance(found, Mapping) else {}
    return rope


def _require_frequencies(record: RotaryRecord, width: int | None, rope: Mapping[str, Any]) -> None:
    """Compare a record with rope parameters of the types whose frequencies are one formula."""
    kind, theta, share = (
        rope.get(name) for name in ("rope_type", "rope_theta", "partial_rotary_factor")
    )
    factor = {"default": 1.0, "linear": rope.get("factor")}.get(str(kind))
    if not (_is_number(theta) and _is_number(factor) and theta > 0 and factor > 0):
        return
    if _is_number(share) and width is not None and record.start == 0:
        expected = int(width * share)
        if record.dimensions != expected:
            raise RotaryError(
                f"has {record.dimensions} dimensions, but head_dim {width} and rope_parameters "
                f"(partial_rotary_factor {share:g}) give {expected}"
            )
    for m, found in enumerate(record.frequencies):
        frequency = theta ** (-2 * m / record.dimensions) / factor
        if abs(abs(found) - frequency) > _FREQUENCY_TOLERANCE * frequency:
            raise RotaryError(
                f"frequency {m} is {found:g}, but rope_parameters give {frequency:g} "
                f"(rope_type {kind}, rope_theta {theta:g})"
            )
