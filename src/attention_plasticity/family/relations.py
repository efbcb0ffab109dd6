"""How a metric goes with a benchmark score over models: correlations and how far they hold.

Pearson's and Spearman's correlation, each with a bootstrap interval over models, the p-value of a
permutation test, and the range when one family of models is left out. Models of one family are not
independent; the bootstrap and the test treat them as if they were, and the range shows how much
one family decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from attention_plasticity.comparison.scores import FEW_RUNS
from qk_toolkit.arrays import Array, Ints
from qk_toolkit.formatting import count

BOOTSTRAPS, PERMUTATIONS = 4999, 9999
_MOST_EXACT = 7  # models of which all orders are tried: 5,040
_FEWEST = 3  # models of a correlation
_FEWEST_WITH_INTERVAL = 6  # a resampled set of fewer models is too often one point
_SEED = 0
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Strength:
    """One correlation coefficient."""

    value: float
    low: float  # of the 95 % bootstrap interval
    high: float
    p_value: float  # of the permutation test, two-sided
    family_low: float  # the smallest and the largest when one family is left out
    family_high: float


UNKNOWN = Strength(*(math.nan,) * 6)


@dataclass(frozen=True)
class Relation:
    """A metric against a score, over the models that have both."""

    metric: str
    score: str
    models: int
    families: int
    pearson: Strength
    spearman: Strength
    obstacle: str = ""  # why there is no correlation

    @property
    def warning(self) -> str:
        """A plain warning below ten models; empty from ten on."""
        if self.models >= FEW_RUNS or self.obstacle:
            return ""
        return f"only {count(self.models, 'model')}: one model can decide this result"


@dataclass(frozen=True)
class Points:
    """(models,) values with half widths of their intervals; NaN is not known."""

    values: Array
    halves: Array


def known_points(values: Sequence[float], halves: Sequence[float]) -> Points:
    """Points from plain numbers."""
    return Points(np.array(values, np.float64), np.array(halves, np.float64))


def relation(
    metric: str, score: str, values: Array, scores: Array, families: Sequence[str]
) -> Relation:
    """Correlate (models,) values with (models,) scores. NaN is not known."""
    known = np.flatnonzero(np.isfinite(values) & np.isfinite(scores))
    x, y = values[known], scores[known]  # (models,) twice
    own = np.array([families[place] for place in known.tolist()])
    number, groups = len(known), len(set(own) - {""})
    obstacle = ""
    if number < _FEWEST:
        obstacle = f"{count(number, 'model')}, too few"
    elif _are_equal(y):
        obstacle = "equal scores"
    elif _are_equal(x):
        obstacle = "equal values"
    if obstacle:
        return Relation(metric, score, number, groups, UNKNOWN, UNKNOWN, obstacle)
    pearson, spearman = (_strength(x, y, own, ranked=ranked) for ranked in (False, True))
    return Relation(metric, score, number, groups, pearson, spearman)


def relation_table(relations: Sequence[Relation]) -> pd.DataFrame:
    """One row per metric and score."""
    rows = []
    for one in relations:
        row: dict[str, object] = {"metric": one.metric, "score": one.score}
        row |= {"models": one.models, "families": one.families}
        for name, strength in (("pearson", one.pearson), ("spearman", one.spearman)):
            row[name] = strength.value
            for field in ("low", "high", "p_value", "family_low", "family_high"):
                row[f"{name}_{field}"] = getattr(strength, field)
        rows.append(row | {"warning": one.warning or one.obstacle})
    return pd.DataFrame(rows)


def strength_words(one: Strength) -> str:
    """`0.71 [-0.20, 0.95]`."""
    interval = "" if math.isnan(one.low) else f" [{one.low:.2f}, {one.high:.2f}]"
    return f"{one.value:.2f}{interval}"


def p_words(p_value: float) -> str:
    """`p 0.031`, or `p < 0.001`."""
    return "p < 0.001" if p_value < 0.001 else f"p {p_value:.3f}"


def _strength(x: Array, y: Array, families: np.ndarray, *, ranked: bool) -> Strength:
    value = float(_correlations(x[None], y[None], ranked=ranked)[0])
    low, high = _bootstrap(x, y, ranked=ranked)
    p_value = _permutation_p(x, y, value, ranked=ranked)
    return Strength(value, low, high, p_value, *_without_a_family(x, y, families, ranked=ranked))


def _correlations(x: Array, y: Array, *, ranked: bool) -> Array:
    """(draws,) correlations of (draws, models) twice; NaN if all values of a draw are equal."""
    if ranked:
        x, y = rankdata(x, axis=1), rankdata(y, axis=1)
    x, y = (part - part.mean(axis=1, keepdims=True) for part in (x, y))
    lengths = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(lengths > 0.0, (x * y).sum(axis=1) / lengths, np.nan)


def _bootstrap(x: Array, y: Array, *, ranked: bool) -> tuple[float, float]:
    """The middle 95 % of the correlations of models drawn with replacement."""
    number = len(x)
    if number < _FEWEST_WITH_INTERVAL:
        return math.nan, math.nan
    draws = np.random.default_rng(_SEED).integers(0, number, (BOOTSTRAPS, number))
    found = _correlations(x[draws], y[draws], ranked=ranked)
    low, high = np.quantile(found[np.isfinite(found)], [0.025, 0.975])
    return float(low), float(high)


def _permutation_p(x: Array, y: Array, value: float, *, ranked: bool) -> float:
    """The share of orders of the scores with a correlation at least as large, in either direction.

    All orders of at most 7 models; else random ones, and the given order counts as one of them.
    """
    if ranked:  # the order of ranks is that of values
        x, y = rankdata(x), rankdata(y)
    orders, given = _orders(len(x))
    same = np.broadcast_to(x, orders.shape)
    found = np.abs(_correlations(same, y[orders], ranked=False))
    as_large = int((found >= abs(value) - _ROUNDING).sum())
    return (as_large + given) / (len(orders) + given)


def _orders(number: int) -> tuple[Ints, int]:
    """(orders, models), and how many orders must be added: the given one, if orders are random."""
    if number <= _MOST_EXACT:
        return np.array(list(permutations(range(number)))), 0
    rng = np.random.default_rng(_SEED)
    return rng.permuted(np.tile(np.arange(number), (PERMUTATIONS, 1)), axis=1), 1


def _without_a_family(
    x: Array, y: Array, families: np.ndarray, *, ranked: bool
) -> tuple[float, float]:
    """The smallest and the largest correlation without one family; NaN with fewer than two.

    Families that leave fewer than three models, or equal values, are not left out. A model without
    a family stays.
    """
    found = []
    names = sorted(set(families.tolist()) - {""})
    for name in names if len(names) > 1 else []:
        kept = families != name
        if kept.sum() >= _FEWEST:
            found += _correlations(x[None, kept], y[None, kept], ranked=ranked).tolist()
    known = [value for value in found if not math.isnan(value)]
    return (min(known), max(known)) if known else (math.nan, math.nan)


def _are_equal(values: Array) -> bool:
    """Whether numbers are equal, up to rounding."""
    return bool(np.ptp(values) <= _ROUNDING * np.abs(values).max())
