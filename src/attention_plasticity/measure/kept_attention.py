"""The attention that stays if only some keys of a text are kept, and rank correlations.

Arrays in, arrays out; numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attention_plasticity.estimate.blocks import row_blocks
from attention_plasticity.measure.later_queries import LaterQueries, TextRows
from qk_toolkit.arrays import Array

SHARES = (0.5, 0.25, 0.1)
"""Shares of the keys that are kept."""

_BLOCK = 1 << 21  # pairs of a query and a key at a time
_ROUNDING, _RELATIVE_ROUNDING = 0.1, 2.0**-9  # by which a logit may exceed lse


class Received(NamedTuple):
    """What the keys of one text receive from later queries that are not near."""

    attention: Array  # (n,) sums over queries of weight·A
    queries: Array  # (n,) sums of the weights of the queries that see the key
    best_per_query: Array  # (shares,) attention kept with the best keys of each query


def received_by_keys(
    heads: Sequence[tuple[TextRows, Array]],
    keys: TextRows,
    later: LaterQueries,
    scale: float,
    softcap: float | None = None,
) -> Received | None:
    """The attention that keys receive from queries that are not near.

    `heads` has the queries of each head and the log-sum-exp (m,) of the logits of each query. None
    if a logit exceeds this number by more than rounding: `scale` or `softcap` are wrong.
    """
    n = len(keys.position)
    attention, queries, kept = np.zeros(n), np.zeros(n), np.zeros(len(SHARES))
    for rows, lse in heads:
        allowed = _allowed_excess(rows, keys, lse, scale)
        for block in row_blocks(len(lse), n, _BLOCK):
            seen = later.see(rows.position[block], keys.position)  # (b, n)
            excess = scale * (rows.vectors[block] @ keys.vectors.T)  # (b, n)
            if softcap is not None:
                excess = softcap * np.tanh(excess / softcap)
            excess -= lse[block, None]
            excess[~seen] = -np.inf
            if not excess.max(initial=-np.inf) <= allowed:  # also for NaN
                return None
            A = np.exp(excess, out=excess)  # (b, n)
            w = rows.weight[block]  # (b,)
            attention += w @ A
            queries += w @ seen
            kept += w @ _best_kept(A * keys.weight, np.where(seen, keys.weight, 0.0), A)
    with np.errstate(invalid="ignore"):
        return Received(attention, queries, kept / (attention @ keys.weight))


def _allowed_excess(queries: TextRows, keys: TextRows, lse: Array, scale: float) -> float:
    """How much a logit may exceed `lse` because vectors were rounded, at most to float16."""
    largest = abs(scale)  # of a logit
    for X in (queries.vectors, keys.vectors):
        largest *= float(np.sqrt(np.einsum("nd,nd->n", X, X).max(initial=0.0)))
    return _ROUNDING + _RELATIVE_ROUNDING * max(float(np.abs(lse).max(initial=0.0)), largest)


def _best_kept(amount: Array, size: Array, value: Array) -> Array:
    """(m, shares) sum of `amount` over the keys with the largest `value`, of each row.

    All are (m, n). Keys are kept until their sizes reach a share of the row's total; the last key
    counts in part.
    """
    order = np.argsort(-value, axis=1, kind="stable")
    sizes = np.take_along_axis(size, order, axis=1)
    amounts = np.take_along_axis(amount, order, axis=1)
    ends = np.cumsum(sizes, axis=1)
    found = np.zeros((len(value), len(SHARES)))
    for column, share in enumerate(SHARES):
        wanted = share * ends[:, -1:]  # (m, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            part = np.clip((wanted - (ends - sizes)) / sizes, 0.0, 1.0)
        found[:, column] = np.einsum("mn,mn->m", np.nan_to_num(part), amounts)
    return found


def kept_shares(score: Array, attention: Array, weight: Array) -> Array:
    """(shares,) of the attention (n,) on the keys with the largest scores (n,).

    Keys are kept until their weights (n,) reach a share of the total; the last key counts in part.
    Keys of one score are kept in equal parts. NaN if there is no attention.
    """
    values, code = np.unique(-score, return_inverse=True)
    size, amount = (
        np.bincount(code, one, len(values)).astype(np.float64)
        for one in (weight, weight * attention)
    )
    with np.errstate(invalid="ignore"):
        return np.asarray(_best_kept(amount[None], size[None], -values[None])[0] / amount.sum())


def rank_correlation(first: Array, second: Array, weight: Array) -> float:
    """Spearman's correlation of two values of keys with weights, all (n,). NaN if one is constant.

    The rank of a key is the weight of all keys with smaller values plus half of the weight of keys
    with the same value.
    """
    if any(values.min() == values.max() for values in (first, second)):
        return float("nan")  # centred ranks need not be exactly 0
    share = weight / weight.sum()
    a, b = (_ranks(values, share) for values in (first, second))
    a, b = a - share @ a, b - share @ b
    spread = float(np.sqrt((share @ a**2) * (share @ b**2)))
    return float((share * a) @ b) / spread if spread > 0 else float("nan")


def _ranks(values: Array, weight: Array) -> Array:
    """(n,) weighted ranks."""
    different, code = np.unique(values, return_inverse=True)
    size = np.bincount(code, weight, len(different))
    return np.asarray((np.cumsum(size) - 0.5 * size)[code])
