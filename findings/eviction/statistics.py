"""The choice of the rule, intervals over texts, corrected p-values, and ranks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import t, ttest_1samp

from findings.eviction.plan import CHOICE, FLAT, RULE, Condition, Plan
from findings.eviction.results import Results
from qk_toolkit.arrays import Array

_LEVEL = 0.95


def chosen_rule(results: Results, plan: Plan, rules: tuple[str, ...]) -> str:
    """The rule with the smallest KL on the book of the choice, as a geometric mean."""
    means = {rule: log_ratios(results, plan, f"{RULE}:{rule}").mean() for rule in rules}
    return min(means, key=lambda rule: float(means[rule]))


def log_ratios(
    results: Results,
    plan: Plan,
    allocation: str,
    texts: str = CHOICE,
    context: int | None = None,
    base: str = FLAT,
) -> Array:
    """(scorers, compressions) log of KL / KL of the base, as means over texts."""
    found = np.empty((len(plan.scorers), len(plan.compressions)))
    for place in np.ndindex(*found.shape):
        setting = (plan.scorers[place[0]], plan.compressions[place[1]])
        own, other = (
            results.of(Condition(texts, context or plan.middle, *setting, name))
            for name in (allocation, base)
        )  # (texts,) each
        found[place] = np.log(own / other).mean()
    return found


class Interval(NamedTuple):
    """A value with a 95 % interval."""

    value: float
    low: float
    high: float


def text_interval(values: Array) -> Interval:
    """Mean of a value per text, with Student's interval for the mean over texts like these."""
    mean, n = float(values.mean()), len(values)
    half = float(t.ppf((1 + _LEVEL) / 2, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half)


def paired_p(differences: Array) -> float:
    """Two-sided p-value of Student's test that the mean difference over texts is zero."""
    return float(ttest_1samp(differences, 0.0).pvalue) if differences.any() else 1.0


def better_draws(value: float, random: Array) -> int:
    """Random draws that are as good or better: their value is as small or smaller."""
    return int((random <= value).sum())


def holm(p: Array) -> Array:
    """P-values that are corrected for their number, by Holm's method."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(np.minimum(p[order] * np.arange(len(p), 0, -1), 1.0))
    found = np.empty(len(p))
    found[order] = stepped
    return found
