"""Maps of heads: a metric of every head, roles, rotary bands. Layer 0 is at the top of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from attention_plasticity.figures.captions import (
    capitalised,
    column_label,
    interval_sentence,
    phase_note,
    plasticity_of,
)
from attention_plasticity.figures.marks import (
    CellLines,
    Entry,
    Guide,
    LayerGaps,
    LayerTypes,
    Mark,
    Missing,
    TestMarks,
    Tests,
)
from attention_plasticity.figures.over_context import colour_limits
from attention_plasticity.figures.shapes import Bar, Grid, Layout, Words
from attention_plasticity.figures.spec import Drawing, Request, wanted_metric
from attention_plasticity.figures.style import (
    FAINT,
    SEQUENTIAL,
    SIGNED,
    Axis,
    figure_text,
    tokens_in_short,
)
from attention_plasticity.metric import Metric
from attention_plasticity.metrics import ALIGNED_DROP
from attention_plasticity.roles import MIXED, NAMES, REPEATED_DECIDE, ROLES
from attention_plasticity.tables.head_roles import (
    COLOURS,
    is_unsure,
    repeated_decides,
    require_roles,
)
from attention_plasticity.tables.intervals import head_half_width, quantity_groups, row_half_width
from attention_plasticity.tables.layer_types import layer_types
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    main_plasticity,
)
from qk_toolkit.formatting import count

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_FADED = 0.6  # share of white in the colour of an unsure head
_MOST_LINES = 48  # layers or heads between which there are lines
_LARGEST = 0.99  # quantile of the sizes of bands that has the last colour
_BAND_SHARES = (
    "The share of a band is its covariance with the whole logit, divided by the variance of the "
    "logit; the shares of a head sum to 1. A share is negative where the band works against the "
    "others."
)
_DISTANT = "distant_from tokens (256 by default)"


@dataclass(frozen=True)
class HeadGrid:
    """Heads of a table as layers × heads."""

    layers: Ints  # (rows,)
    row: Ints  # (heads,) row of every head
    head: Ints  # (heads,) column of every head

    @classmethod
    def of(cls, table: pd.DataFrame, head: str = "q_head") -> HeadGrid:
        """The places of the rows of a table."""
        layers, row = np.unique(table["layer"].to_numpy(np.int64), return_inverse=True)
        return cls(layers, row, table[head].to_numpy(np.int64))

    def place(self, values: npt.ArrayLike) -> Floats:
        """(layers, heads, …) of values of heads; NaN where there is no head."""
        found = np.asarray(values, np.float64)
        grid = np.full((len(self.layers), self.head.max() + 1, *found.shape[1:]), np.nan)
        grid[self.row, self.head] = found
        return grid

    @property
    def columns(self) -> int:
        """The largest number of heads of a layer."""
        return int(self.head.max()) + 1

    @property
    def height(self) -> float:
        """The height of a map, in inches."""
        return min(5.5, max(1.7, 0.6 + 0.075 * len(self.layers)))

    @property
    def cell(self) -> float:
        """The smaller side of a cell in a map of a column of a paper, in points."""
        return 72 * min((self.height - 0.5) / len(self.layers), 2.2 / self.columns)

    @property
    def y(self) -> Axis:
        """The axis of layers."""
        step = -(-len(self.layers) // max(2, int(self.height * 4)))
        step = next(size for size in (1, 2, 5, 10, 20, 50, 100) if size >= step)
        rows = list(range(0, len(self.layers), step))
        return Axis(
            "layer", ticks=([float(row) for row in rows], [str(self.layers[row]) for row in rows])
        )


def of_heads(request: Request) -> Drawing:
    """One metric of every head, and how sure its values are."""
    spec, table = request.spec, request.run.table(request.spec.table)
    of_key_heads = spec.table == "key_heads"
    head = "k_head" if of_key_heads else "q_head"
    default = spec.y[0] if of_key_heads else main_plasticity(table).level
    metric = wanted_metric(request, table, default)
    grid, words = HeadGrid.of(table, head), spec.metric(metric)
    values = grid.place(table[metric])
    influences = request.run.influences
    half = (
        row_half_width(table, metric)
        if of_key_heads
        else head_half_width(table, metric, influences)
    )
    if not request.options.intervals:
        half = np.full(len(table), np.nan)
    sure = bool(np.isfinite(half).any())
    tested = sure and words.signed and not of_key_heads
    tests = Tests.of(table, metric, influences, fade=request.options.fade) if tested else None
    bar = _bar(request, words, values)
    types = LayerTypes(layer_types(table), grid.layers)
    missing, gaps = Missing(values, dashes=tests is not None), LayerGaps(grid.layers)
    marks: list[Mark] = [missing, gaps, types]
    if tests:
        cell = grid.cell
        marks.append(TestMarks(tests, grid.layers, grid.columns, cell, bar.colours))
    x = Axis("key head" if of_key_heads else "query head", whole=True)
    panels = [Grid(values, x, grid.y, bar, marks=marks)]
    if sure and tests is None:
        panels.append(_half_panel(grid, half, x, missing, gaps))
    groups = table["n_groups"] if of_key_heads else quantity_groups(table, metric, influences)
    found = _map_words(request, words, grid, values, half, np.asarray(groups), tests, types.several)
    taller = 0.35 if len(panels) > 1 else 0.0
    layout = Layout(height=grid.height + taller, columns=len(panels), share_y=True)
    return Drawing(panels, found, layout)


def _bar(request: Request, words: Metric, values: Floats) -> Bar:
    """The colours of a metric: zero is in the middle of signed ones."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if words.signed:
        high = float(np.nanmax(np.abs(values))) or 1.0
        low = -high
    elif "static_error" in words.column and request.options.range == "unit":
        low, high = 0.0, 0.5
    elif words.format == "share" and request.options.range == "unit":
        low, high = 0.0, 1.0
    ends = colour_limits(request, low, high)
    label = column_label(words.column) if request.spec.table == "head_metrics" else words.label
    return Bar(label, *ends, request.cmap(SIGNED if words.signed else SEQUENTIAL))


def _half_panel(grid: HeadGrid, half: Floats, x: Axis, missing: Missing, gaps: LayerGaps) -> Grid:
    """How sure the values are: half of the 95 % interval of every head."""
    widths = grid.place(half)
    bar = Bar("± (95 % interval)", 0.0, float(np.nanmax(widths)) or 1.0, "Greys")
    return Grid(widths, x, grid.y, bar, marks=[missing, gaps])


def _map_words(
    request: Request,
    words: Metric,
    grid: HeadGrid,
    values: Floats,
    half: Floats,
    groups: Floats,
    tests: Tests | None,
    strip: bool,
) -> Words:
    of_key_heads = request.spec.table == "key_heads"
    noun = "key head" if of_key_heads else "head"
    label = words.label if of_key_heads else column_label(words.column)
    missing = int(np.isnan(values).sum())
    heads, sign = values.size - missing, "dashes" if tests else "dots"
    sure = np.isfinite(half)
    width = f"{np.nanmedian(half):.2g}" if sure.any() else ""
    shown = None if of_key_heads else plasticity_of(words.column)
    notes = [
        request.heads(heads, noun=noun),
        f"{missing:,} without a value or not captured: {sign}" if missing else None,
        f"95 % interval of a {noun}: ±{width} (median)" if width else None,
        "0: no change from start to end" if words.column == ALIGNED_DROP else None,
        phase_note(shown) if shown else None,
    ]
    meaning = words.meaning
    if shown and words.column == shown.level:  # the caption tells how queries are compared
        meaning = meaning.partition("; ")[2]
    meaning = f" ({_without_settings(request, meaning)})" if meaning else ""
    noun = "key head" if of_key_heads else "query head"
    details = [
        f"{sign.capitalize()} mark {missing:,} heads without a value." if missing else None,
        tests.sentence if tests else None,
        f"The 95 % interval of a head is ±{width} in the median over heads." if width else None,
        "The right panel has half of the interval of every head." if width and not tests else None,
        interval_sentence("The intervals come", groups[sure]) if width else None,
        LayerGaps(grid.layers).sentence,
        "The strip at the left marks the types of layers." if strip else None,
    ]
    shows = f"{capitalised(label)} of every {noun}, by layer and head{meaning}."
    title = f"{capitalised(label)} by {'key head' if of_key_heads else 'head'}"
    settings = shown or (AT_ONE_POSITION if words.column.startswith("ap_") else None)
    return request.words(title, notes, shows, heads, details, settings, noun)


def _without_settings(request: Request, text: str) -> str:
    """The meaning of a metric, with the value of a setting in place of its name."""
    tokens = request.run.settings.get("distant_from", 256)
    text = text.replace(
        "attn_far_mass of head_metrics.csv", "attention on distant keys that are no sinks"
    )
    return text.replace(_DISTANT, f"{tokens:,} tokens").replace("p_alpha", "the chosen level")


def roles(request: Request) -> Drawing:
    """The role of every head. Heads whose role is unsure have a faded colour."""
    table = request.run.table("roles")
    require_roles(table, request.run.path("roles"))
    grid, unsure = HeadGrid.of(table), is_unsure(table)
    rows = zip(table["likely_role"], unsure, strict=True)
    picture = grid.place([_role_colour(name, fade) for name, fade in rows])
    number, undecided = int(unsure.sum()), int(repeated_decides(table).sum())
    counts = table["role"].value_counts()
    drawn = [name for name in NAMES if (table["likely_role"] == name).any()]
    entries: list[Entry] = [
        (Patch(color=COLOURS[name]), f"{name} ({counts.get(name, 0):,})") for name in drawn
    ]
    if number:
        pale = Patch(facecolor="#ececec", edgecolor=FAINT, linewidth=0.6)
        entries.append((pale, f"faded: unsure ({number:,})"))
    lines = max(picture.shape[:2]) <= _MOST_LINES
    across, down = (np.arange(1, size) - 0.5 for size in picture.shape[:2])
    marks: list[Mark] = [CellLines(across.tolist(), down.tolist())] if lines else []
    gaps = LayerGaps(grid.layers)
    panel = Grid(
        picture, Axis("query head", whole=True), grid.y, marks=[*marks, gaps], entries=entries
    )
    missing = int(np.isnan(picture[..., 0]).sum())
    notes = [
        request.heads(len(table)),
        f"{missing:,} without known attention or not captured: blank" if missing else None,
        f"{REPEATED_DECIDE} in {count(undecided, 'head')}" if undecided else None,
        "unsure: a 95 % interval contains a threshold" if number > undecided else None,
    ]
    meanings = "; ".join(f"{role.name} ({role.meaning})" for role in ROLES)
    shows = (
        "Role of every query head, by layer and head. A head has the first of these roles whose "
        f"score reaches its threshold: {meanings}."
    )
    details = [
        "Mixed: no score reaches its threshold." if MIXED in drawn else None,
        _unsure_sentence(number, undecided),
        gaps.sentence,
    ]
    words = request.words("Roles of heads", notes, shows, len(table), details)
    return Drawing([panel], words, Layout(height=grid.height))


def _role_colour(name: str, fade: bool) -> tuple[float, ...]:
    white = _FADED if fade else 0.0
    return tuple(white + (1 - white) * part for part in to_rgb(COLOURS[name]))


def _unsure_sentence(unsure: int, undecided: int) -> str | None:
    """Why some heads are faded; None if there are none."""
    if not unsure:
        return None
    reasons = [
        f"scores on repeated tokens, which would decide, are not known in {undecided:,} of them"
        if undecided
        else "",
        f"a 95 % interval contains a threshold in {unsure - undecided:,} of them"
        if unsure > undecided
        else "",
    ]
    return (
        f"The role of {count(unsure, 'head')} is unsure, and the colour, that of the likely role, "
        f"is faded: {' and '.join(filter(None, reasons))}."
    )


def bands(request: Request) -> Drawing:
    """One metric of the rotary bands of all heads."""
    table = request.run.table("bands")
    chosen = table[[name for name in request.spec.y if name in table]]
    metric = wanted_metric(request, chosen, request.spec.y[0])
    words = request.spec.metric(metric)
    values, heads, wavelength = band_grid(table, metric)
    bar = _band_bar(request, words, values)
    marks: list[Mark] = []
    if (place := _context_place(request.run.context, wavelength)) is not None:
        label = f"longest text: {request.run.context:,.0f} tokens"
        marks.append(Guide(place, label, vertical=True, ground=True))
    layers, starts = np.unique(heads["layer"], return_index=True)
    if len(layers) <= 12:
        marks.append(CellLines((starts[1:] - 0.5).tolist(), width=0.8))
    step = -(-len(layers) // 12)
    middle = (starts + np.append(starts[1:], len(heads)) - 1) / 2
    y = Axis(
        "layer (a row per head)",
        ticks=(middle[::step].tolist(), [f"{one}" for one in layers[::step]]),
    )
    turning = [
        place
        for place in range(0, len(wavelength), -(-len(wavelength) // 6))
        if wavelength[place] > 0
    ]
    labels = [tokens_in_short(wavelength[place]) for place in turning]
    x = Axis("wavelength of the band (tokens)", ticks=([float(one) for one in turning], labels))
    beyond = f"{100 - 100 * _LARGEST:.0f} % of the values are beyond the last colour"
    notes = [
        request.heads(len(heads)),
        f"{values.shape[1]} bands",
        "colours follow the square root of the size" if bar.root else None,
        beyond if bar.beyond else None,
    ]
    shows = (
        f"{capitalised(words.label)} of the rotary bands of every head: "
        f"{_without_settings(request, words.meaning)}. Rows are heads, sorted by layer; columns "
        "are bands, from fast to slow, with their tokens per turn."
    )
    details = [_BAND_SHARES if words.signed else None]
    if bar.root:
        details.append(
            "A colour stands for the square root of the size, because few bands are large."
        )
    details += [f"{capitalised(beyond)}." if bar.beyond else None]
    found = request.words(f"Rotary bands: {words.label}", notes, shows, len(heads), details)
    return Drawing([Grid(values, x, y, bar, marks=marks)], found, Layout(height=2.4))


def _band_bar(request: Request, words: Metric, values: Floats) -> Bar:
    unit = " (logits)" if words.column == "norm_product" else ""
    label = figure_text(words.label) + unit
    if words.format == "share":
        return Bar(label, *colour_limits(request, 0.0, 1.0), request.cmap(SEQUENTIAL))
    largest, high = float(np.nanmax(np.abs(values))), float(np.nanquantile(values, _LARGEST))
    beyond = 0.0 < high < 0.8 * largest and -float(np.nanmin(values)) <= high
    high = high if beyond else largest or 1.0
    low, high = colour_limits(request, -high if words.signed else 0.0, high)
    cmap = request.cmap(SIGNED if words.signed else SEQUENTIAL)
    steps = sorted({0.0, *(sign * part * high for sign in (1, -1) for part in (0.1, 0.4, 1.0))})
    ticks = tuple(float(f"{tick:.1g}") for tick in steps if low <= float(f"{tick:.1g}") <= high)
    return Bar(label, low, high, cmap, root=True, beyond=beyond, ticks=ticks)


def band_grid(bands: pd.DataFrame, metric: str) -> tuple[Floats, pd.DataFrame, Floats]:
    """(heads × bands) values, the heads, and the median wavelength of every band."""
    numbers = np.arange(int(bands["band"].max()) + 1)
    table = bands.pivot(index=["layer", "q_head"], columns="band", values=metric)
    table = table.reindex(columns=numbers)
    wavelength = bands.groupby("band")["wavelength"].median().reindex(numbers)
    return (
        table.to_numpy(np.float64),
        table.index.to_frame(index=False),
        wavelength.to_numpy(np.float64),
    )


def _context_place(context: float, wavelength: Floats) -> float | None:
    """The place of the longest text between the columns of bands; None if it is outside."""
    turning = np.flatnonzero(wavelength > 0)
    if not np.isfinite(context) or len(turning) < 2:
        return None
    order = turning[np.argsort(wavelength[turning], kind="stable")]
    if not wavelength[order[0]] < context < wavelength[order[-1]]:
        return None
    return float(np.interp(np.log(context), np.log(wavelength[order]), order))
