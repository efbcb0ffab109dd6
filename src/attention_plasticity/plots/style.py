"""The common style of all figures. It is readable in one column and by colour-blind readers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cbook import is_math_text
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, MaxNLocator, SymmetricalLogLocator
from matplotlib.transforms import Affine2D, ScaledTranslation, Transform, blended_transform_factory

from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import nearest

WIDTH, HEIGHT = 4.4, 3.1  # inches
SMALLEST = 8.0  # points; 6 points in a column of 3.3 inches, the least that journals accept
INK, QUIET, FAINT = "#222222", "#6b6b6b", "#c8c8c8"
BLUE, VERMILION, GREEN, ORANGE = "#0072b2", "#d55e00", "#009e73", "#e69f00"  # by Okabe and Ito
PINK = "#cc79a7"
PALETTE = (BLUE, VERMILION, GREEN, PINK, ORANGE, "#56b4e9", INK)
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
    "xtick.labelsize": SMALLEST,
    "ytick.labelsize": SMALLEST,
    "legend.fontsize": SMALLEST,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "hatch.linewidth": 0.5,
    "savefig.dpi": 300,
    "svg.hashsalt": "attention-plasticity",  # the same figure gives the same bytes
    "pdf.fonttype": 42,
    "text.usetex": False,  # names can contain special characters of TeX
}
_LONGEST_LINE = 42  # characters of a title beside which no colour bar is cut
_LONGEST_TITLE, _LONGEST_LABEL, _LONGEST_FOOTNOTE = 160, 48, 70  # characters
_NARROW = 0.25  # range of plasticity that is drawn without the rest of 0 to 1
_LEGEND_ROW, _LEGEND_HANDLE, _LEGEND_LETTER = 11.5, 25.0, 4.6  # points
_LEGEND_WIDTH, _LINE_OF_LABEL = 280.0, 12.0  # points; a further line of the y label
_LABEL_LETTER = 4.6  # points
_COLOUR_BAR = 55.0  # points, with its ticks and label


@contextmanager
def figure_style() -> Iterator[None]:
    """Context in which figures are drawn and saved."""
    with mpl.rc_context(_STYLE):
        yield


def new_figure(width: float = WIDTH, height: float = HEIGHT, **layout: Any) -> tuple[Figure, Any]:
    """A figure without a window, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**layout)


def footnote(figure: Figure, *notes: str | None) -> int:
    """Small text at the bottom, in lines of bounded width. Returns the number of lines."""
    width = int(_LONGEST_FOOTNOTE * figure.get_figwidth() / WIDTH)  # characters of any shape
    room = 72 * 0.97 * figure.get_figwidth()  # points
    lines: list[str] = []
    for note in filter(None, notes):
        joined = f"{lines[-1]}  ·  {note}" if lines else note
        if lines and _length(joined) <= room:
            lines[-1] = joined
        else:
            for part in note.splitlines():
                lines += textwrap.wrap(part, width) or [""]
    if lines:
        text = "\n".join(lines)
        figure.supxlabel(text, x=0.01, ha="left", fontsize=SMALLEST, color=QUIET)
    return len(lines)


def _length(text: str) -> float:
    """The length of a line of small text, in points."""
    font = FontProperties(family=_STYLE["font.sans-serif"], size=SMALLEST)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, is_math_text(text))
    return float(width)


def headline(
    axes: Axes, title: str | None, default: str, model_name: str | None, legend_rows: int = 0
) -> None:
    """Set the given title, or a default title with the name of the model.

    Between the title and the axes is space for `legend_rows` of `legend_above`.
    """
    text = _headline_text(title, default, model_name)
    axes.set_title(text, wrap=True, pad=6.0 + _LEGEND_ROW * legend_rows)


def panel_headline(figure: Figure, title: str | None, default: str, model_name: str | None) -> None:
    """The same title above all panels of a figure."""
    text = _headline_text(title, default, model_name)
    if text:
        figure.suptitle(text, x=0.02, ha="left", wrap=True, fontsize=9.5, fontweight="bold")


def _headline_text(title: str | None, default: str, model_name: str | None) -> str:
    if title is None and model_name and len(f"{default}: {model_name}") > _LONGEST_LINE:
        name = figure_text(model_name, _LONGEST_TITLE)
        if len(name) <= _LONGEST_LABEL:  # the name of the model has its own line
            return f"{figure_text(default, _LONGEST_TITLE)}\n{name}"
    if title is None:
        title = f"{default}: {model_name}" if model_name else default
    text = figure_text(title, _LONGEST_TITLE)
    if any(len(word) > _LONGEST_LABEL for word in text.split()):  # `wrap` does not split words
        text = textwrap.fill(text, _LONGEST_LABEL)
    return text


def legend_above(
    axes: Axes, handles: Sequence[Any], labels: Sequence[str], colour_bar: bool = False
) -> int:
    """Put a legend between the axes and the title, where it covers no data.

    With `colour_bar`, the axes are narrower. Returns its number of rows, for `headline`.
    """
    room = _LEGEND_WIDTH - _LINE_OF_LABEL * axes.get_ylabel().count("\n")
    room -= _COLOUR_BAR if colour_bar else 0.0
    columns = next(number for number in (4, 3, 2, 1) if number == 1 or _fits(labels, number, room))
    axes.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        borderaxespad=0.1,
        borderpad=0.1,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.2,
        labelspacing=0.3,
    )
    return -(-len(labels) // columns)


def _fits(labels: Sequence[str], columns: int, room: float) -> bool:
    """Whether a legend with this number of columns is as wide as the axes or less."""
    parts = np.array_split([len(label) for label in labels], columns)  # as a legend does
    widths = [_LEGEND_HANDLE + _LEGEND_LETTER * part.max() for part in parts if len(part)]
    return bool(sum(widths) <= room)


def figure_text(text: object, limit: int = _LONGEST_LABEL) -> str:
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


def label_lines(label: str, length: float) -> str:
    """The label of an axis of this length, in inches, in as many lines as it needs.

    A line ends before "at one position" or "over a bucket" if that is enough.
    """
    letters = max(12, int(length * 72 / _LABEL_LETTER))
    if len(label) <= letters:
        return label
    for words in (" at one position", " over a "):
        start = label.find(words)
        if 0 < start <= letters and len(label) - start - 1 <= letters:
            return f"{label[:start]}\n{label[start + 1 :]}"
    return textwrap.fill(label, letters)


def beside_axes(axes: Axes, data: Literal["x", "y"]) -> Transform:
    """Coordinates of a strip beside the axes: data along one axis, points along the other.

    Points are counted from the lower left corner of the axes.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    corner = ScaledTranslation(0, 0, axes.transAxes)  # type: ignore[arg-type]
    points = Affine2D().scale(1 / 72) + figure.dpi_scale_trans + corner
    if data == "x":
        return blended_transform_factory(axes.transData, points)
    return blended_transform_factory(points, axes.transData)


def whole(number: float) -> str:
    """A count or a position: `8,192`."""
    return f"{number:,.0f}"


def tokens_in_short(number: float) -> str:
    """A label of a logarithmic axis: `6.3`, `512`, `4.1k`, `100k`, `1M`."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{_two_digits(number / size)}{unit}"
    return _two_digits(number)


def _two_digits(number: float) -> str:
    """`6.3`, `4`, `45`, `360`."""
    return f"{number:.2g}" if number < 10 else f"{number:.0f}"


def position_axis(axes: Axes, positions: npt.NDArray[np.float64], log: bool) -> None:
    """Set up the x axis for positions; `log` gives powers of two."""
    axes.set_xlabel("query position (tokens)")
    axes.margins(x=0.02)
    if log:
        start = max(1.0, float(positions[positions > 0].min()))
        axes.set_xscale("symlog", base=2, linthresh=start)
        ticks = SymmetricalLogLocator(base=2, linthresh=start)
        ticks.set_params(numticks=7)
        axes.xaxis.set_major_locator(ticks)
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 4, 5, 8, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: whole(value)))


def bucket_ticks(axis: Any, labels: Sequence[str], limit: int = 7, shift: float = -0.5) -> None:
    """Label about `limit` buckets, every n-th one, at its start or (`shift` 0) at its middle."""
    step = 1 << max(0, -(-len(labels) // limit) - 1).bit_length()  # powers of two: round labels
    axis.set_ticks([number + shift for number in range(0, len(labels), step)], labels[::step])


def layer_bar(figure: Figure, shades: ScalarMappable, axes: Axes, layers: npt.ArrayLike) -> str:
    """Draw the colour bar of layers, unless there is only one. Returns words for the caption."""
    if len(np.unique(layers)) < 2:
        return ""
    bar = figure.colorbar(shades, ax=axes, label="layer", pad=0.02)
    bar.outline.set_visible(False)
    bar.set_ticks(_layer_ticks(np.unique(layers).astype(np.int64)))
    return ", coloured by layer"


def _layer_ticks(layers: npt.NDArray[np.int64]) -> list[int]:
    """The first and the last layer, and layers between them that have room for their labels."""
    first, last = int(layers[0]), int(layers[-1])
    room = (last - first) / 12
    round_numbers = MaxNLocator(5, integer=True).tick_values(first, last)
    ticks = [first]
    for layer in layers if len(layers) <= 6 else round_numbers:
        if ticks[-1] + room <= layer <= last - room:
            ticks.append(int(layer))
    return [*ticks, last]


def plasticity_axis(axes: Axes, label: str, *drawn: npt.ArrayLike) -> None:
    """Set up the y axis for plasticity: 0 to 1, or a part of it, which the label then names.

    It is a part if everything that is drawn, the ends of intervals included, is in less than a
    quarter of 0 to 1. All figures of plasticity over the context have this rule.
    """
    axes.set_ylabel(label)
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)
    values = np.concatenate([np.empty(0), *(np.ravel(np.asarray(part)) for part in drawn)])
    known = values[np.isfinite(values)]
    if len(known) and np.ptp(known) < _NARROW:
        _part_of_plasticity(axes, label, float(known.min()), float(known.max()))
    else:
        axes.set_ylim(-0.02, 1.02)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])


def _part_of_plasticity(axes: Axes, label: str, low: float, high: float) -> None:
    """An axis from the tick below the smallest value to the tick above the largest one."""
    room = max(0.005, 0.03 * (high - low))
    locator = MaxNLocator(5, steps=[1, 2, 5, 10], min_n_ticks=3)
    ticks = np.clip(locator.tick_values(low - room, high + room), 0.0, 1.0)
    ticks = np.unique(ticks.round(9))
    shown = max(0, math.ceil(-math.log10(np.diff(ticks).max()) - 1e-9))  # decimals
    labels = [f"{tick:.{shown}f}" for tick in ticks]
    axes.set_yticks(ticks.tolist(), labels)
    margin = 0.02 * (ticks[-1] - ticks[0])
    axes.set_ylim(min(ticks[0] - margin, low - room), max(ticks[-1] + margin, high + room))
    axes.set_ylabel(f"{label}\n(axis from {labels[0]} to {labels[-1]})")
