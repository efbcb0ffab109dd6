"""Files of a comparison: tables in three formats, figures and their captions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from attention_plasticity.comparison.data import ComparisonData
from attention_plasticity.comparison.drawing import KINDS, draw
from attention_plasticity.comparison.formats import as_csv, comparison_markdown
from attention_plasticity.comparison.latex import comparison_latex
from attention_plasticity.plots.saving import caption_path, require_target, save_figure
from qk_toolkit.files import require_writable, write_text

_TABLES: dict[str, Callable[[ComparisonData], str]] = {
    "compare.csv": lambda data: as_csv(data.table),
    "compare.md": comparison_markdown,
    "compare.tex": comparison_latex,
    "differences.csv": lambda data: as_csv(data.differences),
    "notes.csv": lambda data: as_csv(data.notes),
    "correlations.csv": lambda data: as_csv(data.correlations),
}
_OF_SCORES = ("correlations.csv", "scores")


@dataclass(frozen=True)
class PlannedFiles:
    """The files of a comparison."""

    tables: tuple[Path, ...]
    figures: dict[str, Path]  # by kind; captions are beside them


def planned_files(folder: Path, form: str, *, scores: bool, trajectory: bool) -> PlannedFiles:
    """The files to write. Raises a `ConfigError` if one of them cannot be written."""
    left_out = [*(() if scores else _OF_SCORES), *(() if trajectory else ("trajectory",))]
    figures = {kind: folder / f"{kind}.{form}" for kind in KINDS if kind not in left_out}
    tables = tuple(folder / name for name in _TABLES if name not in left_out)
    for path in figures.values():
        require_target(path)
    for path in tables:
        require_writable(path, "Choose another folder.")
    return PlannedFiles(tables, figures)


def write_comparison(data: ComparisonData, files: PlannedFiles) -> Iterator[Path]:
    """Write all files and yield the path of each finished file."""
    for path in files.tables:
        write_text(path, _TABLES[path.name](data))
        yield path
    for kind, path in files.figures.items():
        save_figure(draw(data, kind), path)
        yield path
        yield caption_path(path)
