"""Correlations of metrics with benchmark scores over models.

Pearson's and Spearman's correlation, each with a bootstrap interval over models, the p-value of a
permutation test, and the range when one family of models is left out. Models of one family are not
independent; the bootstrap and the test treat them as if they were, and the range shows how much
one family decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.tables.intervals import LEVEL
from qk_toolkit.arrays import Array
from qk_toolkit.formatting import count

BOOTSTRAPS, PERMUTATIONS = 4999, 9999
COEFFICIENTS = ("pearson", "spearman")
CORRELATION_COLUMNS = (
    *("metric", "score", "coefficient", "value", "low", "high", "p_value"),
    *("family_low", "family_high", "models", "families", "note"),
)
FEW_MODELS = 10
_FEWEST = 3  # models of a correlation
_FEWEST_WITH_INTERVAL = 6  # a resampled set of fewer models is too often one point
_ROUNDING = 1e-12


def correlations(
    means: pd.DataFrame, scores: pd.DataFrame, families: Sequence[str] = ()
) -> pd.DataFrame:
    """One row per metric, score and coefficient (`pearson`, `spearman`).

    `means` is a summary over all heads, or any table with `run`, `metric` and `mean`; `scores` has
    the column `model` with the names of the runs, and a column per score. `families` has the family
    of every row of `scores`, or an empty text. `low` and `high` are the 95 % bootstrap interval
    over models, `family_low` and `family_high` the range when one family is left out. `note` warns
    of few models, or says why there is no correlation.
    """
    if "minus" in means:
        means = means[means["minus"] == ""]
    names = scores["model"].tolist()
    rows: list[tuple[Any, ...]] = []
    own_families = list(families) or [""] * len(names)
    for score in scores.columns.drop("model"):
        y = scores[score].to_numpy(np.float64)  # (models,)
        for metric in dict.fromkeys(means["metric"]):
            own = means[means["metric"] == metric].set_index("run")["mean"]
            x = own.reindex(names).to_numpy(np.float64)  # (models,)
            rows += [(metric, str(score), *row) for row in _rows(x, y, own_families)]
    return pd.DataFrame(rows, columns=list(CORRELATION_COLUMNS))


def _rows(x: Array, y: Array, families: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    x, y = x[known], y[known]  # (models,) twice
    own = np.array([families[place] for place in known.tolist()], dtype=object)
    counts = (len(known), len(set(own.tolist()) - {""}))
    obstacle = _obstacle(x, y)
    note = obstacle
    if not obstacle and len(known) < FEW_MODELS:
        note = f"only {count(len(known), 'model')}: one model can decide this result"
    for name in COEFFICIENTS:
        numbers = (math.nan,) * 6 if obstacle else _strength(x, y, own, ranked=name == "spearman")
        yield (name, *numbers, *counts, note)


def _obstacle(x: Array, y: Array) -> str:
    """Why there is no correlation; empty if there is one."""
    if len(x) < _FEWEST:
        return f"{count(len(x), 'model')}, too few"
    if _are_equal(y):
        return "equal scores"
    return "equal values" if _are_equal(x) else ""


def _are_equal(values: Array) -> bool:
    """Whether numbers are equal, up to rounding."""
    return bool(np.ptp(values) <= _ROUNDING * np.abs(values).max())


def _strength(x: Array, y: Array, families: Any, *, ranked: bool) -> tuple[float, ...]:
    """Value, both ends of its interval, p-value, and the range without a family."""

    def statistic(one: Array, other: Array, axis: int = -1) -> Any:
        return coefficient(one, other, axis, ranked=ranked)

    value = float(statistic(x, y))
    left = _without_a_family(x, y, families, ranked=ranked)
    return (value, *_interval(x, y, statistic), _p_value(x, y, statistic), *left)


def coefficient(x: Array, y: Array, axis: int = -1, *, ranked: bool) -> Any:
    """Pearson's correlation along an axis, or Spearman's: that of ranks. NaN for equal values."""
    from scipy.stats import rankdata  # slow to import

    if ranked:
        x, y = rankdata(x, axis=axis), rankdata(y, axis=axis)
    x, y = (part - part.mean(axis=axis, keepdims=True) for part in (x, y))
    lengths = np.sqrt((x * x).sum(axis=axis) * (y * y).sum(axis=axis))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(lengths > 0.0, (x * y).sum(axis=axis) / lengths, np.nan)


def _interval(x: Array, y: Array, statistic: Any) -> tuple[float, float]:
    """The middle 95 % of the correlations of models drawn with replacement.

    A draw of a single model has no correlation and does not count.
    """
    from scipy.stats import bootstrap  # slow to import

    if len(x) < _FEWEST_WITH_INTERVAL:
        return math.nan, math.nan
    found = bootstrap(
        (x, y),
        statistic,
        n_resamples=BOOTSTRAPS,
        paired=True,
        vectorized=True,
        method="percentile",
        confidence_level=LEVEL,
        random_state=np.random.default_rng(0),
    )
    ends = [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0]
    low, high = np.nanquantile(found.bootstrap_distribution, ends)
    return float(low), float(high)


def _p_value(x: Array, y: Array, statistic: Any) -> float:
    """Two-sided: the share of orders of the models with a correlation at least as large.

    All orders of at most 7 models, else random ones.
    """
    from scipy.stats import permutation_test  # slow to import

    found = permutation_test(
        (x,),
        lambda one, axis: np.abs(statistic(one, y, axis)),
        permutation_type="pairings",
        alternative="greater",
        n_resamples=PERMUTATIONS,
        vectorized=True,
        random_state=np.random.default_rng(0),
    )
    return float(found.pvalue)


def _without_a_family(x: Array, y: Array, families: Any, *, ranked: bool) -> tuple[float, float]:
    """The smallest and the largest correlation without one family; NaN with fewer than two.

    Families that leave fewer than three models, or equal values, are not left out. A model without
    a family stays.
    """
    names = sorted(set(families.tolist()) - {""})
    kept = [families != name for name in names if len(names) > 1]
    found = [coefficient(x[own], y[own], ranked=ranked) for own in kept if own.sum() >= _FEWEST]
    known = [float(value) for value in found if not math.isnan(value)]
    return (min(known), max(known)) if known else (math.nan, math.nan)


def interval_words(value: float, low: float, high: float) -> str:
    """`0.71 [-0.20, 0.95]`."""
    if math.isnan(value):
        return "–"
    shown, *ends = (f"{round(number, 2) + 0.0:.2f}" for number in (value, low, high))  # no -0.00
    return shown if math.isnan(low) else f"{shown} [{', '.join(ends)}]"


def p_words(p_value: float) -> str:
    """`p 0.031`, or `p < 0.001`."""
    return "p < 0.001" if p_value < 0.001 else f"p {p_value:.3f}"
