"""Saves figures as files with their captions, or shows one in a window."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from attention_plasticity import __version__
from attention_plasticity.compare.several import SeveralRuns
from attention_plasticity.figures.captions import caption_of
from attention_plasticity.figures.draw import draw_figure, draw_of_runs
from attention_plasticity.figures.registry import figures_of, kind_of, left_out
from attention_plasticity.figures.style import figure_style
from attention_plasticity.tables.finished_run import FinishedRun
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import read_bounded, require_writable, staged, user_path, write_text

_SIGNATURE = "Figure made with attention-plasticity"
_MOST_CAPTION = 1 << 20  # bytes
_NO_DISPLAY = "output: there is no display to show a figure on; add --output FILE.png"
_BACKENDS_WITHOUT_WINDOW = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")
_NO_DATES: dict[str, Any] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "ModDate": None},
}


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a .png, .svg or .pdf file, and the caption of the figure beside it as .txt.

    The same figure gives the same bytes. Figures that were drawn by other means have no caption.

    Examples:
        >>> from pathlib import Path
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.figures import save_figure
        >>> save_figure(open_run("results/sample").plot("map"), "map.png")
        >>> sorted(path.name for path in Path().glob("map.*"))
        ['map.png', 'map.txt']
    """
    target, caption = user_path(path), caption_of(figure)
    kind = require_target(target)
    with figure_style(), staged(target) as draft, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # drawn as empty box
        figure.savefig(draft, format=kind, metadata=_NO_DATES[kind])
    if caption is not None:
        write_text(caption_path(target), f"{caption.rstrip()}\n\n{_SIGNATURE} {__version__}.\n")


def save_all(
    of: FinishedRun | SeveralRuns,
    folder: Path,
    kind: str = "png",
    only: Collection[str] | None = None,
    **options: Any,
) -> Iterator[Path]:
    """Draw all figures of a run, or of several runs, and yield the path of each finished file.

    `only` has the names of the files that are wanted; None: all. Each figure takes those of the
    `options` that it knows.

    Examples:
        >>> from pathlib import Path
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.figures import save_all
        >>> run = open_run("results/sample")
        >>> [path.name for path in save_all(run, Path("figures"), "svg", ["profile", "map-drop"])]
        ['profile.svg', 'map-drop.svg']
    """
    if isinstance(of, FinishedRun):
        own = (options.pop(one, None) for one in ("layers", "layer_type", "heads"))
        of = of.select(*own)
    missing = left_out(of)
    wanted = [
        (spec, name, given)
        for spec in figures_of(kind_of(of))
        for name, given in spec.files.items()
        if name not in missing and (only is None or name in only)
    ]
    paths = [folder / f"{name}.{kind}" for _, name, _ in wanted]
    for path in paths:
        require_target(path)
    for (spec, _, given), path in zip(wanted, paths, strict=True):
        if isinstance(of, FinishedRun):
            known_options = {name: one for name, one in options.items() if name in spec.taken}
            save_figure(draw_figure(spec, of, {**known_options, **given}), path)
        else:
            save_figure(draw_of_runs(spec.name, of), path)
        yield path


def caption_path(figure: Path) -> Path:
    """The file of the caption of a figure."""
    return figure.with_suffix(".txt")


def require_target(path: Path) -> str:
    """The file format of a path. Raises if the figure or its caption cannot be written."""
    kind = path.suffix[1:].lower()
    if kind not in _NO_DATES:
        raise ConfigError(f"{path}: expected a name ending in .png, .svg or .pdf")
    require_writable(path, "Choose another path.")
    caption = caption_path(path)
    if caption.exists() and not _is_caption(caption):
        raise ConfigError(
            f"{caption}: exists and is not the caption of a figure; rename it, or choose another "
            "name for the figure"
        )
    return kind


def _is_caption(path: Path) -> bool:
    try:
        return _SIGNATURE in read_bounded(path, _MOST_CAPTION).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def require_display() -> None:
    """Raise a `ConfigError` if no window can be opened."""
    import matplotlib.pyplot as plt

    if plt.get_backend().lower() in _BACKENDS_WITHOUT_WINDOW:
        raise ConfigError(_NO_DISPLAY)


def show_figure(figure: Figure) -> None:
    """Show the figure in a window until it is closed."""
    import matplotlib.pyplot as plt

    manager = plt.figure().canvas.manager
    if manager is None:
        raise ConfigError(_NO_DISPLAY)
    manager.canvas.figure = figure
    figure.set_canvas(manager.canvas)
    with figure_style():
        plt.show()
