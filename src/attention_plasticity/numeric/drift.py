"""How far vectors drift with position: the share of variance that a line in position explains.

Arrays in, arrays out; numpy only. Rows have weights, so that the shares are those of all tokens.
Only ratios of weights matter. Standard errors and bias come from the groups of texts: with the
weights of group g multiplied by 1 + ε, an estimate is θ + ε·u_g + ε²·b_g + …; its influences are
the u_g and its bias is the sum of the b_g. Both follow from a few sums per group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attention_plasticity.numeric.blocks import near_mean, row_blocks
from attention_plasticity.numeric.errors.text_groups import (
    MIN_GROUPS,
    jackknife_factor,
    rows_per_group,
)
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints, Vectors

_ROUNDING = 8.0  # rounding errors of a rotated vector, in units of its precision


class Drift(NamedTuple):
    """How vectors depend on position. Without known groups, influences and bias are NaN."""

    r2: Estimate  # share of the variance that a line in position explains
    mean_share: Estimate  # ‖mean‖² / mean of ‖x‖²; NaN if all vectors are zero


@dataclass(frozen=True)
class _GroupSums:
    """Weighted sums of every group, with y = x − mean and τ = t − mean of t."""

    rows: Ints  # (g,) numbers of rows
    weight: Array  # (g,) Σw
    t: Array  # (g,) Σwτ
    tt: Array  # (g,) Σwτ²
    y: Array  # (g, d) Σwy
    ty: Array  # (g, d) Σwτy
    yy: Array  # (g,) Σw‖y‖²
    mean: Array  # (d,)

    @property
    def groups(self) -> int:
        """Number of groups with rows."""
        return int(np.count_nonzero(self.rows))


class TurnedRows(NamedTuple):
    """Rows that were all turned by one angle, and the functions that turn vectors (m, d)."""

    rows: slice
    turn: Callable[[Array], Array]
    undo: Callable[[Array], Array]


def drift(
    t: Array,
    X: Vectors,
    weight: Array,
    group: Ints | None,
    turned: Sequence[TurnedRows] | None = None,
) -> Drift:
    """The drift of vectors `X` (n, d) at positions `t` (n,) with weights `weight` (n,).

    `group` (n,) are the groups of texts; None: not known. Variances that are rounding errors of the
    vectors count as zero; the share of position is then 0, as it is for one position. If the
    vectors were turned, part by part, the drift is that of the vectors before: the sums of a part
    are turned back, not its rows.
    """
    known_group = np.zeros(len(t), np.int64) if group is None else group
    sums = _group_sums(t, X, weight, known_group, turned or [_all_rows(len(t))])
    total, W = float(sums.yy.sum()), float(sums.weight.sum())
    mean_square = total / W + float(sums.mean @ sums.mean)
    noise = mean_square * (_ROUNDING * float(np.finfo(X.dtype).eps)) ** 2
    known = group is not None
    share = _NOTHING if total / W <= noise else _r2(sums)
    return Drift(_estimate(*share, sums, known), _estimate(*_mean_share(sums), sums, known))


def _all_rows(n: int) -> TurnedRows:
    """Rows that were not turned."""
    return TurnedRows(slice(0, n), np.asarray, np.asarray)


def _group_sums(
    t: Array, X: Vectors, weight: Array, group: Ints, parts: Sequence[TurnedRows]
) -> _GroupSums:
    d = X.shape[1]
    w = weight / weight.max()  # (n,)
    w_total = float(w.sum())
    tau = t - t[0]
    tau -= float(w @ tau) / w_total  # (n,)
    factors = np.stack([w, w * tau])  # (2, n)
    origin = parts[0].undo(near_mean(X[parts[0].rows])[None])  # (1, d)
    sums, squares = np.zeros((2, GROUPS, d)), np.zeros(GROUPS)
    for rows, turn, undo in parts:
        near = near_mean(X[rows]).astype(X.dtype)  # (d,)
        own, own_squares = _sums_of_part(X[rows], near, factors[:, rows], group[rows])
        scales = _summed(group[rows], factors[:, rows])  # (2, g)
        apart = near - turn(origin)[0]  # (d,)
        own_squares += 2.0 * own[0] @ apart + scales[0] * (apart @ apart)
        own += np.multiply.outer(scales, apart)
        sums += undo(own.reshape(-1, d)).reshape(own.shape)
        squares += own_squares
    first, second = sums
    weights, t_sums = _summed(group, factors)  # (g,) each
    shift = first.sum(axis=0) / w_total  # (d,) mean minus origin
    return _GroupSums(
        rows=rows_per_group(group),
        weight=weights,
        t=t_sums,
        tt=_summed(group, [factors[1] * tau])[0],
        y=first - np.multiply.outer(weights, shift),
        ty=second - np.multiply.outer(t_sums, shift),
        yy=np.maximum(squares - 2.0 * first @ shift + weights * (shift @ shift), 0.0),
        mean=origin[0] + shift,
    )


def _summed(group: Ints, values: Iterable[Array]) -> Array:
    """(m, g) sums of each of the m `values` (n,) over the rows of every group."""
    return np.array([np.bincount(group, one, GROUPS) for one in values])


def _sums_of_part(X: Vectors, origin: Vectors, factors: Array, group: Ints) -> tuple[Array, Array]:
    """Sums over rows minus `origin` (d,), times both `factors`: (2, g, d); of squares: (g,)."""
    n, d = X.shape
    sums, squares = np.zeros((2, GROUPS, d)), np.zeros(n)
    factors_of_rows = factors.astype(X.dtype)  # (2, n)
    for rows in row_blocks(n, d):
        dev = X[rows] - origin  # (b, d)
        squares[rows] = np.einsum("nd,nd->n", dev, dev)
        member = group[rows]
        starts = np.flatnonzero(np.diff(member, prepend=-1))  # rows of a text are together
        for begin, end in zip(starts, np.append(starts[1:], len(member)), strict=True):
            part = factors_of_rows[:, rows.start + begin : rows.start + end]
            sums[:, member[begin]] += part @ dev[begin:end]
    return sums, _summed(group, [factors[0] * squares])[0]


_Parts = tuple[float, Array, Array]  # value, u_g (g,) and b_g (g,)


_NOTHING: _Parts = (0.0, np.zeros(GROUPS), np.zeros(GROUPS))


def _r2(sums: _GroupSums) -> _Parts:
    """‖c‖²/(s·B) with c = Σwτy, s = Σwτ² and B = Σw‖y‖²."""
    W, B, s = float(sums.weight.sum()), float(sums.yy.sum()), float(sums.tt.sum())
    if s == 0:
        return _NOTHING
    beta = sums.ty.sum(axis=0) / s  # (d,)
    slope = float(beta @ beta)
    r2 = min(slope * s / B, 1.0)
    on_r2 = (2.0 * sums.ty @ beta - slope * sums.tt - r2 * sums.yy) / B  # (g,)
    residual = sums.ty - np.multiply.outer(sums.tt, beta)  # (g, d) Σwτ(y − βτ)
    second = np.einsum("gd,gd->g", residual, residual) / s
    second += slope * sums.t**2 / W - 2.0 * sums.t * (sums.y @ beta) / W
    second += r2 * np.einsum("gd,gd->g", sums.y, sums.y) / W
    return r2, on_r2, second / B - sums.yy / B * on_r2


def _mean_share(sums: _GroupSums) -> _Parts:
    """‖mean‖² / mean of ‖x‖²."""
    W, length = float(sums.weight.sum()), float(sums.mean @ sums.mean)
    along = sums.y @ sums.mean  # (g,) Σw(y·mean)
    mean_square = float(sums.yy.sum()) / W + length
    if mean_square == 0:
        return np.nan, np.zeros(GROUPS), np.zeros(GROUPS)
    share = length / mean_square
    on_square = (sums.yy + 2.0 * along + (length - mean_square) * sums.weight) / W  # (g,)
    on_share = (2.0 * along / W - share * on_square) / mean_square
    second = np.einsum("gd,gd->g", sums.y, sums.y) / W**2 / mean_square
    return share, on_share, second - (sums.weight / W + on_square / mean_square) * on_share


def _estimate(value: float, first: Array, second: Array, sums: _GroupSums, known: bool) -> Estimate:
    """An estimate from its expansion; errors and bias need several groups."""
    if not known or sums.groups < MIN_GROUPS:
        unknown = np.full(GROUPS, np.nan)
        return Estimate(float(value), float("nan"), unknown, sums.groups if known else 0)
    factor = float(jackknife_factor(sums.rows))
    return Estimate(float(value), factor**2 * float(second.sum()), factor * first, sums.groups)
