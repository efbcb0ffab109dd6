"""The seam between what runs a model and what is kept of it.

An engine knows the attention layers of a model (`LayerFacts`) and, while it runs texts, gives one
`LayerCall` per forward and layer: queries, keys and values of all texts, one text after the other.
Everything behind it is the same for every engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from qk_dump.layers import RotaryError, RotaryRecord
from qk_dump.positions import first_visible
from qk_toolkit.arrays import Ints

LayerType = Literal["full_attention", "sliding_attention", "chunked_attention"]


class LengthFrequencies(Protocol):
    """Frequencies that depend on the length of a text."""

    def frequencies(self, length: int) -> tuple[float, ...]:
        """The frequencies of a text of `length` tokens."""


@dataclass(frozen=True)
class Rotation:
    """The rotary record of captured vectors.

    Without a record, `problem` is the reason. It is None in layers without a rotary embedding.
    """

    record: RotaryRecord | None = None
    problem: str | None = None
    table: LengthFrequencies | None = field(default=None, repr=False, compare=False)
    """Where the frequencies come from, if they depend on the length of a text."""

    def for_texts(self, lengths: Iterable[int]) -> Rotation:
        """The record of texts with these numbers of tokens.

        Frequencies of the rope types dynamic and longrope depend on the length of a text. If the
        texts have different ones, there is no record.
        """
        if self.record is None or self.table is None:
            return self
        found: dict[tuple[float, ...], int] = {}  # frequencies → length of the first such text
        for length in sorted({length for length in lengths if length > 0}):
            found.setdefault(self.table.frequencies(length), length)
            if len(found) > 1:
                one, other = found.values()
                return Rotation(
                    problem="the frequencies depend on the length of a text (rope type dynamic or "
                    f"longrope), and texts of {one:,} and {other:,} tokens have different ones"
                )
        try:
            frequencies = next(iter(found), self.record.frequencies)
            return Rotation(replace(self.record, frequencies=frequencies))
        except RotaryError as error:
            return Rotation(problem=f"the frequencies of long texts cannot be used: {error}")


@dataclass(frozen=True)
class Rotations:
    """The rotation of vectors that are captured after RoPE, and of those captured before it."""

    after: Rotation = Rotation()
    before: Rotation = Rotation()


@dataclass(frozen=True)
class Logits:
    """What a layer's attention function does besides `scale · q·k` and its window."""

    softcap: float | None = None
    sinks: bool = False  # a learned logit per head takes part in the softmax
    biased: bool = False  # a mask or a bias changes the logits of visible keys


@dataclass(frozen=True)
class LayerFacts:
    """The attention of one layer."""

    layer: int
    q_heads: int
    k_heads: int
    width: int
    type: LayerType
    window: int | None  # number of tokens that a query sees; None for all earlier tokens
    selective: bool  # the keys that a query sees depend on more than their distance
    scale: float
    softcap: float | None
    logits: Logits | None  # None if their computation is not known
    rope: bool  # False on NoPE layers and in models without rotary embedding
    pre_rope_known: bool  # whether vectors before the rotary embedding can be captured
    rotations: Rotations = field(default=Rotations(), compare=False)

    @property
    def group(self) -> int:
        """The number of query heads that share a key head."""
        return self.q_heads // self.k_heads

    @property
    def chunked(self) -> bool:
        """Whether the window is a chunk."""
        return self.type == "chunked_attention"

    def rule(self, sinks: Tensor | None = None, extra: Tensor | None = None) -> AttentionRule:
        """The rule of a call of this layer."""
        return AttentionRule(self.scale, self.softcap, self.window, self.chunked, sinks, extra)

    def rotation(self, pre_rope: bool) -> Rotation:
        """How RoPE turns the captured vectors."""
        return self.rotations.before if pre_rope else self.rotations.after


@dataclass(frozen=True)
class ModelLayout:
    """All layers whose attention can be captured, in order."""

    num_layers: int
    layers: tuple[LayerFacts, ...]
    compressed_layers: tuple[int, ...] = ()  # layers whose keys are not tokens

    def __getitem__(self, layer: int) -> LayerFacts:
        return next(facts for facts in self.layers if facts.layer == layer)

    @property
    def layers_without_attention(self) -> list[int]:
        """Layers without self-attention, such as linear attention or cross-attention."""
        known = {facts.layer for facts in self.layers} | {*self.compressed_layers}
        return [layer for layer in range(self.num_layers) if layer not in known]


@dataclass(frozen=True)
class AttentionRule:
    """The logits of one attention call: `softcap · tanh(scale · q·k / softcap) + extra`."""

    scale: float
    softcap: float | None
    window: int | None  # tokens of the window or chunk; None for full attention
    chunked: bool
    sinks: Tensor | None = None  # (query heads,) learned logits
    extra: Tensor | None = None  # (texts or 1, heads or 1, s, s) is added; -inf hides a key

    def first_visible(self, position: Tensor) -> Tensor:
        """(n,) the first key that each query sees, by window or chunk."""
        found: Tensor = first_visible(position, self.window, self.chunked)
        return found


class LayerCall(NamedTuple):
    """The attention call of a layer: the tokens of all texts, one text after the other.

    Tensors may be views with any strides. `stored_query` and `stored_key` are what a dump keeps:
    queries and keys themselves, or those before the rotary embedding.
    """

    layer: int
    query: Tensor  # (tokens, heads, d)
    key: Tensor  # (tokens, key heads, d)
    value: Tensor | None  # (tokens, key heads, d of values); None if a key has no value
    stored_query: Tensor  # (tokens, heads, d)
    stored_key: Tensor  # (tokens, key heads, d)
    rule: AttentionRule | None  # None if logits are not known, or not wanted


class CallReceiver(Protocol):
    """What takes rows from attention calls."""

    def on_call(self, call: LayerCall) -> None:
        """Called before the attention of a layer is computed."""


def rotary_problems(layers: Iterable[LayerFacts], pre_rope: bool) -> dict[str, list[int]]:
    """The layers whose rotation is not known, by reason."""
    found: dict[str, list[int]] = {}
    for facts in layers:
        problem = facts.rotation(pre_rope).problem
        if problem is not None:
            found.setdefault(problem, []).append(facts.layer)
    return found


def first_tokens(lengths: Sequence[int]) -> Ints:
    """(texts,) where each text begins among the tokens of all texts."""
    return np.cumsum([0, *lengths], dtype=np.int64)[:-1]
