"""Saves a figure as a file, or shows it in a window."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from attention_plasticity.plots.style import figure_style
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import require_writable, staged

_BACKENDS_WITHOUT_WINDOW = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")
_NO_DATES: dict[str, Any] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "ModDate": None},
}


def save_figure(figure: Figure, path: Path) -> None:
    """Write a .png, .svg or .pdf file. The same figure gives the same bytes."""
    kind = require_target(path)
    with figure_style(), staged(path) as draft, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # drawn as empty box
        figure.savefig(draft, format=kind, metadata=_NO_DATES[kind])


def require_target(path: Path) -> str:
    """The file format of a path. Raises if the file cannot be written."""
    kind = path.suffix[1:].lower()
    if kind not in _NO_DATES:
        raise ConfigError(f"output: {path}: expected a name ending in .png, .svg or .pdf")
    require_writable(path, "Choose another path.", "output: ")
    return kind


def require_display() -> None:
    """Raise a `ConfigError` if no window can be opened."""
    import matplotlib.pyplot as plt

    if plt.get_backend().lower() in _BACKENDS_WITHOUT_WINDOW:
        raise ConfigError("output: there is no display to show a figure on; add --output FILE.png")


def show_figure(figure: Figure) -> None:
    """Show the figure in a window until it is closed."""
    import matplotlib.pyplot as plt

    manager = plt.figure().canvas.manager
    if manager is None:
        raise ConfigError("output: there is no display to show a figure on; add --output FILE.png")
    manager.canvas.figure = figure
    figure.set_canvas(manager.canvas)
    with figure_style():
        plt.show()
