"""From a value per key head to the share of its keys that it keeps. Arrays in, arrays out."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from qk_toolkit.arrays import Array, Bools
from qk_toolkit.errors import ConfigError

PERCENTS = np.arange(1, 100) / 100.0
"""(99,) total compression of the rows of a budget file."""
RULES = {
    "ratio": "the largest share is 100 times as large as the smallest, and the logarithm of the "
    "share is linear in the value",
    "ramp": "1.8 times the mean for the largest value, 0.2 times for the smallest, linear in the "
    "rank between them",
}
"""How the keys are divided; no head gets more than all of its keys."""
DEFAULT_RULE = "ratio"
RATIO = 100.0
"""Of the largest to the smallest share, before shares above 1 are cut."""
_SPREAD = 0.8  # of the ramp


def ranks(values: Array) -> Array:
    """(n,) ranks from 1 for the largest value; equal values share their mean rank."""
    return np.asarray(rankdata(-values, method="average"), np.float64)


def kept_shares(values: Array, keep: float, rule: str = DEFAULT_RULE) -> Array:
    """(n,) shares of the keys that heads with these values keep; their mean is `keep`.

    A larger value never keeps less. All shares are from 0 to 1. Other units of the values, or a
    constant that is added to all of them, change nothing.

    Examples:
        >>> import numpy as np
        >>> kept_shares(np.array([0.7, 0.5, 0.3]), 0.25).round(3).tolist()
        [0.676, 0.068, 0.007]
        >>> kept_shares(np.array([0.9, 0.5, 0.4]), 0.25, "ramp").round(2).tolist()
        [0.45, 0.25, 0.05]
    """
    if rule == "ramp":
        return with_mean(1.0 + _SPREAD * (2.0 * places(values, by_rank=1.0) - 1.0), keep)
    return shares_of_ratio(places(values, by_rank=0.0), keep, RATIO)


def places(values: Array, by_rank: float) -> Array:
    """(n,) 0 for the smallest value and 1 for the largest, linear in the value or in its rank.

    `by_rank` is the part of the rank, from 0 to 1. Equal values have equal places.
    """
    last = max(len(values) - 1, 1)
    of_rank = (0.5 * (len(values) + 1.0) - ranks(values)) / last + 0.5  # (n,)
    low, high = float(values.min()), float(values.max())
    if not high > low:
        return of_rank
    of_value = np.clip((values - low) / (high - low), 0.0, 1.0)  # (n,)
    return np.asarray(by_rank * of_rank + (1.0 - by_rank) * of_value)


def shares_of_ratio(place: Array, keep: float, ratio: float) -> Array:
    """(n,) shares with the mean `keep`, which grow by a factor `ratio` from place 0 to place 1."""
    return with_mean(ratio**place, keep)


def with_mean(factor: Array, keep: float) -> Array:
    """(n,) shares in proportion to `factor`, at most 1, with the mean `keep`.

    What heads with all their keys leave over goes to the others in proportion to their factors.
    """
    full = np.zeros(len(factor), np.bool_)  # heads that keep all keys
    scale = keep * len(factor) / factor.sum()
    while (over := ~full & (scale * factor >= 1.0)).any() and not (full | over).all():
        full |= over
        scale = (keep * len(factor) - np.count_nonzero(full)) / factor[~full].sum()
    return np.where(full, 1.0, np.clip(scale * factor, 0.0, 1.0))


def prune_curves(values: Array, counted: Bools, rule: str = DEFAULT_RULE) -> Array:
    """(99, n) shares of keys to prune at 1, 2, …, 99 % of total compression.

    Only `counted` heads lose keys, and the total is that of these heads.
    """
    if not np.isfinite(values[counted]).all():
        raise ConfigError("a key head has no value, so it has no place in the order")
    curves = np.zeros((len(PERCENTS), len(values)))
    for row, compression in zip(curves, PERCENTS, strict=True):
        row[counted] = np.clip(1.0 - kept_shares(values[counted], 1.0 - compression, rule), 0, 1)
    return curves
