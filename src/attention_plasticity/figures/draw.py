"""A figure of a run: what is wanted, what its function returns, and how it is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.compare.several import SeveralRuns
from attention_plasticity.figures.captions import Words, capitalised, caption_text
from attention_plasticity.figures.compose import Layout, compose
from attention_plasticity.figures.registry import NONE_AT_ONE_POSITION, Spec, figures_of
from attention_plasticity.figures.settings import FigureOptions
from attention_plasticity.figures.shapes import Panel
from attention_plasticity.figures.style import COLUMN, TEXT, require_colormap
from attention_plasticity.metrics import ALIGNED, DROP_POSITION, TABLES, label_of
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import head_half_width, row_half_width
from attention_plasticity.tables.layer_types import index_numbers
from attention_plasticity.tables.main_plasticity import (
    OVER_BUCKETS,
    PlasticityColumns,
)
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.formatting import count
from qk_toolkit.settings import nearest, validated


@dataclass(frozen=True)
class Request:
    """A figure that is wanted: of which run, with which options."""

    spec: Spec
    run: FinishedRun
    options: FigureOptions
    at_starts: bool = False  # points are at the starts of buckets, as the original tool draws them

    def cmap(self, default: str) -> str:
        """The colormap that is wanted."""
        return require_colormap(self.options.cmap or default)

    def colour_limits(self, low: float, high: float) -> tuple[float, float]:
        """The range of the colours, with the ends that were asked for."""
        vmin, vmax = self.options.vmin, self.options.vmax
        if low == high and vmin is None and vmax is None:  # one value
            return low - 0.01, high + 0.01
        low, high = low if vmin is None else vmin, high if vmax is None else vmax
        if low >= high:
            raise ConfigError(f"vmin: must be below vmax, got {low:g} and {high:g}")
        return low, high

    def label(self, column: str) -> str:
        """A column in words."""
        own = self.spec.metric(column)
        return label_of(column) if self.spec.table == "head_metrics" else own.label

    def half_widths(self, table: pd.DataFrame, column: str) -> npt.NDArray[Any]:
        """(rows,) half widths of the 95 % intervals of a column; NaN where they are not known."""
        if self.spec.table == "head_metrics":
            return head_half_width(table, column, self.run.influences)
        return row_half_width(table, column)


@dataclass(frozen=True)
class Drawing:
    """A figure before it is drawn. The caption has the notes, and what is not beside the panels."""

    panels: Sequence[Panel]
    heads: int  # that are drawn
    notes: Sequence[str | None] = ()  # below the panels, and in the caption
    title: str = ""  # empty: that of the entry
    shows: str = ""  # the first sentences of the caption; empty: those of the entry
    more: Sequence[str | None] = ()  # further sentences of the caption
    groups: npt.ArrayLike | None = None  # of texts behind the intervals; None: no intervals
    shown: PlasticityColumns | None = None  # the plasticity that is drawn
    total: int | None = None  # heads of the table
    noun: str = "query head"
    layout: Layout | None = None


def draw_figure(
    spec: Spec, run: FinishedRun, given: Mapping[str, Any] | None = None, at_starts: bool = False
) -> Figure:
    """Draw a figure of a run, or raise a `ConfigError` that says what is missing."""
    options = options_of(spec, given or {})
    chosen = run.select(options.layers, options.layer_type, options.heads)
    if reason := spec.obstacle(chosen):
        raise ConfigError(f"{run.place}: {spec.name}: cannot be drawn; it needs {reason}")
    drawing: Drawing = _function(spec)(Request(spec, chosen, options, at_starts))
    words = _words(drawing, spec, chosen, options)
    width = TEXT if options.width == "text" else COLUMN
    return compose(drawing.panels, words, width=width, layout=drawing.layout)


def _words(drawing: Drawing, spec: Spec, run: FinishedRun, options: FigureOptions) -> Words:
    """Title, notes and caption."""
    model = options.model_name or run.model_name
    heads = count(drawing.heads, drawing.noun.removeprefix("query "))
    if drawing.total is not None and drawing.heads < drawing.total:
        heads = f"{drawing.heads:,} of {count(drawing.total, drawing.noun.removeprefix('query '))}"
    notes = [f"{heads} of {run.selection}" if run.selection else heads, *drawing.notes]
    if drawing.shown is OVER_BUCKETS:
        notes.append("over a bucket: with rotary phase")
    said = [f"{capitalised(note)}." for note in drawing.notes if note]
    caption = caption_text(
        drawing.shows or spec.caption,
        count(drawing.heads, drawing.noun),
        [*said, *drawing.more],
        run,
        model,
        shown=drawing.shown,
        groups=drawing.groups,
    )
    if options.footnote is not None:
        notes = [options.footnote]
    title = drawing.title or spec.title
    return Words(title if options.title is None else options.title, notes, caption)


def draw_of_runs(name: str, of: SeveralRuns, width: float = TEXT) -> Figure:
    """Draw a figure of several runs, or raise a `ConfigError` that says what is missing.

    Examples:
        >>> from attention_plasticity import compare_runs, open_run
        >>> run = open_run("results/sample")
        >>> parts = [run.select(layers=[0]), run.select(layers=[29])]
        >>> figure = compare_runs(parts, labels=["first", "last"]).plot()
        >>> figure.axes[0].get_xlabel()
        'query position (tokens)'
    """
    spec = next(one for one in figures_of("runs") if one.name == name)
    if reason := spec.obstacle(of):
        raise ConfigError(f"{name}: cannot be drawn; it needs {reason}")
    panels, words, layout = _function(spec)(of)
    return compose(panels, words, width=width, layout=layout)


def _function(spec: Spec) -> Any:
    module, _, name = spec.data.partition(".")
    return getattr(import_module(f"attention_plasticity.figures.{module}"), name)


def options_of(spec: Spec, given: Mapping[str, Any]) -> FigureOptions:
    """The options of a figure. Raises for those that it does not take."""
    for name in given:
        if name not in spec.taken:
            hint = nearest(name, spec.taken, otherwise=f"; it takes {', '.join(spec.taken)}")
            raise ConfigError(f"{name}: is no option of {spec.name}{hint}")
    numbers = {
        name: index_numbers(given[name], name)
        for name in ("layers", "heads")
        if given.get(name) is not None
    }
    return validated(FigureOptions, {**given, **numbers})


def wanted_metric(request: Request, table: pd.DataFrame, default: str) -> str:
    """The column of a table that is wanted, or the default: one of numbers, with a value.

    `drop` is short for the part of the drop that comes from position.
    """
    asked, run, kind = request.options.metric, request.run, request.spec.table
    name = DROP_POSITION if asked == "drop" else asked or default
    known = [str(one) for one in table if table[one].dtype.kind in "iuf"]
    unknown = name not in known or table[name].isna().all()
    if name in (ALIGNED, DROP_POSITION) and unknown:
        raise ConfigError(f"{run.place}: {NONE_AT_ONE_POSITION}")
    if name not in known:
        usual = [one for one in TABLES[kind].averaged if one in known] or known
        hint = nearest(name, known, otherwise=f"; such as {', '.join(usual[:6])}")
        file = TABLES[kind].file
        raise ConfigError(f"metric: {in_short(name)}: {file} has no such column of numbers{hint}")
    run.require_values(kind, name)
    return name
