"""From a value per key head to the share of its keys that it keeps. Arrays in, arrays out."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from qk_toolkit.arrays import Array, Bools
from qk_toolkit.errors import ConfigError

PERCENTS = np.arange(1, 100) / 100.0
"""(99,) total compression of the rows of a budget file."""
RULES = {
    "cube": "in proportion to the cube of the value",
    "square": "a fifth of the keys equally, the rest in proportion to the square of the value",
    "ramp": "1.8 times the mean for the largest value, 0.2 times for the smallest, linear in the "
    "rank between them",
}
"""How the keys are divided; no head gets more than all of its keys."""
_POWERS, _EQUAL = {"cube": 3, "square": 2}, {"cube": 0.0, "square": 0.2}
_SPREAD = 0.8  # of the ramp
_SMALLEST = 1e-6  # of the largest value; smaller values count as this


def ranks(values: Array) -> Array:
    """(n,) ranks from 1 for the largest value; equal values share their mean rank."""
    return np.asarray(rankdata(-values, method="average"), np.float64)


def default_rule(order: str) -> str:
    """The rule for the values of an order.

    The cube was chosen for plasticity at one position, by experiments. Values of other orders can
    be near 0 for many heads, which would lose nearly all of their keys. A ramp cannot do this.
    """
    return "cube" if order == "aligned_plasticity" else "ramp"


def kept_shares(values: Array, keep: float, rule: str) -> Array:
    """(n,) shares of the keys that heads with these values keep; their mean is `keep`.

    A larger value never keeps less. All shares are from 0 to 1.

    Examples:
        >>> import numpy as np
        >>> kept_shares(np.array([0.4, 0.2, 0.2]), 0.5, "cube").round(2).tolist()
        [1.0, 0.25, 0.25]
        >>> kept_shares(np.array([0.9, 0.5, 0.4]), 0.25, "ramp").round(2).tolist()
        [0.45, 0.25, 0.05]
    """
    if rule in _POWERS:
        largest = max(float(values.max()), np.finfo(np.float64).tiny)
        power = np.maximum(values / largest, _SMALLEST) ** _POWERS[rule]  # (n,)
        equal = _EQUAL[rule]
        return with_mean(equal + (1.0 - equal) * power / power.mean(), keep)
    last = max(len(values) - 1, 1)
    place = (len(values) + 1.0 - 2.0 * ranks(values)) / last  # (n,) from 1 for rank 1 to -1
    return with_mean(1.0 + _SPREAD * place, keep)


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


def prune_curves(values: Array, counted: Bools, rule: str) -> Array:
    """(99, n) shares of keys to prune at 1, 2, …, 99 % of total compression.

    Only `counted` heads lose keys, and the total is that of these heads.
    """
    if not np.isfinite(values[counted]).all():
        raise ConfigError("a key head has no value, so it has no place in the order")
    if rule in _POWERS and values[counted].max() <= 0.0:
        raise ConfigError(
            f"--rule: {rule} needs a value above 0, and no key head has one; give --rule ramp"
        )
    curves = np.zeros((len(PERCENTS), len(values)))
    for row, compression in zip(curves, PERCENTS, strict=True):
        row[counted] = np.clip(1.0 - kept_shares(values[counted], 1.0 - compression, rule), 0, 1)
    return curves
