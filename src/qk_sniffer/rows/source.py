"""Where rows come from: a model in this process, or processes that an engine has started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import nn

from qk_dump.heads import HeadId
from qk_dump.rows import Rows
from qk_sniffer.engines.hf.calls import HfCalls
from qk_sniffer.engines.hf.layout import HfLayout
from qk_sniffer.rows.layer_tables import Part
from qk_sniffer.rows.plan import ForwardTexts, RowPlan
from qk_sniffer.rows.taker import RowTaker
from qk_toolkit.errors import ToolkitError


class Taken(Protocol):
    """The rows that were taken of some texts."""

    @property
    def known_attention(self) -> set[int]:
        """The layers whose attention was computed."""

    def parts(self) -> Iterator[tuple[Part, Rows]]:
        """The rows of every part, with the column `head`; keys come before queries."""

    def rows(self) -> dict[HeadId, Rows]:
        """The rows of every head."""


class RowSource(Protocol):
    """Runs texts and takes the rows of a plan."""

    def take(self, texts: ForwardTexts, token_ids: Sequence[Sequence[int]]) -> Taken:
        """Run these texts. Raises a `ToolkitError` if a wanted layer was not called."""


class HfRows:
    """The rows of a model of transformers in this process."""

    def __init__(
        self, decoder: nn.Module, layout: HfLayout, plan: RowPlan, *, pre_rope: bool, padding: int
    ) -> None:
        """No token of a text attends to the token `padding`."""
        self._decoder = decoder
        self._padding = padding
        self._taker = RowTaker(plan)
        layers = [layer.facts.layer for layer in plan.wanted]
        how = {"pre_rope": pre_rope, "rules": plan.attention}
        self._calls = HfCalls(layout, layers, self._taker, **how)

    def take(self, texts: ForwardTexts, token_ids: Sequence[Sequence[int]]) -> Taken:
        """Run these texts in one forward."""
        self._taker.expect(texts)
        self._calls.run(self._decoder, token_ids, self._padding)
        taken = self._taker.take()
        if taken.missing:
            raise ToolkitError(
                f"layer {taken.missing[0]} made no attention call for text {texts.examples[0]}, "
                "but it made one for the probe; the model cannot be captured. Choose another model."
            )
        return taken
