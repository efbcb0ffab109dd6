"""Which of two keys wins: p, 4p(1−p), cells of (query bucket, key bucket), and head means.

Arrays in, arrays out; numpy and scipy only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from attention_plasticity.key_pairs import PAIR_BLOCK, KeyIndex, KeyPairs
from attention_plasticity.query_model import (
    BucketMoments,
    Gaussian,
    bucket_gaussians,
    bucket_moments,
)
from attention_plasticity.scaling import bucket_tops, column_tops, require_range, row_tops
from attention_plasticity.statistics import row_blocks

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Vectors = npt.NDArray[np.floating[Any]]

FIFTHS = 5
_PANELS = 4


@dataclass(frozen=True)
class AttentionPlasticity:
    """Plasticity of a head: a cell per eligible (query bucket, key bucket), and its profile."""

    q_code: Ints  # (cells,) index into the query buckets
    k_code: Ints  # (cells,) index into the key buckets
    plasticity: Array  # (cells,) mean over the cell's pairs; NaN without a pair
    n_pairs: Ints  # (cells,)
    query_buckets: Ints  # (query buckets,)
    query_positions: Array  # (query buckets,) mean position
    query_counts: Ints  # (query buckets,)
    key_buckets: Ints  # (key buckets,)
    profile: Array  # (query buckets,) mean over all pairs of a query bucket; NaN without a pair

    @property
    def q_bucket(self) -> Ints:
        """Query bucket of every cell."""
        return self.query_buckets[self.q_code]

    @property
    def k_bucket(self) -> Ints:
        """Key bucket of every cell."""
        return self.key_buckets[self.k_code]

    @property
    def overall(self) -> float:
        """The head's plasticity: its profile's mean, each bucket weighted by its queries."""
        return weighted_mean(self.profile, self.query_counts)


def key_differences(X_k: Vectors, pairs: KeyPairs) -> Array:
    """`W` (pairs, d): first key less second."""
    W: Array = np.subtract(X_k[pairs.first], X_k[pairs.second], dtype=np.float64)
    return W


def standardised_margin(W: Array, gaussian: Gaussian) -> Array:
    """`z = m/√v` of `w·q` for every row w of `W` (pairs, d); ±∞ or 0 where v is zero."""
    margin = W @ gaussian.mean  # (pairs,)
    deviation = np.sqrt(_variance(W, gaussian.factor))
    with np.errstate(divide="ignore", invalid="ignore"):
        z: Array = margin / deviation
    z[(deviation == 0) & (margin == 0)] = 0.0
    return z


def _variance(W: Array, factor: Array) -> Array:
    """`‖Lᵀw‖²` per row of `W`, leaving out the half of L that is zero, panel by panel."""
    variance = np.zeros(len(W))
    if factor.ndim == 1:
        spread = W * factor  # (pairs, d)
        return np.einsum("pd,pd->p", spread, spread, out=variance)
    d = len(factor)
    panel = -(-d // _PANELS)
    for start in range(0, d, panel):
        spread = W[:, start:] @ factor[start:, start : start + panel]  # (pairs, panel)
        variance += np.einsum("pd,pd->p", spread, spread)
    return variance


def preference_probability(W: Array, gaussian: Gaussian) -> Array:
    """P(first key wins) for every key difference in `W` (pairs, d)."""
    p: Array = ndtr(standardised_margin(W, gaussian))
    return p


def plasticity_from_margin(z: Array) -> Array:
    """4p(1−p) from the tail, which falls to 0 for large |z| and is never negative."""
    tail = ndtr(-np.abs(z))
    value: Array = 4.0 * tail * (1.0 - tail)
    return value


def earlier_cells(query_buckets: Ints, key_buckets: Ints) -> Bools:
    """(query buckets, key buckets): True where the keys come before the queries."""
    earlier: Bools = key_buckets[None, :] < query_buckets[:, None]
    return earlier


def windowed_cells(
    query_buckets: Ints,
    key_buckets: Ints,
    window: int,
    p_q: Array,
    b_q: Ints,
    p_k: Array,
    b_k: Ints,
) -> Bools:
    """Earlier cells within a sliding window of so many tokens.

    Some key of the bucket must lie in [p − window, p] for some query position p of the query
    bucket; the immediately previous bucket always counts.
    """
    rows = (p_q, b_q, p_k, b_k)
    earlier = earlier_cells(query_buckets, key_buckets)
    first_query = _extremes(np.minimum, p_q, b_q, query_buckets)  # (query buckets,)
    last_key = _extremes(np.maximum, p_k, b_k, key_buckets)  # (key buckets,)
    gap = first_query[:, None] - last_key[None, :]  # tokens between the closest two
    near: Bools = (gap >= 0) & (gap <= window)
    overlapping = earlier & (gap < 0)
    if overlapping.any():
        near = np.where(overlapping, _reached(window, query_buckets, key_buckets, rows), near)
    near |= key_buckets[None, :] == query_buckets[:, None] - 1
    return earlier & near


def _extremes(pick: np.ufunc, p: Array, b: Ints, buckets: Ints) -> Array:
    """Lowest (or highest) position of each bucket."""
    inside = np.isin(b, buckets)
    code = np.searchsorted(buckets, b[inside])
    found = np.full(len(buckets), np.inf if pick is np.minimum else -np.inf)
    pick.at(found, code, p[inside])
    return found


def _reached(
    window: int, query_buckets: Ints, key_buckets: Ints, rows: tuple[Array, Ints, Array, Ints]
) -> Bools:
    """(query buckets, key buckets): True where a key lies in [p − window, p] for some query at p.

    Works for buckets that overlap in position, a key bucket at a time with all queries at once.
    """
    p_q, b_q, p_k, b_k = rows
    inside = np.isin(b_q, query_buckets)
    order = np.argsort(b_q[inside], kind="stable")
    queries = p_q[inside][order]  # (n,) by bucket
    starts = np.searchsorted(b_q[inside][order], query_buckets)
    by_bucket = np.lexsort((p_k, b_k))
    bounds = np.searchsorted(b_k[by_bucket], [key_buckets, key_buckets + 1])
    reached = np.zeros((len(query_buckets), len(key_buckets)), np.bool_)
    for column, (begin, end) in enumerate(bounds.T):
        keys = p_k[by_bucket[begin:end]]  # ascending
        last = np.searchsorted(keys, queries, side="right") - 1  # the nearest key not after p
        within = (last >= 0) & (keys[np.maximum(last, 0)] >= queries - window)  # (n,)
        reached[:, column] = np.logical_or.reduceat(within, starts)
    return reached


def score_pairs(
    differences: Callable[[KeyPairs], Array],
    pairs: KeyPairs,
    key_buckets: Ints,
    moments: BucketMoments,
    gaussians: list[Gaussian],
    eligible: Bools,
) -> AttentionPlasticity:
    """Score the pairs under each query bucket's Gaussian.

    `differences` gives the rotated key differences W (pairs, d) of some pairs; it is asked for a
    block of them at a time. A pair serves a query bucket when the buckets of both its keys are
    eligible; it counts in the cell of its owner.
    """
    sums, counts = np.zeros(eligible.shape), np.zeros(eligible.shape, np.int64)
    for rows in row_blocks(len(pairs), moments.mean.shape[1], PAIR_BLOCK):
        block = pairs.part(rows)
        _add_scores(differences(block), block, gaussians, eligible, sums, counts)
    q_code, k_code = np.nonzero(eligible)
    with np.errstate(invalid="ignore"):
        cells = sums / counts
        profile = sums.sum(axis=1) / counts.sum(axis=1)
    return AttentionPlasticity(
        q_code=q_code,
        k_code=k_code,
        plasticity=cells[q_code, k_code],
        n_pairs=counts[q_code, k_code],
        query_buckets=moments.bucket,
        query_positions=moments.position,
        query_counts=moments.count,
        key_buckets=key_buckets,
        profile=profile,
    )


def _add_scores(
    W: Array,
    pairs: KeyPairs,
    gaussians: list[Gaussian],
    eligible: Bools,
    sums: Array,
    counts: Ints,
) -> None:
    """Add the scores of the pairs with differences `W` (pairs, d) to the cells' sums and counts."""
    for code, gaussian in enumerate(gaussians):
        serving = np.flatnonzero(eligible[code, pairs.owner] & eligible[code, pairs.other])
        if len(serving) == 0:
            continue
        begin, end = serving[0], serving[-1] + 1
        rows = slice(begin, end) if end - begin == len(serving) else serving
        values = plasticity_from_margin(standardised_margin(W[rows], gaussian))
        sums[code] += np.bincount(pairs.owner[rows], values, minlength=eligible.shape[1])
        counts[code] += np.bincount(pairs.owner[rows], minlength=eligible.shape[1])


def weighted_mean(values: Array, weights: npt.NDArray[Any]) -> float:
    """Mean of the values that are not NaN, weighted; NaN when there is none."""
    known = ~np.isnan(values)
    total = float(weights[known].sum())
    return float(values[known] @ weights[known]) / total if total > 0 else float("nan")


def means_by_fifth(profile: Array, positions: Array, counts: Ints, context: float) -> Array:
    """(5,) means of the profile over the buckets of each fifth of `[0, context]`, by queries."""
    if context > 0:
        fifth = np.minimum((FIFTHS * positions / context).astype(np.int64), FIFTHS - 1)
    else:
        fifth = np.zeros(len(positions), np.int64)
    return np.array([weighted_mean(profile[fifth == i], counts[fifth == i]) for i in range(FIFTHS)])


def compute_attention_plasticity(
    p_q: npt.ArrayLike,
    b_q: npt.ArrayLike,
    X_q_rot: Vectors,
    alpha_rot: Array,
    beta_rot: Array,
    resid_var: Array,
    p_k: npt.ArrayLike,
    b_k: npt.ArrayLike,
    example_ids_k: npt.ArrayLike,
    X_k_rot: Vectors,
    num_pairs_per_bucket: int = 256,
    bucket_window_limits: Mapping[int, int] | None = None,
    *,
    query_model: Literal["positional", "full", "diagonal"] = "positional",
    pair_sampling: Literal["bucket", "local"] = "bucket",
    max_rel_dist: float = 0.05,
    rng: np.random.Generator | None = None,
) -> AttentionPlasticity:
    """Plasticity of one head from queries and keys already in the rotated space.

    `bucket_window_limits` gives, per query bucket, the lowest key bucket within the window. A
    `ValueError` for vectors out of 2^-200 to 2^127, whose powers float64 does not hold; plasticity
    does not depend on the scale of queries or keys.
    """
    positions, buckets = np.asarray(p_q, np.float64), np.asarray(b_q, np.int64)
    require_range("X_q_rot", np.r_[column_tops(X_q_rot), bucket_tops(X_q_rot, buckets)])
    require_range("X_k_rot", row_tops(X_k_rot))
    moments = bucket_moments(positions, buckets, X_q_rot)
    keys = KeyIndex(p_k, b_k, example_ids_k)
    rng = np.random.default_rng(0) if rng is None else rng
    pairs = keys.draw(pair_sampling, num_pairs_per_bucket, max_rel_dist, rng)
    eligible = earlier_cells(moments.bucket, keys.buckets)
    if bucket_window_limits is not None:
        lowest = np.array([bucket_window_limits.get(int(j), 0) for j in moments.bucket])
        eligible &= keys.buckets[None, :] >= lowest[:, None]
    gaussians = bucket_gaussians(query_model, moments, alpha_rot, beta_rot, resid_var)
    return score_pairs(
        partial(key_differences, X_k_rot), pairs, keys.buckets, moments, gaussians, eligible
    )
