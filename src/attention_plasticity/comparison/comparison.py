"""`compare` puts several runs side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from attention_plasticity.comparison.data import (
    AnyScores,
    ComparisonData,
    comparison_data,
)
from attention_plasticity.comparison.drawn import (
    profiles_caption,
    scores_caption,
    trajectory_caption,
)
from attention_plasticity.comparison.latex import comparison_latex
from attention_plasticity.comparison.tables import as_csv, comparison_markdown
from attention_plasticity.tables.finished_run import AnyRun
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import require_writable, user_path, write_text
from qk_toolkit.formatting import count

if TYPE_CHECKING:  # tables do not need matplotlib, which is slow to import
    from matplotlib.figure import Figure

_CAPTIONS: dict[str, Callable[[ComparisonData], str]] = {
    "profiles": profiles_caption,
    "trajectory": trajectory_caption,
    "scores": scores_caption,
}
_TABLES: dict[str, Callable[[ComparisonData], str]] = {
    "compare.csv": lambda data: as_csv(data.table),
    "compare.md": comparison_markdown,
    "compare.tex": comparison_latex,
    "differences.csv": lambda data: as_csv(data.differences),
    "key_heads.csv": lambda data: as_csv(data.key_heads),
    "notes.csv": lambda data: as_csv(data.notes),
    "correlations.csv": lambda data: as_csv(data.correlations),
}
_OF_SCORES = ("correlations.csv", "scores")


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(ComparisonData):
    """Several runs side by side, as `compare` returns them. Notebooks show the tables.

    `table` has the means over heads of every run and layer type, `differences` those of every run
    minus the first run, and `correlations` those of the drop with scores. `profiles` has the means
    over heads per bin or bucket, and `key_heads` the means over key heads. `notes` lists all
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
        from attention_plasticity.comparison.figures import (
            profiles_figure,
            scores_figure,
            trajectory_figure,
        )
        from attention_plasticity.plots.captions import set_caption

        self._require_kind(kind)
        if kind == "profiles":
            figure = profiles_figure(self.profiles, self.shown, self.cautions)
        elif kind == "scores" and self.scores is not None:
            figure = scores_figure(self.table, self.scores, self.relations, self.cautions)
        else:
            figure = trajectory_figure(self.table, self.cautions)
        set_caption(figure, self.caption(kind))
        return figure

    def caption(self, kind: str = "profiles") -> str:
        """A caption of a figure: what it shows, the runs, settings, errors and cautions."""
        self._require_kind(kind)
        return _CAPTIONS[kind](self)

    def _require_kind(self, kind: str) -> None:
        if kind not in _CAPTIONS:
            raise ConfigError(f"kind: {kind!r}: unknown figure; choose {', '.join(_CAPTIONS)}")
        if kind == "scores" and self.scores is None:
            raise ConfigError("kind: 'scores' draws scores; compare the runs with scores")

    def save(
        self, folder: str | os.PathLike[str], figures: str = "png", *, trajectory: bool = False
    ) -> list[Path]:
        """Write tables, figures (png, svg or pdf) and captions, and return their paths."""
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
        0  first layer      2        0.69
        1   last layer      2        0.76
    """
    return compared(runs, labels, scores, None if force else "force=True")


def compared(
    runs: Sequence[AnyRun],
    labels: Sequence[str] | None,
    scores: AnyScores | None,
    remedy: str | None,
) -> Comparison:
    """Compare runs. `remedy` is how a caller forces a comparison; None: it is forced."""
    data = comparison_data(runs, labels, scores, remedy)
    return Comparison(**{item.name: getattr(data, item.name) for item in fields(data)})


@dataclass(frozen=True)
class PlannedFiles:
    """The files of a comparison."""

    tables: tuple[Path, ...]
    figures: dict[str, Path]  # by kind; captions are beside them


def planned_files(folder: Path, form: str, *, scores: bool, trajectory: bool) -> PlannedFiles:
    """The files to write. Raises a `ConfigError` if one of them cannot be written."""
    from attention_plasticity.plots.saving import require_target

    left_out = [*(() if scores else _OF_SCORES), *(() if trajectory else ("trajectory",))]
    figures = {kind: folder / f"{kind}.{form}" for kind in _CAPTIONS if kind not in left_out}
    tables = tuple(folder / name for name in _TABLES if name not in left_out)
    for path in figures.values():
        require_target(path)
    for path in tables:
        require_writable(path, "Choose another folder.")
    return PlannedFiles(tables, figures)


def write_comparison(data: Comparison, files: PlannedFiles) -> Iterator[Path]:
    """Write all files and yield the path of each finished file."""
    from attention_plasticity.plots.saving import caption_path, save_figure

    for path in files.tables:
        write_text(path, _TABLES[path.name](data))
        yield path
    for kind, path in files.figures.items():
        save_figure(data.plot(kind), path)
        yield path
        yield caption_path(path)
