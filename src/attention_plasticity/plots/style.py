"""The common style of all figures. It is readable in one column and by colour-blind readers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import nearest

WIDTH, HEIGHT = 4.4, 3.1  # inches; 9 pt text becomes 7 pt in a column of 3.4 inches
INK, QUIET, FAINT = "#222222", "#6b6b6b", "#c8c8c8"
BLUE, VERMILION, GREEN, ORANGE = "#0072b2", "#d55e00", "#009e73", "#e69f00"  # by Okabe and Ito
PALETTE = (BLUE, VERMILION, GREEN, "#cc79a7", ORANGE, "#56b4e9", INK)
SEQUENTIAL, SIGNED = "viridis", "PuOr"
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # included in matplotlib
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 9.0,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.dpi": 300,
    "svg.hashsalt": "attention-plasticity",  # the same figure gives the same bytes
    "pdf.fonttype": 42,
    "text.usetex": False,  # names can contain special characters of TeX
}
_LONGEST_TITLE, _LONGEST_LABEL, _LONGEST_FOOTNOTE = 160, 48, 92  # characters


@contextmanager
def figure_style() -> Iterator[None]:
    """Context in which figures are drawn and saved."""
    with mpl.rc_context(_STYLE):
        yield


def new_figure(width: float = WIDTH, height: float = HEIGHT, **layout: Any) -> tuple[Figure, Any]:
    """A figure without a window, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**layout)


def footnote(figure: Figure, *notes: str | None) -> None:
    """Small text at the bottom, in lines of bounded width; nothing if there are no notes."""
    lines: list[str] = []
    for note in filter(None, notes):
        joined = f"{lines[-1]}  ·  {note}" if lines else note
        if lines and len(joined) <= _LONGEST_FOOTNOTE:
            lines[-1] = joined
        else:
            lines.append(note)
    if lines:
        text = "\n".join(lines)
        figure.supxlabel(text, x=0.01, ha="left", fontsize=6.5, color=QUIET)


def headline(axes: Axes, title: str | None, default: str, model_name: str | None) -> None:
    """Set the given title, or a default title with the name of the model."""
    if title is None:
        title = f"{default}: {model_name}" if model_name else default
    text = figure_text(title, _LONGEST_TITLE)
    if any(len(word) > _LONGEST_LABEL for word in text.split()):  # `wrap` does not split words
        text = textwrap.fill(text, _LONGEST_LABEL)
    axes.set_title(text, wrap=True)


def figure_text(text: object, limit: int = _LONGEST_LABEL) -> str:
    """Text for a figure: shortened, and without mathematics and invisible characters."""
    lines = "\n".join(clean(line) for line in str(text).splitlines())
    short = lines if len(lines) <= limit else lines[: limit - 1] + "…"
    return short.replace("$", r"\$")


def require_colormap(name: str) -> str:
    """Check the name of a colormap. The error suggests a similar name."""
    if name not in mpl.colormaps:
        hint = nearest(name, list(mpl.colormaps))
        hint = "; such as viridis, cividis or magma" if "--help" in hint else hint
        raise ConfigError(f"cmap: {name!r}: unknown colormap{hint}")
    return name


def line_shades(name: str) -> Colormap:
    """A colormap without its light end, for thin lines on white."""
    shades = mpl.colormaps[require_colormap(name)](np.linspace(0, 1, 256))  # (256, rgba)
    dark = shades @ [0.299, 0.587, 0.114, 0.0] < 0.78
    return ListedColormap(shades[dark] if dark.sum() >= 64 else shades)


def whole(number: float) -> str:
    """A count or a position: `8,192`."""
    return f"{number:,.0f}"


def position_axis(axes: Axes, positions: npt.NDArray[np.float64], log: bool) -> None:
    """Set up the x axis for positions; `log` gives powers of two."""
    axes.set_xlabel("query position (tokens)")
    axes.margins(x=0.02)
    if log:
        axes.set_xscale("symlog", base=2, linthresh=max(1.0, float(positions[positions > 0].min())))
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 4, 5, 8, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: whole(value)))


def bucket_ticks(axis: Any, labels: Sequence[str], limit: int = 7) -> None:
    """Label the start of every n-th bucket, with about `limit` labels."""
    step = 1 << max(0, -(-len(labels) // limit) - 1).bit_length()  # powers of two: round labels
    axis.set_ticks([number - 0.5 for number in range(0, len(labels), step)], labels[::step])


def plasticity_axis(axes: Axes) -> None:
    """Set up the y axis for plasticity."""
    axes.set_ylabel("attention plasticity")
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)
