"""The attention calls of one text, from the pieces in which vLLM prefills it.

A text that is prefilled whole is not copied. Of a text in pieces, queries, keys and the lengths of
values of every wanted layer are held on the device until its last piece, because the attention of a
query needs all earlier keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qk_sniffer.engines.engine import AttentionRule, LayerCall, LayerFacts
from qk_sniffer.rows.plan import RowPlan, texts_of_forward
from qk_sniffer.rows.taken import TakenRows
from qk_sniffer.rows.taker import RowTaker
from qk_toolkit.errors import ToolkitError


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of a text in one layer."""

    first: int  # position of the first token
    query: Tensor  # (tokens, heads, d)
    key: Tensor  # (tokens, key heads, d)
    value: Tensor  # (tokens, key heads, d of values)

    def __len__(self) -> int:
        return len(self.query)

    def part(self, number: int) -> Piece:
        """The first tokens."""
        return Piece(self.first, self.query[:number], self.key[:number], self.value[:number])

    def with_norms(self) -> Piece:
        """The piece with the lengths of values (tokens, key heads, 1) in place of values."""
        norms = torch.linalg.vector_norm(self.value.float(), dim=-1, keepdim=True)
        return Piece(self.first, self.query, self.key, norms)

    def room(self, length: int) -> Piece:
        """Tensors for a whole text of `length` tokens."""
        made = (one.new_empty(length, *one.shape[1:]) for one in (self.query, self.key, self.value))
        return Piece(0, *made)

    def put(self, piece: Piece) -> None:
        """Copy another piece of the text to its place."""
        place = slice(piece.first, piece.first + len(piece))
        self.query[place] = piece.query
        self.key[place] = piece.key
        self.value[place] = piece.value


class TextCalls:
    """The calls of one text. Every position of every wanted layer must come once, in order."""

    def __init__(self, plan: RowPlan, number: int, ids: Sequence[int]) -> None:
        self.number = number
        self._plan = plan
        self._length = len(ids)
        self._facts = {layer.facts.layer: layer.facts for layer in plan.wanted}
        self._taker = RowTaker(plan)
        self._taker.expect(texts_of_forward(plan, [number], [ids]))
        self._seen = dict.fromkeys(self._facts, 0)  # positions of every layer
        self._held: dict[int, Piece] = {}

    def add(self, layer: int, piece: Piece, sinks: Tensor | None = None) -> None:
        """Add a piece of a layer; `sinks` (heads,) are its learned logits."""
        if layer not in self._facts or piece.first >= self._length:  # the generated token
            return
        self._require_next(layer, piece.first)
        piece = piece.part(self._length - piece.first)
        self._seen[layer] += len(piece)
        if len(piece) == self._length:
            self._give(layer, piece, sinks)
            return
        piece = piece.with_norms()
        if layer not in self._held:
            self._held[layer] = piece.room(self._length)
        self._held[layer].put(piece)
        if self._seen[layer] == self._length:
            self._give(layer, self._held.pop(layer), sinks)

    def take(self) -> TakenRows:
        """The rows of the text. Raises an error if a layer was not called for all positions."""
        for layer, seen in self._seen.items():
            if seen < self._length:
                raise ToolkitError(
                    f"text {self.number}, layer {layer}: vLLM computed attention for {seen:,} of "
                    f"{self._length:,} tokens; the rows of this text are not complete. Use "
                    "--engine hf for this model."
                )
        return self._taker.take()

    def _require_next(self, layer: int, first: int) -> None:
        """Refuse a piece that does not follow the earlier ones."""
        seen = self._seen[layer]
        if first == seen:
            return
        where = f"text {self.number}, layer {layer}"
        if first > seen:
            raise ToolkitError(
                f"{where}: vLLM computed no attention for positions {seen:,} to {first - 1:,}. "
                "Leave out settings in vllm.options that skip tokens."
            )
        raise ToolkitError(
            f"{where}: vLLM began position {first:,} again after {seen:,} positions: the request "
            "was preempted, because its cache had no room. Lower inference.batch_size or "
            "tokenizer.max_length, or give vLLM more memory for its cache."
        )

    def _give(self, layer: int, piece: Piece, sinks: Tensor | None) -> None:
        facts = self._facts[layer]
        rule = _rule(facts, sinks) if self._plan.attention else None
        q, k = piece.query, piece.key
        self._taker.on_call(LayerCall(layer, q, k, piece.value, q, k, rule))


def _rule(facts: LayerFacts, sinks: Tensor | None) -> AttentionRule:
    return AttentionRule(facts.scale, facts.softcap, facts.window, facts.chunked, sinks)
