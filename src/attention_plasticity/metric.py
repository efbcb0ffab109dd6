"""A column of a table, and a table: what `metrics.py` declares.

This file imports no third-party library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from qk_toolkit.formatting import with_half

Format = Literal["text", "index", "count", "share", "difference", "error", "number"]
"""How a value is shown, and which values are possible.

text: a word. index: a number from 0 that names something. count: never negative. share: from 0 to
1, three decimals. difference: of two shares, three decimals. error: of a value, four decimals.
number: three decimals, or two digits if it is smaller.
"""

PLASTICITY, ATTENTION = "Plasticity", "Attention"
POSITION, RESIDUALS = "Position in the queries", "Residuals of the regression on position"
DATA, HOW_SURE = "Data", "How sure"
METRIC_GROUPS = (PLASTICITY, ATTENTION, POSITION, RESIDUALS, DATA, HOW_SURE)
"""Headings of the metrics on the page, in this order."""

FIRST = ""
"""Value of `shown_after`: the first metric of its group."""


@dataclass(frozen=True)
class Metric:
    """A column of a table."""

    column: str
    label: str
    meaning: str
    group: str = ""  # heading on the page; empty: the column names a head, a bucket and so on
    format: Format = "number"
    signed: bool = False  # a map has two colours, with zero in the middle
    error: bool = False  # its bias is removed, and there is a column `_se` with its standard error
    averaged: bool = False  # run.json has its mean over heads
    optional: bool = False  # the page leaves it out if no head has a value
    any_scale: bool = False  # it has the scale of the queries and can be infinite
    nan: str = ""  # meaning of NaN in a column in which NaN is a regular value
    shown_after: str | None = None  # on the page; None: after the metrics declared before it
    error_of: str | None = None  # the column whose standard error this is
    short: str = ""  # its heading where a caption says what is measured; empty: the label
    note: str = ""  # more about it, in docs/data-format.md only

    @property
    def standard_error(self) -> Metric:
        """The column of its standard error."""
        return Metric(
            f"{self.column}_se",
            f"error of {self.label}",
            "standard error over texts",
            group=HOW_SURE,
            format="error",
            optional=True,
            any_scale=self.any_scale,
            error_of=self.column,
        )

    @property
    def heading(self) -> str:
        """Its heading in a table whose caption says what is measured."""
        return self.short or self.label

    def is_missing(self, value: object) -> bool:
        """Whether a value is missing: NaN, unless NaN has a meaning in this column."""
        return isinstance(value, float) and math.isnan(value) and not self.nan

    def show(self, value: float) -> str:
        """A value as text, with the decimals of its format; a dash for NaN."""
        if math.isnan(value):
            return "–"
        if self.format in ("index", "count"):
            return f"{value:,.0f}"
        if self.decimals is None and 0 < abs(value) < 0.0005:
            return f"{value:.1e}"
        decimals = self.decimals or 3
        return f"{round(value, decimals) + 0.0:.{decimals}f}"  # + 0.0: no "-0.000"

    def show_half(self, value: float, half: float) -> str:
        """`0.6871 ± 0.0061`; without half of the interval if it is not known."""
        known = math.isfinite(value) and math.isfinite(half)
        return with_half(value, half) if known else self.show(value)

    @property
    def decimals(self) -> int | None:
        """Number of decimals that are always shown; None if it depends on the value."""
        return {"share": 3, "difference": 3, "error": 4}.get(self.format)


@dataclass(frozen=True)
class Table:
    """A CSV file of a run."""

    file: str  # its name
    rows: str  # what a row is
    columns: tuple[Metric, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in their order."""
        return tuple(metric.column for metric in self.columns)

    @cached_property
    def by_name(self) -> dict[str, Metric]:
        """The columns by their names."""
        return {metric.column: metric for metric in self.columns}

    @property
    def with_error(self) -> tuple[str, ...]:
        """The columns that have a standard error."""
        return tuple(metric.column for metric in self.columns if metric.error)

    @property
    def averaged(self) -> tuple[str, ...]:
        """The columns whose means over heads are in run.json."""
        return tuple(metric.column for metric in self.columns if metric.averaged)


def with_errors(*metrics: Metric) -> tuple[Metric, ...]:
    """Metrics, each followed by the column of its standard error if it has one."""
    pairs = ((one, one.standard_error) if one.error else (one,) for one in metrics)
    return tuple(metric for pair in pairs for metric in pair)
