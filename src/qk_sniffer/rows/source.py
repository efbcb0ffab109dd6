"""Where rows come from: an engine in this process, or processes that an engine has started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from qk_dump.heads import HeadId
from qk_dump.rows import Rows
from qk_sniffer.engines.engine import Engine
from qk_sniffer.rows.plan import ForwardTexts, RowPlan
from qk_sniffer.rows.taker import RowTaker
from qk_toolkit.errors import ToolkitError


class Taken(Protocol):
    """The rows that were taken of some texts."""

    @property
    def known_attention(self) -> set[int]:
        """The layers whose attention was computed."""

    def rows(self) -> dict[HeadId, Rows]:
        """The rows of every wanted head; keys come before queries."""


class RowSource(Protocol):
    """Runs texts and takes the rows of a plan."""

    def take(self, texts: ForwardTexts, token_ids: Sequence[Sequence[int]]) -> Taken:
        """Run these texts. Raises a `ToolkitError` if a wanted layer was not called."""


class EngineRows:
    """The rows of an engine that runs in this process."""

    def __init__(self, engine: Engine, plan: RowPlan) -> None:
        self._engine = engine
        self._taker = RowTaker(plan)

    def take(self, texts: ForwardTexts, token_ids: Sequence[Sequence[int]]) -> Taken:
        """Run these texts in one forward."""
        self._taker.expect(texts)
        self._engine.run(token_ids, self._taker)
        taken = self._taker.take()
        if taken.missing:
            raise ToolkitError(
                f"layer {taken.missing[0]} made no attention call for text {texts.examples[0]}, "
                "but it made one for the probe; the model cannot be captured. Choose another model."
            )
        return taken
