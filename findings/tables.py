"""Shared by all findings: tables in pages, cells, corrections. ± is half a 95 % interval."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t, ttest_1samp

import attention_plasticity as ap
from attention_plasticity.tables.head_means import MeanEstimate
from attention_plasticity.tables.intervals import head_half_width, mean_half_width
from qk_toolkit.arrays import Array

NONE = "–"


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose other columns are numbers."""
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """A page with every table between its two markers."""
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, rest = text.split(begin, 1)
        text = head + begin + "\n" + table + "\n\n" + end + rest.split(end, 1)[1]
    return text


def write_tables(document: Path, tables: Mapping[str, str]) -> None:
    """Put every table between its two markers in a page."""
    page = with_tables(document.read_text(encoding="utf-8"), tables)
    document.write_text(page, encoding="utf-8")
    print(document, file=sys.stderr)


def estimate(mean: MeanEstimate) -> str:
    """A mean over heads with half of its 95 % interval."""
    return with_half(mean.value, mean_half_width(mean))


def with_half(value: float, half: float, decimals: int = 3) -> str:
    """A value with half of its 95 % interval; the value alone if the interval is not known."""
    shown = f"{value:.{decimals}f}"
    return shown if math.isnan(half) else f"{shown} ± {half:.{decimals}f}"


def cells(run: ap.Run, name: str, decimals: int = 3) -> pd.Series[str]:
    """A column of the table of heads as text, with half of the 95 % interval of every head."""
    table = run.head_metrics
    halves = head_half_width(table, name, run.influences)  # (heads,)
    shown = [
        with_half(value, half, decimals) for value, half in zip(table[name], halves, strict=True)
    ]
    return pd.Series(shown, index=table.index)


def head_name(head: Mapping[Any, Any]) -> str:
    """`layer.head`."""
    return f"{head['layer']:.0f}.{head['q_head']:.0f}"


def rank_correlation(one: pd.Series, other: pd.Series) -> float:
    """Spearman's correlation of two columns with the same index."""
    return float(one.corr(other, method="spearman"))


class Interval(NamedTuple):
    """A value with a 95 % interval."""

    value: float
    low: float
    high: float


def text_interval(values: Array) -> Interval:
    """Mean of a value per text, with Student's interval for the mean over texts like these."""
    mean, n = float(values.mean()), len(values)
    half = float(t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half)


def paired_p(differences: Array) -> float:
    """Two-sided p-value of Student's test that the mean difference over texts is zero."""
    return float(ttest_1samp(differences, 0.0).pvalue) if differences.any() else 1.0


def holm(p: Array) -> Array:
    """P-values that are corrected for their number, by Holm's method."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(np.minimum(p[order] * np.arange(len(p), 0, -1), 1.0))
    found = np.empty(len(p))
    found[order] = stepped
    return found
