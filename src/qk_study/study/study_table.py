"""A table of a study, as CSV, Markdown and LaTeX."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from attention_plasticity.comparison.latex import PACKAGE, latex_float
from attention_plasticity.comparison.tables import (
    WrittenTable,
    as_csv,
    markdown_table,
    markdown_text,
)


@dataclass(frozen=True)
class StudyTable:
    """A table: its numbers, and how it is written for readers."""

    name: str  # of its files
    caption: str
    frame: pd.DataFrame
    written: dict[str, WrittenTable | None] = field(default_factory=dict)  # by caption

    @property
    def files(self) -> dict[str, str]:
        """The content of its files by their endings: CSV only, if nothing is for readers."""
        found = {"csv": as_csv(self.frame)}
        shown = self._shown
        if not shown:
            return found
        found["md"] = "\n".join(_markdown(*pair) for pair in shown.items())
        floats = [
            latex_float(table, caption, self._label(number), [])
            for number, (caption, table) in enumerate(shown.items(), start=1)
        ]
        found["tex"] = "\n".join([PACKAGE, *floats])
        return found

    @property
    def _shown(self) -> dict[str, WrittenTable]:
        return {caption: table for caption, table in self.written.items() if table is not None}

    @property
    def first_markdown(self) -> str:
        """The first table for readers in Markdown; empty if there is none."""
        return next((_markdown(*pair) for pair in self._shown.items()), "")

    def _label(self, number: int) -> str:
        """The label of a float in LaTeX: `study-fifths`, `study-fifths-2`."""
        ending = "" if number == 1 else f"-{number}"
        return f"study-{self.name.replace('_', '-')}{ending}"


def _markdown(caption: str, table: WrittenTable) -> str:
    note = f"\n{markdown_text(table.note)}\n" if table.note else ""
    return f"{markdown_text(caption)}\n\n{markdown_table(table)}{note}"
