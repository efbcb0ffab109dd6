"""Several runs side by side, as `compare_runs` returns them and `study RUN RUN` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd

from attention_plasticity.compare.cautions import cautions_table, obstacles
from attention_plasticity.compare.runs import named_runs
from attention_plasticity.compare.several import SeveralRuns
from attention_plasticity.compare.study_tables import tables_of
from attention_plasticity.compare.writers import (
    Table,
    csv_text,
    markdown_table,
    markdown_text,
    print_lines,
    print_table,
    table_files,
)
from attention_plasticity.tables.finished_run import AnyRun
from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

if TYPE_CHECKING:  # tables do not need matplotlib, which is slow to import
    from matplotlib.figure import Figure
    from rich.console import Console

_SHOWN = ("means", "differences", "layer_types", "baselines", "key_heads")


class Comparison(SeveralRuns):
    """Several runs side by side. Notebooks show the tables.

    `runs` are the runs with their names. `summary` has the means over heads of every run and their
    differences from the first run, `key_heads` the means over key heads, `baselines` those of runs
    that have baselines, and `notes` the cautions about these numbers.
    """

    @property
    def summary(self) -> pd.DataFrame:
        """Means over all heads, and the differences from the first run."""
        return self.by(None)

    @property
    def notes(self) -> pd.DataFrame:
        """The cautions: what they concern, which runs, and the text."""
        return cautions_table(self.cautions)

    @cached_property
    def tables(self) -> list[Table]:
        """The tables for readers."""
        found = (one for one in tables_of(self) if one.name in _SHOWN)
        return [table for one in found for table in one.shown]

    def __repr__(self) -> str:
        names = ", ".join(run.label for run in self.runs)
        return f"Comparison({names}; {count(len(self.cautions), 'note')})"

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def to_csv(self) -> str:
        """`summary` as CSV."""
        return csv_text(self.summary)

    def to_markdown(self) -> str:
        """All tables and notes in GitHub Markdown."""
        listed = "".join(f"- {markdown_text(clean(one.text))}\n" for one in self.cautions)
        parts = [*map(markdown_table, self.tables), *([f"Notes:\n\n{listed}"] if listed else [])]
        return "\n".join(parts)

    def to_latex(self) -> str:
        """All tables in LaTeX, each with a caption and a label; needs booktabs and graphicx."""
        return table_files("compare", self.summary, self.tables)["compare.tex"]

    def plot(self) -> Figure:
        """Draw the mean profile of every run over the context."""
        from attention_plasticity.figures.draw import draw_of_runs

        return draw_of_runs("profiles", self)


def compare_runs(
    runs: Sequence[AnyRun], labels: Sequence[str] | None = None, force: bool = False
) -> Comparison:
    """Compare finished runs, given as `Run` objects or as folders.

    `labels` are the names of the runs, by default those of the models. Runs whose settings differ
    are refused; `force` compares them with a note.

    Examples:
        >>> from attention_plasticity import compare_runs, open_run
        >>> run = open_run("results/sample")
        >>> parts = [run.select(layers=[0]), run.select(layers=[29])]
        >>> comparison = compare_runs(parts, labels=["first layer", "last layer"])
        >>> table = comparison.summary.query("metric == 'ap_overall'").reset_index()
        >>> table[["run", "minus", "heads", "mean"]].round(2)
                   run        minus  heads  mean
        0  first layer                   2  0.69
        1   last layer                   2  0.76
        2   last layer  first layer      4  0.08
    """
    named = named_runs(runs, labels)
    if len(named) < 2:
        raise ConfigError(f"runs: expected two runs or more, got {len(named)}")
    found = obstacles(named)
    if found and not force:
        reasons = "; ".join(caution.text for caution in found)
        raise ConfigError(f"these runs cannot be compared: {reasons}. force=True shows them anyway")
    return Comparison(tuple(named))


def print_comparison(data: Comparison, console: Console) -> None:
    """Print the tables and all notes."""
    for table in data.tables:
        print_table(table, console)
        console.print()
    for one in data.cautions:
        print_lines(console, one.text, first="note: ")
