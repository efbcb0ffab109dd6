"""What `dump.json` records about a layer: its type, its logits, and how RoPE turns its vectors."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from attention_plasticity.estimate.quantity import Unknown
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.metrics import CHUNKED_ATTENTION, FULL_ATTENTION, SLIDING_ATTENTION
from qk_dump.layers import LayerRecord, RotaryRecord
from qk_dump.layout import Dump
from qk_dump.rotary import pair_dimensions, rotate
from qk_toolkit.arrays import Array, Vectors

PRE_ROPE = "the vectors were captured before the rotary embedding"
NO_CHUNK_SIZE = "the size of the chunks of the layer is not known"
BIASED = "the layer adds a bias to its logits"
SELECTIVE = "the content of keys decides which keys a query sees"
NO_TEXTS = "the texts of the queries are not known"
SINGLE_EXAMPLE = "single_example is set"
NO_COMMON_TEXT = "queries and keys have no text in common"
NO_COLUMNS = "the queries have no attention columns, or all their values are null"


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
    """What is known about a layer. Without `scale` it is 1/√d, without `softcap` there is none."""

    type: str | None = None  # as dump.json names it
    scale: float | None = None
    softcap: float | None = None
    chunked: bool = False  # the window is a chunk
    logit_problem: str | None = None  # why logits are not known; before RoPE, the scale is
    rotation: LayerRotation = NO_ROTATION

    def visible(self, window: int | None) -> Visible | Unknown:
        """Which keys a query sees, with the `window` of the rows of a head."""
        if self.chunked and window is None:
            return Unknown(NO_CHUNK_SIZE)
        return Visible(window, self.chunked)

    def type_name(self, window: int | None) -> str:
        """The type of the layer; without dump.json it follows from the window."""
        return self.type or (FULL_ATTENTION if window is None else SLIDING_ATTENTION)


def layer_facts(dump: Dump, layer: int, width: int) -> Layer:
    """What `dump.json` records about a layer with vectors of `width` dimensions."""
    rotation = rotation_of(dump, layer).for_width(width)
    manifest = dump.manifest
    if manifest is None:
        return Layer(rotation=rotation)
    record = manifest.layer(layer) or LayerRecord(layer)
    problem = PRE_ROPE if manifest.pre_rope else None
    if record.biased:
        problem = BIASED
    if record.selective:
        problem = SELECTIVE
    types = manifest.layer_types or []
    type_ = record.type or (types[layer] if layer < len(types) else None)
    return Layer(
        type=type_,
        scale=manifest.attention_scale if record.scale is None else record.scale,
        softcap=record.softcap,
        chunked=type_ == CHUNKED_ATTENTION,
        logit_problem=problem,
        rotation=rotation,
    )


def rotation_of(dump: Dump, layer: int) -> LayerRotation:
    """How RoPE turns the vectors of a layer: from the given file, else from `dump.json`."""
    source = dump.manifest if dump.rotary is None else dump.rotary
    pre_rope = bool(source and source.pre_rope)
    record = source.layer(layer) if source else None
    if record is not None and record.rotary is not None:
        return LayerRotation(record.rotary, pre_rope)
    if record is not None and record.rope is False:
        return LayerRotation(pre_rope=pre_rope)
    why = record and record.rotary_problem
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
