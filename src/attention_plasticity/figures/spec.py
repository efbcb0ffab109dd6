"""What the registry holds: a figure as a table, columns, a shape, and what it needs.

Whether a figure can be drawn, and why not, follows from its entry. This file imports no library for
numbers or figures, so that the help is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from attention_plasticity.figures.settings import FigureOptions
from attention_plasticity.metric import Metric
from attention_plasticity.metrics import ALIGNED, ALIGNED_DROP, TABLES, TableKind
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.formatting import count
from qk_toolkit.settings import nearest, validated

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from attention_plasticity.figures.compose import Layout, Words
    from attention_plasticity.figures.shapes import Panel
    from attention_plasticity.tables.finished_run import FinishedRun
    from attention_plasticity.tables.main_plasticity import PlasticityColumns

Shape = Literal["lines", "grid", "scatter", "dots", "bars"]
NONE_AT_ONE_POSITION = (
    "has no plasticity at one position; it needs the rotary records of the dump: "
    "attention-plasticity add-rotary, and analyze again"
)
_PACKAGE = "attention_plasticity.figures"


@dataclass(frozen=True)
class Need:
    """Something without which a figure cannot be drawn."""

    reason: str  # what is needed and how to get it, after the word "needs"
    met: Callable[[FinishedRun], bool]


def known(table: TableKind, column: str, reason: str) -> Need:
    """A run must have a value of this column."""

    def met(run: FinishedRun) -> bool:
        if not run.has(table):
            return False
        found = run.table(table)
        return column in found and bool(found[column].notna().any())

    return Need(reason, met)


@dataclass(frozen=True)
class Drawing:
    """A figure before it is drawn: its panels, the words around them, their arrangement."""

    panels: Sequence[Panel]
    words: Words
    layout: Layout | None = None


@dataclass(frozen=True)
class Spec:
    """One entry of the registry. Labels come from the columns in metrics.py."""

    name: str
    shape: Shape
    shows: str  # one line for the help
    table: TableKind
    data: str  # the function that shapes its data: from `Request` to `Drawing`, as `maps.roles`
    x: tuple[str, ...] = ()  # columns across; each has a panel of its own
    y: tuple[str, ...] = ()  # columns up
    diagonal: bool = False  # a line of equal values
    title: str = ""
    caption: str = ""  # the first sentences
    needs: tuple[Need, ...] = ()
    options: tuple[str, ...] = ()  # beside those of every figure
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Files of `plot all` by their names, with their options; empty: one with the name."""

    def draw(self, request: Request) -> Drawing:
        """The panels and words of a figure that is wanted."""
        module, _, name = self.data.partition(".")
        found: Drawing = getattr(import_module(f"{_PACKAGE}.{module}"), name)(request)
        return found

    @property
    def files(self) -> Mapping[str, Mapping[str, Any]]:
        """The files of `plot all`, with the options of each."""
        return self.variants or {self.name: {}}

    @property
    def taken(self) -> tuple[str, ...]:
        """The names of all options that it takes."""
        return (*FigureOptions.everywhere, *self.options)

    def metric(self, column: str) -> Metric:
        """A column of its table; an unknown one has its name as label."""
        return TABLES[self.table].by_name.get(column) or Metric(column, column, "")

    def obstacle(self, run: FinishedRun) -> str | None:
        """Why it cannot be drawn; None if it can."""
        if run.heads is not None and run.has(self.table) and run.table(self.table).empty:
            return "other heads: its table has none of those that are selected"
        return next((need.reason for need in self.needs if not need.met(run)), None)


@dataclass(frozen=True)
class Request:
    """A figure that is wanted: of which run, with which options."""

    spec: Spec
    run: FinishedRun
    options: FigureOptions
    at_starts: bool = False  # points are at the starts of buckets, as the original tool draws them

    @property
    def model(self) -> str:
        """The name of the model in the title."""
        return self.options.model_name or self.run.model_name

    def cmap(self, default: str) -> str:
        """The colormap that is wanted."""
        from attention_plasticity.figures.style import require_colormap

        return require_colormap(self.options.cmap or default)

    def label(self, column: str) -> str:
        """A column in words."""
        from attention_plasticity.figures.captions import column_label

        own = self.spec.metric(column)
        return column_label(column) if self.spec.table == "head_metrics" else own.label

    def half_widths(self, table: pd.DataFrame, column: str) -> Any:
        """(rows,) half widths of the 95 % intervals of a column; NaN where they are not known."""
        from attention_plasticity.tables.intervals import head_half_width, row_half_width

        if self.spec.table == "head_metrics":
            return head_half_width(table, column, self.run.influences)
        return row_half_width(table, column)

    def heads(self, number: int, total: int | None = None, noun: str = "head") -> str:
        """`12 heads`, or `12 heads of layers 0-3`. With fewer than the total: `9 of 12 heads`."""
        heads = count(number, noun)
        if total is not None and number < total:
            heads = f"{number:,} of {count(total, noun)}"
        return f"{heads} of {self.run.selection}" if self.run.selection else heads

    def words(
        self,
        title: str,
        notes: Sequence[str | None],
        shows: str,
        heads: int,
        details: Sequence[str | None] = (),
        shown: PlasticityColumns | None = None,
        noun: str = "query head",
    ) -> Words:
        """The texts of the figure. `shows` are the first sentences of its caption."""
        from attention_plasticity.figures.captions import caption_text
        from attention_plasticity.figures.compose import Words

        options = self.options
        given = options.title
        named = f"{title}: {self.model}" if self.model else title
        headline = named if given is None else given
        caption = caption_text(shows, count(heads, noun), details, self.run, self.model, shown)
        lines = notes if options.footnote is None else [options.footnote]
        return Words(headline, lines, caption)


def draw_figure(
    spec: Spec, run: FinishedRun, given: Mapping[str, Any] | None = None, at_starts: bool = False
) -> Figure:
    """Draw a figure of a run, or raise a `ConfigError` that says what is missing."""
    options = options_of(spec, given or {})
    chosen = run.select(options.layers, options.layer_type, options.heads)
    if reason := spec.obstacle(chosen):
        raise ConfigError(f"{run.place}: {spec.name}: cannot be drawn; it needs {reason}")
    from attention_plasticity.figures.compose import compose
    from attention_plasticity.figures.style import COLUMN, TEXT

    drawing = spec.draw(Request(spec, chosen, options, at_starts))
    width = TEXT if options.width == "text" else COLUMN
    return compose(drawing.panels, drawing.words, width=width, layout=drawing.layout)


def options_of(spec: Spec, given: Mapping[str, Any]) -> FigureOptions:
    """The options of a figure. Raises for those that it does not take."""
    for name in given:
        if name not in spec.taken:
            hint = nearest(name, spec.taken, otherwise=f"; it takes {', '.join(spec.taken)}")
            raise ConfigError(f"{name}: is no option of {spec.name}{hint}")
    from attention_plasticity.tables.layer_types import index_numbers

    numbers = {
        name: index_numbers(given[name], name)
        for name in ("layers", "heads")
        if given.get(name) is not None
    }
    return validated(FigureOptions, {**given, **numbers})


def wanted_metric(request: Request, table: pd.DataFrame, default: str) -> str:
    """The column of a table that is wanted, or the default: one of numbers, with a value.

    `drop` is short for the drop at one position.
    """
    from attention_plasticity.tables.csv_tables import require_values

    asked, run, kind = request.options.metric, request.run, request.spec.table
    name = ALIGNED_DROP if asked == "drop" else asked or default
    known = [str(one) for one in table if table[one].dtype.kind in "iuf"]
    unknown = name not in known or table[name].isna().all()
    if name in (ALIGNED, ALIGNED_DROP) and unknown:
        raise ConfigError(f"{run.place}: {NONE_AT_ONE_POSITION}")
    if name not in known:
        hint = nearest(name, known, otherwise=f"; such as {', '.join(known[:6])}")
        file = TABLES[kind].file
        raise ConfigError(f"metric: {in_short(name)}: {file} has no such column of numbers{hint}")
    require_values(table, name, run.path(kind))
    return name


def shown_plasticity(request: Request, metrics: pd.DataFrame) -> PlasticityColumns:
    """The plasticity that is wanted: at one position, if the table has it."""
    from attention_plasticity.tables.main_plasticity import OVER_BUCKETS, main_plasticity

    found, asked = main_plasticity(metrics), request.options.plasticity
    if asked == "position" and found is OVER_BUCKETS:
        raise ConfigError(f"{request.run.place}: {NONE_AT_ONE_POSITION}")
    return OVER_BUCKETS if asked == "bucket" else found
