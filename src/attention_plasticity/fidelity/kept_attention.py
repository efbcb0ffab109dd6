"""The attention that stays if only some keys of a text are kept, and rank correlations.

Arrays in, arrays out; numpy only. Keys have weights: a captured key stands for tokens that were not
captured. A key of weight 2 counts as the same key listed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attention_plasticity.estimate.sizes import SINK_TOKENS
from attention_plasticity.fidelity.logits import Logits, allowed_excess
from qk_toolkit.arrays import Array, Bools, Vectors

SHARES = (0.5, 0.25, 0.1)
"""Shares of the keys that are kept."""

_BLOCK = 1 << 21  # pairs of a query and a key at a time


@dataclass(frozen=True)
class QueriesOfText:
    """Queries of one text and one head, for which the attention is counted."""

    vectors: Vectors  # (m, d) after RoPE
    position: Array  # (m,)
    weight: Array  # (m,) tokens that each query stands for
    lse: Array  # (m,) log-sum-exp of the logits over all keys that a query sees


@dataclass(frozen=True)
class ReceivedByKeys:
    """What the keys of one text receive from later queries that are not near."""

    attention: Array  # (n,) sums over queries of weight·A
    queries: Array  # (n,) sums of the weights of the queries that see the key
    best_per_query: Array  # (shares,) attention kept with the best keys of each query
    pairs: int  # of a query and a key that were counted

    @property
    def candidates(self) -> Bools:
        """(n,) keys that a query sees, not near."""
        return self.queries > 0

    def per_query(self) -> Array:
        """(n,) mean attention over the queries that see a key; NaN for other keys."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.attention / self.queries)


def received_by_keys(
    heads: Sequence[QueriesOfText],
    keys: Vectors,
    position: Array,
    weight: Array,
    logits: Logits,
    near: int,
) -> ReceivedByKeys | None:
    """The attention that `keys` (n, d) at `position` (n,) receive from the queries of `heads`.

    Pairs at a distance below `near` and the first four tokens of the text are left out. None if a
    logit exceeds the `lse` of its query: scale and `lse` do not fit.
    """
    n = len(keys)
    K = keys.astype(np.float64)  # (n, d)
    attention, queries = np.zeros(n), np.zeros(n)
    kept, pairs = np.zeros(len(SHARES)), 0
    for head in heads:
        allowed = allowed_excess(head.vectors, keys, head.lse, logits.scale)
        for rows in _blocks(len(head.position), n):
            seen = _seen(head.position[rows], position, logits, near)  # (b, n)
            excess = logits.of(head.vectors[rows].astype(np.float64) @ K.T)  # (b, n)
            excess -= head.lse[rows, None]
            excess[~seen] = -np.inf
            if not excess.max(initial=-np.inf) <= allowed:  # also for NaN
                return None
            A = np.exp(excess, out=excess)  # (b, n)
            w = head.weight[rows]
            attention += w @ A
            queries += w @ seen
            kept += w @ best_kept(A * weight, np.where(seen, weight, 0.0), A)
            pairs += int(np.count_nonzero(seen))
    total = float(attention @ weight)
    with np.errstate(invalid="ignore"):
        return ReceivedByKeys(attention, queries, np.divide(kept, total), pairs)


def _blocks(m: int, n: int) -> Iterator[slice]:
    step = max(1, _BLOCK // max(1, n))
    for start in range(0, m, step):
        yield slice(start, min(m, start + step))


def _seen(query: Array, key: Array, logits: Logits, near: int) -> Bools:
    """(b, n) pairs that are counted."""
    seen = (query[:, None] - key >= near) & (key >= SINK_TOKENS)
    return np.asarray(seen & (query[:, None] < logits.visible.end(key)))


def best_kept(amount: Array, size: Array, value: Array) -> Array:
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
        kept = best_kept(amount[None], size[None], -values[None])[0]
        return np.asarray(np.divide(kept, amount.sum()))


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
