"""The heads of a rank of vLLM, and the attention calls of the texts that it prefills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from qk_dump.heads import HeadId
from qk_dump.rows import Rows
from qk_sniffer.engines.engine import LayerCall, Rotations
from qk_sniffer.rows.host_rows import HostRows
from qk_sniffer.rows.plan import RowPlan, texts_of_forward
from qk_sniffer.rows.taker import RowTaker
from qk_sniffer.sampling.heads import WantedLayer
from qk_toolkit.errors import ToolkitError


@dataclass(frozen=True)
class Share:
    """The heads of a rank, by their numbers in the model: consecutive heads, as in vLLM."""

    q: range
    k: range

    @classmethod
    def of(cls, rank: int, ranks: int, q_heads: int, k_heads: int) -> Share:
        """The heads of a rank; the number of key heads is a multiple of `ranks`."""
        q, k = q_heads // ranks, k_heads // ranks
        return cls(range(rank * q, (rank + 1) * q), range(rank * k, (rank + 1) * k))

    def of_plan(self, plan: RowPlan) -> RowPlan:
        """What this rank keeps; heads are counted from its first ones."""
        layers = tuple(
            WantedLayer(
                replace(layer.facts, rotations=Rotations()),
                tuple(head - self.q.start for head in layer.q if head in self.q),
                tuple(head - self.k.start for head in layer.k if head in self.k),
            )
            for layer in plan.wanted
        )
        attended = plan.attended
        if attended is not None:
            attended = replace(attended, first_key_head=self.k.start)
        wanted = tuple(layer for layer in layers if layer.q or layer.k)
        return replace(plan, wanted=wanted, attended=attended)

    def numbered(self, rows: Mapping[HeadId, Rows]) -> dict[HeadId, Rows]:
        """Rows of this rank with the numbers of heads in the model."""
        first = {"q": self.q.start, "k": self.k.start}
        return {
            head._replace(head=head.head + first[head.kind]): part for head, part in rows.items()
        }


class TextCalls:
    """The calls of one text, which vLLM prefills in one step: one call per wanted layer."""

    def __init__(self, plan: RowPlan, number: int, ids: Sequence[int]) -> None:
        self.number = number
        self._attention = plan.attention
        self._length = len(ids)
        self._facts = {layer.facts.layer: layer.facts for layer in plan.wanted}
        self._taker = RowTaker(plan)
        self._taker.expect(texts_of_forward(plan, [number], [ids]))
        self._seen: set[int] = set()  # layers

    def add(
        self,
        layer: int,
        first: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> None:
        """Add the tensors (tokens, heads, d) of a layer, beginning at position `first`.

        `sinks` (heads,) are its learned logits.
        """
        if layer not in self._facts or first >= self._length:  # the generated token
            return
        where = f"text {self.number}, layer {layer}"
        if layer in self._seen:
            raise ToolkitError(
                f"{where}: vLLM computed attention twice: the request was preempted, because its "
                "cache had no room. Lower inference.batch_size or tokenizer.max_length, or give "
                "vLLM more memory for its cache."
            )
        if len(query) != self._length:
            raise ToolkitError(
                f"{where}: vLLM computed attention for {len(query):,} of {self._length:,} tokens "
                "in a step. Leave out settings in vllm.options that divide a text or skip tokens."
            )
        self._seen.add(layer)
        rule = self._facts[layer].rule(sinks) if self._attention else None
        self._taker.on_call(LayerCall(layer, query, key, value, query, key, rule))

    def take(self) -> HostRows:
        """The rows of the text. Raises an error if a layer was not called."""
        taken = self._taker.take()
        if taken.missing:
            raise ToolkitError(
                f"text {self.number}, layer {taken.missing[0]}: vLLM computed no attention; use "
                "--engine hf for this model"
            )
        return taken
