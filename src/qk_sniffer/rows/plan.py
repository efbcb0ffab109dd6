"""What is kept of every forward: heads, positions and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qk_dump.columns import written_names
from qk_dump.heads import HeadId, Kind
from qk_sniffer.engines.engine import first_tokens
from qk_sniffer.sampling.attended_keys import AttendedSampler
from qk_sniffer.sampling.heads import WantedLayer
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
    attended_layers: frozenset[int] = frozenset()  # layers of which keys can be drawn

    def heads(self) -> list[HeadId]:
        """The heads of a dump, and their keys drawn by attention."""
        heads = [head for layer in self.wanted for head in layer.head_ids()]
        if self.attended is None:
            return heads
        keys = [one for one in heads if one.kind == "k" and one.layer in self.attended_layers]
        return heads + [one._replace(attended=True) for one in keys]

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
