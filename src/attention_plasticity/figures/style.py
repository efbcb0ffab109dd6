"""The common style of all figures: sizes for a paper, colours for every reader, axes.

Figures have the width of a column or of the text of a paper. Text has 6.5 points or more, so a
figure is printed as it is, without scaling.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cbook import is_math_text
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, SymmetricalLogLocator

from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import nearest

Floats = npt.NDArray[np.float64]

COLUMN, TEXT = 3.3, 6.75  # inches: a column and the text of a paper with two columns
NORMAL, SMALLEST, TITLE = 7.5, 6.5, 8.0  # points
INK, QUIET, FAINT = "#222222", "#6b6b6b", "#c8c8c8"
BLUE, VERMILION, GREEN, ORANGE = "#0072b2", "#d55e00", "#009e73", "#e69f00"  # by Okabe and Ito
PINK, SKY = "#cc79a7", "#56b4e9"
PALETTE = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, INK)
SEQUENTIAL, SIGNED = "viridis", "PuOr"
DASHES = (0, (4, 3))
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # included in matplotlib
    "font.size": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.titlelocation": "left",
    "axes.labelsize": NORMAL,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": SMALLEST,
    "ytick.labelsize": SMALLEST,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": SMALLEST,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "hatch.linewidth": 0.5,
    "savefig.dpi": 300,
    "svg.hashsalt": "attention-plasticity",  # the same figure gives the same bytes
    "pdf.fonttype": 42,
    "text.usetex": False,  # names can contain special characters of TeX
}
_LONGEST_TEXT = 200  # characters of a title


@contextmanager
def figure_style() -> Iterator[None]:
    """Context in which figures are drawn and saved."""
    with mpl.rc_context(_STYLE):
        yield


def text_width(text: str, size: float = SMALLEST, bold: bool = False) -> float:
    """The length of one line of text, in points."""
    weight = "bold" if bold else "normal"
    font = FontProperties(family=_STYLE["font.sans-serif"], size=size, weight=weight)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # drawn as empty box
        width, _, _ = text_to_path.get_text_width_height_descent(text, font, is_math_text(text))
    return 1.04 * float(width)  # letters on a screen are whole pixels wide


def in_lines(text: str, room: float, size: float = SMALLEST, bold: bool = False) -> list[str]:
    """The text in lines of similar length, at most `room` points; a longer word is divided."""
    lines: list[str] = []
    for part in text.splitlines():
        filled = _filled(part, room, size, bold)
        even = text_width(part, size, bold) / len(filled)
        for narrow in (1.1 * even, 1.3 * even):
            evenly = _filled(part, min(max(narrow, 4 * size), room), size, bold)
            if len(evenly) == len(filled):
                filled = evenly
                break
        lines += filled
    return lines


def _filled(text: str, room: float, size: float, bold: bool) -> list[str]:
    """One line of text in lines with as many words as have room."""
    lines, line = [], ""
    for word in text.split(" "):
        for piece in _pieces(word, room, size, bold):
            joined = f"{line} {piece}" if line else piece
            if line and text_width(joined, size, bold) > room:
                lines.append(line)
                joined = piece
            line = joined
    return [*lines, line]


def _pieces(word: str, room: float, size: float, bold: bool) -> list[str]:
    if text_width(word, size, bold) <= room:
        return [word]
    return textwrap.wrap(word, max(4, int(room / (size * 0.75)))) or [word]


def joined_notes(notes: list[str], room: float) -> list[str]:
    """Notes in lines of at most `room` points, with a dot between two notes of one line."""
    lines: list[str] = []
    for note in notes:
        joined = f"{lines[-1]}  ·  {note}" if lines else note
        if lines and text_width(joined) <= room:
            lines[-1] = joined
        else:
            lines += in_lines(note, room)
    return lines


def figure_text(text: object, limit: int = _LONGEST_TEXT) -> str:
    """Text for a figure: shortened, and without mathematics and invisible characters."""
    lines = "\n".join(clean(line) for line in str(text).splitlines())
    short = lines if len(lines) <= limit else lines[: limit - 1] + "…"
    return short.replace("$", r"\$")


def require_colormap(name: str) -> str:
    """Check the name of a colormap. The error suggests a similar name."""
    if name not in mpl.colormaps:
        examples = "; such as viridis, cividis or magma"
        hint = nearest(name, list(mpl.colormaps), otherwise=examples)
        raise ConfigError(f"cmap: {name!r}: unknown colormap{hint}")
    return name


def line_shades(name: str) -> Colormap:
    """A colormap without its light end, for thin lines on white."""
    shades = mpl.colormaps[require_colormap(name)](np.linspace(0, 1, 256))  # (256, rgba)
    dark = shades @ [0.299, 0.587, 0.114, 0.0] < 0.78
    return ListedColormap(shades[dark] if dark.sum() >= 64 else shades)


def layer_shades(layers: npt.ArrayLike, cmap: str) -> ScalarMappable:
    """Colours of layers, from the first to the last."""
    numbers = np.asarray(layers)
    last = max(numbers.max(), numbers.min() + 1)
    return ScalarMappable(Normalize(numbers.min(), last), line_shades(cmap))


def whole(number: float) -> str:
    """A count or a position: `8,192`."""
    return f"{number:,.0f}"


def signed(number: float, form: str = "g") -> str:
    """A number with a minus sign of the width of a plus sign."""
    return f"{number + 0.0:{form}}".replace("-", "−")


def tokens_in_short(number: float) -> str:
    """A label of a logarithmic axis: `6.3`, `512`, `4.1k`, `100k`, `1M`."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{_two_digits(number / size)}{unit}"
    return _two_digits(number)


def _two_digits(number: float) -> str:
    """`6.3`, `4`, `45`, `360`."""
    return f"{number:.2g}" if number < 10 else f"{number:.0f}"


@dataclass(frozen=True)
class Axis:
    """One axis of a panel: its label, range, scale and ticks."""

    label: str = ""
    low: float | None = None
    high: float | None = None
    scale: Literal["linear", "log", "positions", "doubling"] = "linear"
    ticks: tuple[list[float], list[str]] | None = None
    zero: bool = False  # a line at 0
    lines: bool = False  # thin lines at the ticks
    whole: bool = False  # ticks at whole numbers only

    def apply(self, axes: Axes, which: Literal["x", "y"], length: float) -> None:
        """Set up an axis of this length, in inches."""
        axis = axes.xaxis if which == "x" else axes.yaxis
        label = in_lines(figure_text(self.label), 72 * length, NORMAL)
        axis.set_label_text("\n".join(label))
        if self.lines:
            axis.grid(True, color=FAINT, linewidth=0.4)
            axes.set_axisbelow(True)
        if self.zero:
            line = axes.axvline if which == "x" else axes.axhline
            line(0.0, color=QUIET, linewidth=0.7, zorder=0.9)
        self._scale(axes, which, axis, max(4, int(length * (2.2 if which == "x" else 3.2))))
        limits = axes.set_xlim if which == "x" else axes.set_ylim
        if self.low is not None or self.high is not None:
            limits(self.low, self.high)

    def _scale(self, axes: Axes, which: str, axis: Any, ticks: int) -> None:
        if self.scale in ("positions", "doubling"):
            position_ticks(axes, which, self.scale == "doubling", ticks)
        elif self.scale == "log":
            (axes.set_xscale if which == "x" else axes.set_yscale)("log")
            axis.set_major_formatter(FuncFormatter(lambda value, _: tokens_in_short(value)))
            axis.set_minor_formatter(NullFormatter())
        elif self.ticks is not None:
            axis.set_ticks(*self.ticks)
        else:
            steps = [1, 2, 5, 10] if self.whole else [1, 2, 2.5, 5, 10]
            axis.set_major_locator(
                MaxNLocator(min(ticks, 8), steps=steps, integer=self.whole, min_n_ticks=2)
            )
            axis.set_major_formatter(FuncFormatter(lambda value, _: signed(round(value, 9))))


def position_ticks(axes: Axes, which: str, doubling: bool, number: int) -> None:
    """Ticks of an axis of positions; with `doubling`, at powers of two on a logarithmic scale."""
    axis: Any = axes.xaxis if which == "x" else axes.yaxis
    axes.margins(x=0.02)
    if doubling:
        known = axes.dataLim.minposx if which == "x" else axes.dataLim.minposy
        start = max(1.0, float(known)) if np.isfinite(known) else 1.0
        (axes.set_xscale if which == "x" else axes.set_yscale)("symlog", base=2, linthresh=start)
        ticks = SymmetricalLogLocator(base=2, linthresh=start)
        ticks.set_params(numticks=min(number, 7))
        axis.set_major_locator(ticks)
    else:
        (axes.set_xlim if which == "x" else axes.set_ylim)(0)
        axis.set_major_locator(MaxNLocator(min(number, 6), steps=[1, 2, 4, 5, 8, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: whole(value)))


def share_axis(label: str, unit: bool = False, **more: Any) -> Axis:
    """An axis of plasticity or another share: as far as the data go, or from 0 to 1."""
    if not unit:
        return Axis(label, lines=True, **more)
    ticks = ([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    return Axis(label, -0.02, 1.02, ticks=ticks, lines=True, **more)


def bucket_ticks(
    labels: list[str], limit: int, shift: float, first: int = 0
) -> tuple[list[float], list[str]]:
    """Ticks of about `limit` buckets, every n-th one, at its start (−0.5) or at its middle (0).

    `first` is the number of the first bucket: axes that begin at other buckets have the same ticks.
    """
    step = 1 << max(0, math.ceil(len(labels) / limit) - 1).bit_length()  # round labels
    start = -first % step
    if start >= len(labels):
        start = 0
    return [number + shift for number in range(start, len(labels), step)], labels[start::step]
