"""The one estimator: a function of sums over rows, and the same without each group of texts.

Arrays in, arrays out; numpy only. Rows of one text are alike, so texts are the independent units of
a sample. Every text is in one of 16 groups. A quantity is computed from the sums over all groups
and from the sums without each group. The differences give its bias, which is removed, and its
standard error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from attention_plasticity.estimate.sizes import GROUPS
from qk_toolkit.arrays import Array, Bools, Ints

F = TypeVar("F", np.float32, np.float64)
MIN_GROUPS = 4  # with fewer groups of texts, a value has no standard error


class Unknown(NamedTuple):
    """In the place of a quantity that a dump does not determine.

    The reason goes into run.json beside the missing values.
    """

    reason: str


class Quantity(NamedTuple):
    """One value or several (…), without bias, with the influences of the groups of texts."""

    value: Any  # float or (…)
    influences: Array  # (g, …); 0 for a group without rows; NaN if there are too few groups
    groups: Any  # int or (…) number of groups behind the value

    @property
    def standard_error(self) -> Any:
        """Root of the sum of the squared influences."""
        error = np.sqrt((self.influences**2).sum(axis=0))
        return float(error) if error.ndim == 0 else error

    def minus(self, other: Quantity) -> Quantity:
        """The difference of two quantities of the same texts."""
        groups = np.minimum(self.groups, other.groups)
        return Quantity(self.value - other.value, self.influences - other.influences, groups)

    def times(self, factor: float) -> Quantity:
        """The quantity in another unit."""
        return Quantity(self.value * factor, self.influences * factor, self.groups)

    def at(self, place: Any) -> Quantity:
        """One of several values, or some of them."""
        value, groups = np.asarray(self.value)[place], np.asarray(self.groups)[place]
        influences = self.influences[:, place]
        if value.ndim == 0:
            return Quantity(float(value), influences, int(groups))
        return Quantity(value, influences, groups)


def unknown() -> Quantity:
    """A quantity without a value."""
    return Quantity(float("nan"), np.full(GROUPS, np.nan), 0)


def without_errors(value: float) -> Quantity:
    """A value of rows whose texts are not known."""
    return Quantity(value, np.full(GROUPS, np.nan), 0)


def leave_one_out(sums: npt.NDArray[F], axis: int = 0) -> npt.NDArray[F]:
    """(1 + g, …) the total of `sums` (g, …), then the total without each group, along an axis."""
    total = sums.sum(axis=axis, keepdims=True)
    return np.concatenate([total, total - sums], axis=axis)


def quantity(replicates: npt.ArrayLike, present: npt.ArrayLike) -> Quantity:
    """A quantity from its values `replicates` (1 + g, …): of all groups, then without each group.

    `present` (g,) or (g, …) says which groups have rows. With G groups θ_g the bias is
    (G − 1)(mean θ_g − θ), and the influence of a group is √((G − 1)/G)·(θ_g − mean θ_g).
    """
    values = np.asarray(replicates, np.float64)
    theta, others = values[0], values[1:]
    known = np.asarray(present, np.bool_)
    known = known.reshape(known.shape + (1,) * (others.ndim - known.ndim))
    known = known & np.ones(others.shape, np.bool_)
    groups = known.sum(axis=0)  # (…)
    number = np.maximum(groups, 1)
    mean = np.where(known, others, 0.0).sum(axis=0) / number
    bias = (groups - 1) * (mean - theta)
    enough = (groups >= MIN_GROUPS) & ~np.isnan(theta + mean)
    factor = np.where(enough, np.sqrt((number - 1) / number), np.nan)
    influences = factor * np.where(known, others - mean, 0.0)
    value = np.where(enough, theta - bias, theta)
    if value.ndim == 0:
        return Quantity(float(value), influences, int(groups))
    return Quantity(value, influences, groups)


def mean_of(quantities: Sequence[Quantity]) -> Quantity:
    """Mean over heads of quantities of the same texts."""
    influences = np.mean([one.influences for one in quantities], axis=0)
    value = float(np.mean([one.value for one in quantities]))
    return Quantity(value, influences, min(one.groups for one in quantities))


def group_sums(values: Array, group: Ints) -> Array:
    """(g, …) sums of `values` (n, …) over the rows of every group (n,)."""
    return sums_by(values, group, GROUPS)


def sums_by(values: Array, slot: Ints, slots: int) -> Array:
    """(slots, …) sums of `values` (n, …) over the rows of every slot (n,)."""
    if values.ndim == 1:
        return np.asarray(np.bincount(slot, values, slots), np.float64)
    order = np.argsort(slot, kind="stable")
    found, starts = np.unique(slot[order], return_index=True)
    sums = np.zeros((slots, *values.shape[1:]))
    if len(found):
        sums[found] = np.add.reduceat(values[order], starts, axis=0, dtype=np.float64)
    return sums


def present_groups(group: Ints) -> Bools:
    """(g,) which groups have rows."""
    return np.bincount(group, minlength=GROUPS) > 0


def ratio_of_means(values: Array, weight: Array, group: Ints | None) -> Quantity:
    """Means of `values` (n,) or (n, m) with weights (n,) or (n, m); a weight of 0 leaves a row out.

    Without groups of texts there are no errors.
    """
    if values.ndim > weight.ndim:
        weight = np.broadcast_to(weight[:, None], values.shape)
    if group is None:
        with np.errstate(invalid="ignore"):
            value = (values * weight).sum(axis=0) / weight.sum(axis=0)
        shape = (GROUPS, *np.shape(value))
        groups = np.zeros(np.shape(value), np.int64)
        if groups.ndim == 0:
            return without_errors(float(value))
        return Quantity(value, np.full(shape, np.nan), groups)
    above, below = group_sums(values * weight, group), group_sums(weight, group)  # (g, m)
    with np.errstate(invalid="ignore", divide="ignore"):
        return quantity(leave_one_out(above) / leave_one_out(below), below > 0)
