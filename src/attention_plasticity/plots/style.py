"""One look for every figure: legible at a column's width, safe for the colour-blind."""

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

WIDTH, HEIGHT = 4.4, 3.1  # inches: with 9 pt, still 7 pt in a column of 3.4 inches
INK, QUIET, FAINT = "#222222", "#6b6b6b", "#c8c8c8"
BLUE, VERMILION, GREEN, ORANGE = "#0072b2", "#d55e00", "#009e73", "#e69f00"  # Okabe and Ito's
PALETTE = (BLUE, VERMILION, GREEN, "#cc79a7", ORANGE, "#56b4e9", INK)
SEQUENTIAL, SIGNED = "viridis", "PuOr"
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same everywhere
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
    "text.usetex": False,  # names hold characters that TeX would read as its own
}
_LONGEST_TITLE, _LONGEST_LABEL = 160, 48  # characters


@contextmanager
def house_style() -> Iterator[None]:
    """Draw, and save, inside this."""
    with mpl.rc_context(_STYLE):
        yield


def new_figure(width: float = WIDTH, height: float = HEIGHT, **layout: Any) -> tuple[Figure, Any]:
    """A figure of its own, known to no window, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**layout)


def footnote(figure: Figure, *notes: str | None) -> None:
    """Small print below everything; nothing when there is nothing to note."""
    text = "  ·  ".join(note for note in notes if note)
    if text:
        figure.supxlabel(text, x=0.01, ha="left", fontsize=6.5, color=QUIET)


def headline(axes: Axes, title: str | None, default: str, model_name: str | None) -> None:
    """The title that was asked for, or a default one that names the model."""
    if title is None:
        title = f"{default}: {model_name}" if model_name else default
    text = plain(title, _LONGEST_TITLE)
    if any(len(word) > _LONGEST_LABEL for word in text.split()):  # which `wrap` leaves whole
        text = textwrap.fill(text, _LONGEST_LABEL)
    axes.set_title(text, wrap=True)


def plain(text: object, most: int = _LONGEST_LABEL) -> str:
    """A name as text of a figure: no mathematics, nothing without a shape, not too long."""
    lines = "\n".join(clean(line) for line in str(text).splitlines())
    short = lines if len(lines) <= most else lines[: most - 1] + "…"
    return short.replace("$", r"\$")


def require_colormap(name: str) -> str:
    """The name of a colormap, or an error that suggests one."""
    if name not in mpl.colormaps:
        hint = nearest(name, list(mpl.colormaps))
        hint = "; such as viridis, cividis or magma" if "--help" in hint else hint
        raise ConfigError(f"cmap: {name!r}: unknown colormap{hint}")
    return name


def line_shades(name: str) -> Colormap:
    """A colormap without the light end that would not show as a thin line on white."""
    shades = mpl.colormaps[require_colormap(name)](np.linspace(0, 1, 256))  # (256, rgba)
    dark = shades @ [0.299, 0.587, 0.114, 0.0] < 0.78
    return ListedColormap(shades[dark] if dark.sum() >= 64 else shades)


def whole(number: float) -> str:
    """A count or a position: `8,192`."""
    return f"{number:,.0f}"


def position_axis(axes: Axes, positions: npt.NDArray[np.float64], log: bool) -> None:
    """Positions along x, in powers of two when buckets grow that way."""
    axes.set_xlabel("query position (tokens)")
    axes.margins(x=0.02)
    if log:
        axes.set_xscale("symlog", base=2, linthresh=max(1.0, float(positions[positions > 0].min())))
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 4, 5, 8, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: whole(value)))


def bucket_ticks(axis: Any, labels: Sequence[str], most: int = 7) -> None:
    """Label every few buckets at the edge where they begin."""
    step = 1 << max(0, -(-len(labels) // most) - 1).bit_length()  # a power of two: rounder labels
    axis.set_ticks([number - 0.5 for number in range(0, len(labels), step)], labels[::step])


def plasticity_axis(axes: Axes) -> None:
    """Plasticity along y, from rigid to free."""
    axes.set_ylabel("attention plasticity")
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)
