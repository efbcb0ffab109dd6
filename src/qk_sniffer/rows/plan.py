"""What is kept of every forward: heads, positions and columns, and how many bytes they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from qk_dump.columns import HEAD, LAYER, written_names
from qk_dump.heads import HeadId, Kind
from qk_sniffer.engines.engine import first_tokens
from qk_sniffer.rows.layer_tables import LayerTable, Part
from qk_sniffer.sampling.attended_keys import AttendedSampler
from qk_sniffer.sampling.heads import KINDS, WantedLayer
from qk_sniffer.sampling.positions import PositionSampler
from qk_sniffer.sampling.rows import KindRows, sample_rows
from qk_toolkit.arrays import Ints


@dataclass(frozen=True)
class RowPlan:
    """Heads, positions and columns of a capture or a tap."""

    wanted: tuple[WantedLayer, ...]
    sampler: PositionSampler
    attention: bool  # attention columns of queries, and lengths of the values of keys
    tokens: bool  # columns by token
    attended: AttendedSampler | None = None  # None if no keys are drawn by attention

    def draws(self, layer: WantedLayer) -> bool:
        """Whether keys of a layer are drawn by attention: its logits must be known."""
        return self.attended is not None and layer.facts.logits is not None

    def tables(self, *, half: bool = False) -> list[LayerTable]:
        """The tables of the rows; vectors are float16 with `half`."""
        parts: list[tuple[WantedLayer, Part]] = []
        for kind in KINDS:
            parts += [(one, Part(one.facts.layer, kind)) for one in self.wanted]
        drawn = filter(self.draws, self.wanted)
        parts += [(one, Part(one.facts.layer, "k", attended=True)) for one in drawn]
        return [
            LayerTable(
                part,
                layer.heads(part.kind),
                self.names(part.kind),
                layer.facts.width,
                layer.facts.group,
                half,
            )
            for layer, part in sorted(parts, key=lambda one: (one[1].attended, one[1].layer))
            if layer.heads(part.kind)
        ]

    def heads(self) -> list[HeadId]:
        """The heads of a dump, and their keys drawn by attention."""
        return [head for table in self.tables() for head in table.head_ids]

    def names(self, kind: Kind, *, tokens: bool = True) -> tuple[str, ...]:
        """The columns of the rows of a kind; `tokens` is whether tokens are known."""
        return written_names(
            kind,
            attention=self.attention,
            tokens=self.tokens and tokens,
            received=kind == "k" and self.attended is not None,
        )


@dataclass(frozen=True)
class ForwardTexts:
    """The texts of one forward, and the rows to take of each layer and kind."""

    examples: Ints  # (texts,) their numbers
    lengths: tuple[int, ...]  # in tokens
    rows: Mapping[tuple[int, Kind], KindRows]
    sampler: PositionSampler  # that chose these rows
    tokens: Ints | None = None  # (tokens,) ids of all texts, one text after the other

    @cached_property
    def starts(self) -> Ints:
        """(texts,) where each text begins among the tokens of all texts."""
        return first_tokens(self.lengths)


def texts_of_forward(
    plan: RowPlan,
    examples: Sequence[int],
    token_ids: Sequence[Sequence[int]],
    *,
    known: bool = True,
) -> ForwardTexts:
    """Sample the rows of texts with these tokens; if they are not `known`, only their number is."""
    lengths, tokens = tuple(len(ids) for ids in token_ids), None
    if plan.tokens and known:
        tokens = np.concatenate([np.empty(0, np.int64), *(np.asarray(ids) for ids in token_ids)])
    rows = sample_rows(plan.sampler, plan.wanted, examples, lengths)
    return ForwardTexts(np.array(examples, np.int64), lengths, rows, plan.sampler, tokens)


def bytes_of_rows(plan: RowPlan, rows: Mapping[Kind, float], *, half: bool) -> float:
    """The bytes of all heads, if each has this number of rows of its kind.

    The columns `layer` and `head` take no space in a file.
    """
    total = 0.0
    for table in plan.tables(half=half):
        if not table.part.attended:
            size = sum(_width(one.type) for one in table.schema if one.name not in (LAYER, HEAD))
            total += len(table.heads) * rows[table.part.kind] * size
    return total


def _width(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size * _width(kind.value_type))
    if pa.types.is_list(kind):
        return _width(kind.value_type)
    return int(kind.bit_width // 8)


def text_bytes(plan: RowPlan, length: int, *, half: bool) -> float:
    """The expected bytes of the rows of a text with this number of tokens."""
    rows = {kind: plan.sampler.expected_rows(length, kind) for kind in KINDS}
    rows["k"] += 0 if plan.attended is None else plan.attended.capacity(length)
    return bytes_of_rows(plan, rows, half=half)
