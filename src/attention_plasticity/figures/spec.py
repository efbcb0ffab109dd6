"""What the registry holds: a figure as a table, columns, and what it needs.

Whether a figure can be drawn, and why not, follows from its entry. This file imports no library for
numbers or figures, so that the help is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attention_plasticity.figures.settings import FigureOptions
from attention_plasticity.metric import Metric
from attention_plasticity.metrics import TABLES, TableKind

if TYPE_CHECKING:
    from attention_plasticity.tables.finished_run import FinishedRun

NONE_AT_ONE_POSITION = (
    "has no RoPE-aligned plasticity; it needs the rotary records of the dump: "
    "attention-plasticity add-rotary, and analyze again"
)


@dataclass(frozen=True)
class Need:
    """Something without which a figure cannot be drawn."""

    reason: str  # what is needed and how to get it, after the word "needs"
    met: Callable[[FinishedRun], bool]


def known(table: TableKind, column: str, reason: str) -> Need:
    """A run must have a value of this column."""

    def met(run: FinishedRun) -> bool:
        if not run.has(table):
            return False
        found = run.table(table)
        return column in found and bool(found[column].notna().any())

    return Need(reason, met)


@dataclass(frozen=True)
class Spec:
    """One entry of the registry. Labels come from the columns in metrics.py."""

    name: str
    shows: str  # one line for the help
    table: TableKind
    data: str  # the function that shapes its data: of `Request` to `Drawing`, as `maps.roles`
    x: tuple[str, ...] = ()  # columns across; each has a panel of its own
    y: tuple[str, ...] = ()  # columns up
    title: str = ""
    caption: str = ""  # the first sentences
    needs: tuple[Need, ...] = ()
    options: tuple[str, ...] = ()  # beside those of every figure
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Files of `plot all` by their names, with their options; empty: one with the name."""

    @property
    def files(self) -> Mapping[str, Mapping[str, Any]]:
        """The files of `plot all`, with the options of each."""
        return self.variants or {self.name: {}}

    @property
    def taken(self) -> tuple[str, ...]:
        """The names of all options that it takes."""
        return (*FigureOptions.everywhere, *self.options)

    def metric(self, column: str) -> Metric:
        """A column of its table; an unknown one has its name as label."""
        return TABLES[self.table].by_name.get(column) or Metric(column, column, "")

    def obstacle(self, run: FinishedRun) -> str | None:
        """Why it cannot be drawn; None if it can."""
        if run.heads is not None and run.has(self.table) and run.table(self.table).empty:
            return "other heads: its table has none of those that are selected"
        return next((need.reason for need in self.needs if not need.met(run)), None)
