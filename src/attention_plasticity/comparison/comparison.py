"""`compare` puts several runs side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from attention_plasticity.comparison.data import (
    AnyScores,
    ComparisonData,
    comparison_data,
)
from attention_plasticity.comparison.formats import as_csv, comparison_markdown
from attention_plasticity.comparison.latex import comparison_latex
from attention_plasticity.tables.run_list import AnyRun
from qk_toolkit.formatting import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(ComparisonData):
    """Several runs side by side, as `compare` returns them. Notebooks show the tables.

    `table` has the means over heads of every run and layer type, `differences` those of every run
    minus the first run, and `correlations` those of the drop with scores. `notes` lists all
    cautions; the column `cautions` of the other tables has those of each row.
    """

    def __repr__(self) -> str:
        names = ", ".join(run.label for run in self.runs)
        return f"Comparison({names}; {count(len(self.notes), 'note')})"

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def to_csv(self) -> str:
        """`table` as CSV."""
        return as_csv(self.table)

    def to_markdown(self) -> str:
        """All tables and notes in GitHub Markdown."""
        return comparison_markdown(self)

    def to_latex(self) -> str:
        """All tables in LaTeX, each with a caption, a label and notes; needs booktabs."""
        return comparison_latex(self)

    def plot(self, kind: str = "profiles") -> Figure:
        """Draw `profiles`, the `trajectory` over runs in their order, or `scores`."""
        from attention_plasticity.comparison.drawing import draw

        return draw(self, kind)

    def caption(self, kind: str = "profiles") -> str:
        """A caption of a figure: what it shows, the runs, settings, errors and cautions."""
        from attention_plasticity.comparison.drawing import caption

        return caption(self, kind)

    def save(
        self, folder: str | os.PathLike[str], figures: str = "png", *, trajectory: bool = False
    ) -> list[Path]:
        """Write tables, figures (png, svg or pdf) and captions, and return their paths."""
        from attention_plasticity.comparison.files import planned_files, write_comparison
        from qk_toolkit.files import user_path

        files = planned_files(
            user_path(folder), figures, scores=self.scores is not None, trajectory=trajectory
        )
        return list(write_comparison(self, files))


def compare(
    runs: Sequence[AnyRun],
    labels: Sequence[str] | None = None,
    scores: AnyScores | None = None,
    force: bool = False,
) -> Comparison:
    """Compare finished runs, given as `Run` objects or as folders.

    `labels` are the names of the runs, by default those of the models. `scores` is a table or a CSV
    file with a column `model`, which has the labels, and one column per benchmark. Runs whose
    settings differ are refused, and scores of runs with unequal contexts; `force` shows them with a
    note.

    Examples:
        >>> from attention_plasticity import compare, open_run
        >>> run = open_run("results/sample")
        >>> parts = [run.select(layers=[0]), run.select(layers=[29])]
        >>> comparison = compare(parts, labels=["first layer", "last layer"])
        >>> comparison.table[["run", "heads", "ap_overall"]].round(2)
                   run  heads  ap_overall
        0  first layer      2        0.70
        1   last layer      2        0.77
    """
    data = comparison_data(runs, labels, scores, None if force else "force=True")
    return Comparison(**{item.name: getattr(data, item.name) for item in fields(data)})
