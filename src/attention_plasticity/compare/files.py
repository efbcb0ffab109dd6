"""Files of a comparison: the table in three formats, and the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from attention_plasticity.compare.figures import profiles_figure, scores_figure, trajectory_figure
from attention_plasticity.compare.runs import Correlation
from attention_plasticity.compare.text import as_csv, as_latex, as_markdown, escape_formula
from attention_plasticity.plots.saving import save_figure
from qk_toolkit.files import require_writable, staged, write_through


def require_folder(folder: Path) -> None:
    """Raise a `ConfigError` if the files of a comparison cannot be written."""
    require_writable(folder / "correlations.csv", "Choose another output_dir.")  # the longest name


def write_comparison(
    folder: Path,
    compared: pd.DataFrame,
    differences: pd.DataFrame,
    scores: pd.DataFrame | None,
    relations: Sequence[Correlation],
    kind: str,
    trajectory: bool,
) -> Iterator[Path]:
    """Write all files and yield the path of each finished file."""
    texts = {"compare.csv": as_csv, "compare.md": as_markdown, "compare.tex": as_latex}
    for name, text_of in texts.items():
        yield _write(folder / name, text_of(compared))
    named = differences.assign(
        **{name: [escape_formula(text) for text in differences[name]] for name in ("run", "minus")}
    )
    yield _write(folder / "differences.csv", named.to_csv(index=False, na_rep="nan"))
    if relations:
        found = pd.DataFrame(relations)
        found["score"] = [escape_formula(name) for name in found["score"]]
        yield _write(folder / "correlations.csv", found.to_csv(index=False))
    figures = {"profiles": profiles_figure(compared)}
    if trajectory:
        figures["trajectory"] = trajectory_figure(compared)
    if scores is not None:
        figures["scores"] = scores_figure(compared, scores, relations)
    for name, figure in figures.items():
        path = folder / f"{name}.{kind}"
        save_figure(figure, path)
        yield path


def _write(path: Path, text: str) -> Path:
    with staged(path) as draft:
        write_through(draft, text)
    return path
