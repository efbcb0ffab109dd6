"""What `dump.json` records about a layer: its type, its logits, and how RoPE turns its vectors."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attention_plasticity.estimate.visible import Visible
from attention_plasticity.metrics import CHUNKED_ATTENTION, FULL_ATTENTION, SLIDING_ATTENTION
from attention_plasticity.read.unknown import Unknown
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_dump.rotary import RotaryRecord, pair_dimensions, rotate
from qk_dump.rotary_file import layer_rotation
from qk_toolkit.arrays import Array, Vectors

_TYPE = re.compile(r"[A-Za-z0-9_+-]{1,64}")  # one word
PRE_ROPE = "the vectors were captured before the rotary embedding"
NO_CHUNK_SIZE = "the size of the chunks of the layer is not known"
BIASED = "the layer adds a bias to its logits"
SELECTIVE = "the content of keys decides which keys a query sees"
NO_TEXTS = "the texts of the queries are not known"
SINGLE_EXAMPLE = "single_example is set"
NO_COMMON_TEXT = "queries and keys have no text in common"
NO_COLUMNS = "the queries have no attention columns, or all their values are null"
WRONG_SCALE = (
    "the logits are larger than lse allows: scale or softcap in dump.json are wrong, or the "
    "vectors were rounded too much"
)


@dataclass(frozen=True)
class LayerLogits:
    """Scale, soft-cap and mask of a layer, and the reason if its logits are not known.

    Of vectors that were captured before RoPE, the scale is known, too.
    """

    scale: float | None = None  # None: 1/√d
    softcap: float | None = None
    chunked: bool = False  # the window is a chunk
    problem: str | None = None


DEFAULT_LOGITS = LayerLogits()


def logits_of(dump: Dump, layer: int) -> LayerLogits:
    """The logits of a layer, as far as `dump.json` has them."""
    manifest = dump.manifest
    if manifest is None:
        return DEFAULT_LOGITS
    entry = _entry(manifest, layer)
    scale, softcap = entry.get("scale"), entry.get("softcap")
    scale = manifest.attention_scale if scale is None else scale
    problem = PRE_ROPE if manifest.pre_rope else None
    if entry.get("biased") is True:
        problem = BIASED
    if entry.get("selective") is True:
        problem = SELECTIVE
    return LayerLogits(scale, softcap, entry.get("type") == CHUNKED_ATTENTION, problem)


def layer_type_of(dump: Dump, layer: int) -> str | None:
    """The type of a layer, such as `full_attention`; None if `dump.json` does not have it."""
    manifest = dump.manifest
    if manifest is None:
        return None
    types = manifest.layer_types or []
    found = _entry(manifest, layer).get("type") or (types[layer] if layer < len(types) else None)
    return found if isinstance(found, str) and _TYPE.fullmatch(found) else None


@dataclass(frozen=True)
class LayerRotation:
    """How RoPE turns the queries and keys of a layer, or the reason why this is not known.

    Without a record and without a problem, the layer has no rotary embedding.
    """

    record: RotaryRecord | None = None
    pre_rope: bool = False  # the vectors were captured before RoPE
    problem: str | None = None

    def for_width(self, width: int) -> LayerRotation:
        """The rotation of vectors of `width` dimensions; they may be too few for the record."""
        if self.record is None or self.record.end <= width:
            return self
        problem = (
            f"the rotary record has {self.record.end} dimensions and the vectors have {width}; "
            "the record is that of another model"
        )
        return replace(self, record=None, problem=problem)


NO_ROTATION = LayerRotation()
"""The vectors of a layer without a rotary embedding."""


@dataclass(frozen=True)
class Layer:
    """What is known about a layer."""

    type: str | None = None  # as dump.json names it
    logits: LayerLogits = DEFAULT_LOGITS
    rotation: LayerRotation = NO_ROTATION
    learned_sinks: bool | None = None  # None: not known

    def visible(self, window: int | None) -> Visible | Unknown:
        """Which keys a query sees, with the `window` of the rows of a head."""
        chunked = self.logits.chunked or self.type == CHUNKED_ATTENTION
        if chunked and window is None:
            return Unknown(NO_CHUNK_SIZE)
        return Visible(window, chunked)

    def type_name(self, window: int | None) -> str:
        """The type of the layer; without dump.json it follows from the window."""
        return self.type or (FULL_ATTENTION if window is None else SLIDING_ATTENTION)


def layer_facts(dump: Dump, layer: int, width: int) -> Layer:
    """What `dump.json` records about a layer with vectors of `width` dimensions."""
    rotation = rotation_of(dump, layer).for_width(width)
    sinks = None if dump.manifest is None else _entry(dump.manifest, layer).get("learned_sinks")
    return Layer(layer_type_of(dump, layer), logits_of(dump, layer), rotation, sinks)


def rotation_of(dump: Dump, layer: int) -> LayerRotation:
    """How RoPE turns the vectors of a layer: from the given file, else from `dump.json`."""
    entries: Sequence[Mapping[str, Any]] = (dump.manifest and dump.manifest.layers) or []
    pre_rope = bool(dump.manifest and dump.manifest.pre_rope)
    if dump.rotary is not None:
        entries, pre_rope = dump.rotary.layers, dump.rotary.pre_rope
    record = layer_rotation(dump, layer)
    if record is not None:
        return LayerRotation(record, pre_rope)
    entry = next((entry for entry in entries if entry.get("layer") == layer), {})
    if entry.get("rope") is False:
        return LayerRotation(pre_rope=pre_rope)
    why = entry.get("rotary_problem")
    return LayerRotation(pre_rope=pre_rope, problem=why or _no_record(dump))


def in_attention(vectors: Vectors, position: Array, rotation: LayerRotation) -> Vectors:
    """Vectors as they enter the attention: after RoPE, with its factor on cos and sin."""
    record = rotation.record
    if record is None or not rotation.pre_rope:
        return vectors
    return rotate(with_rotary_factor(vectors, record, record.scaling), 0.0, position, record)


def before_rope(vectors: Vectors, position: Array, rotation: LayerRotation) -> Vectors | None:
    """The vectors of `in_attention`, turned back to position 0; None if RoPE cannot be undone."""
    record = rotation.record
    if record is None:
        return vectors if rotation.problem is None or rotation.pre_rope else None
    if rotation.pre_rope:
        return with_rotary_factor(vectors, record, record.scaling)
    return rotate(vectors, position, 0.0, record)


def with_rotary_factor(vectors: Vectors, record: RotaryRecord, factor: float) -> Vectors:
    """Vectors whose rotary dimensions are multiplied by `factor`; a copy unless it is 1."""
    if factor == 1.0:
        return vectors
    scaled = vectors.copy()
    for dimensions in pair_dimensions(record):
        scaled[:, dimensions] *= scaled.dtype.type(factor)
    return scaled


def _no_record(dump: Dump) -> str:
    """The reason of a missing record, with the command that makes it."""
    model = shlex.quote((dump.manifest and dump.manifest.model) or "MODEL")
    return (
        "there is no rotary record of the layer; add it with: attention-plasticity add-rotary "
        f"DUMP {model} rotary.json, and analyze with --rotary rotary.json"
    )


def _entry(manifest: DumpManifest, layer: int) -> dict[str, Any]:
    entries = [entry for entry in manifest.layers or [] if entry.get("layer") == layer]
    return entries[0] if entries else {}
