"""Intervals, corrected p-values and ranks of the evidence on compression."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata, t, ttest_1samp

from compression_conditions import Floats

_LEVEL, _BOOTSTRAPS = 0.95, 2000


class Interval(NamedTuple):
    """A value with a 95 % interval."""

    value: float
    low: float
    high: float


def text_interval(values: Floats) -> Interval:
    """Mean of a value per text, with Student's interval for the mean over texts like these."""
    mean, n = float(values.mean()), len(values)
    if n < 2:
        return Interval(mean, np.nan, np.nan)
    half = float(t.ppf((1 + _LEVEL) / 2, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half)


def paired_p(differences: Floats) -> float:
    """Two-sided p-value of Student's test that the mean difference over texts is zero."""
    if len(differences) < 2 or not differences.any():
        return 1.0
    return float(ttest_1samp(differences, 0.0).pvalue)


def better_draws(value: float, random: Floats) -> int:
    """Random draws that are as good or better: their value is as small or smaller."""
    return int((random <= value).sum())


def rank_p(value: float, random: Floats) -> float:
    """One-sided p-value of a value among random draws (draws,)."""
    return (1 + better_draws(value, random)) / (1 + len(random))


def holm(p: Floats) -> Floats:
    """P-values that are corrected for their number, by Holm's method."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(np.minimum(p[order] * np.arange(len(p), 0, -1), 1.0))
    found = np.empty(len(p))
    found[order] = stepped
    return found


class Correlation(NamedTuple):
    """Spearman's correlation over heads."""

    interval: Interval  # heads are drawn again
    p: float  # two-sided, by Student's distribution


def correlation(values: Floats, outcome: Floats, given: Floats | None = None) -> Correlation:
    """Spearman's correlation of (n,) values of heads with an outcome; NaN if one is constant.

    With `given`, the ranks of both are first freed from their linear dependence on its ranks.
    """
    columns = [values, outcome] if given is None else [values, outcome, given]
    data = np.stack(columns)  # (2 or 3, n)
    n, rng = data.shape[1], np.random.default_rng(0)
    drawn = [_of_ranks(data[:, rng.integers(0, n, n)]) for _ in range(_BOOTSTRAPS)]
    known = [one for one in drawn if not np.isnan(one)]
    value, freedom = _of_ranks(data), n - len(data)
    if not known or np.isnan(value):
        return Correlation(Interval(np.nan, np.nan, np.nan), 1.0)
    low, high = np.quantile(known, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    p = 0.0
    if abs(value) < 1.0 - 1e-12:
        p = float(2.0 * t.sf(abs(value) * np.sqrt(freedom / (1.0 - value**2)), freedom))
    return Correlation(Interval(value, float(low), float(high)), p)


def _of_ranks(data: Floats) -> float:
    """Correlation of the ranks of the first two rows, given those of a third row, if any."""
    ranks = np.asarray(rankdata(data, axis=1), np.float64)  # (2 or 3, n)
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    for third in centred[2:]:
        if not third.any():
            return float("nan")
        centred[:2] -= np.outer(centred[:2] @ third, third) / (third @ third)
    lengths = np.linalg.norm(centred[:2], axis=1)
    if not (lengths > 1e-9).all():
        return float("nan")
    return float(np.clip(centred[0] @ centred[1] / lengths.prod(), -1.0, 1.0))
