"""Plasticity 4p(1−p) of key pairs, cells of (query bucket, key bucket), and head means.

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
from attention_plasticity.scaling import bucket_maxima, column_maxima, require_range, row_maxima
from attention_plasticity.statistics import row_blocks

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Vectors = npt.NDArray[np.floating[Any]]

FIFTHS = 5
_PANELS = 4


@dataclass(frozen=True)
class AttentionPlasticity:
    """Plasticity of a head per eligible (query bucket, key bucket), and per query bucket."""

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
        """Mean of the profile, weighted by the number of queries per bucket."""
        return weighted_mean(self.profile, self.query_counts)


def key_differences(X_k: Vectors, pairs: KeyPairs) -> Array:
    """`W` (pairs, d): first key minus second key."""
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
    """`‖Lᵀw‖²` per row of `W`. Column panels of L skip most of its zero half."""
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


def plasticity_from_margin(z: Array) -> Array:
    """4p(1−p), computed from the tail probability: accurate for large |z|, never negative."""
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
    """Earlier cells within a sliding window of `window` tokens.

    A cell is eligible if its query bucket has a query at a position p, and its key bucket has a key
    in [p − window, p]. The cell of the previous bucket is always eligible.
    """
    rows = (p_q, b_q, p_k, b_k)
    earlier = earlier_cells(query_buckets, key_buckets)
    first_query = _extremes(np.minimum, p_q, b_q, query_buckets)  # (query buckets,)
    last_key = _extremes(np.maximum, p_k, b_k, key_buckets)  # (key buckets,)
    gap = first_query[:, None] - last_key[None, :]  # tokens between the closest query and key
    near: Bools = (gap >= 0) & (gap <= window)
    overlapping = earlier & (gap < 0)
    if overlapping.any():
        visible = _visible_cells(window, query_buckets, key_buckets, rows)
        near = np.where(overlapping, visible, near)
    near |= key_buckets[None, :] == query_buckets[:, None] - 1
    return earlier & near


def _extremes(extremum: np.ufunc, p: Array, b: Ints, buckets: Ints) -> Array:
    """Lowest or highest position of each bucket."""
    inside = np.isin(b, buckets)
    code = np.searchsorted(buckets, b[inside])
    extremes = np.full(len(buckets), np.inf if extremum is np.minimum else -np.inf)
    extremum.at(extremes, code, p[inside])
    return extremes


def _visible_cells(
    window: int, query_buckets: Ints, key_buckets: Ints, rows: tuple[Array, Ints, Array, Ints]
) -> Bools:
    """(query buckets, key buckets): True if a key is in [p − window, p] of a query at p.

    Buckets may overlap in position.
    """
    p_q, b_q, p_k, b_k = rows
    inside = np.isin(b_q, query_buckets)
    order = np.argsort(b_q[inside], kind="stable")
    queries = p_q[inside][order]  # (n,) sorted by bucket
    starts = np.searchsorted(b_q[inside][order], query_buckets)
    by_bucket = np.lexsort((p_k, b_k))
    bounds = np.searchsorted(b_k[by_bucket], [key_buckets, key_buckets + 1])
    visible = np.zeros((len(query_buckets), len(key_buckets)), np.bool_)
    for column, (begin, end) in enumerate(bounds.T):
        keys = p_k[by_bucket[begin:end]]  # ascending
        last = np.searchsorted(keys, queries, side="right") - 1  # the last key at or before p
        within = (last >= 0) & (keys[np.maximum(last, 0)] >= queries - window)  # (n,)
        visible[:, column] = np.logical_or.reduceat(within, starts)
    return visible


def score_pairs(
    differences: Callable[[KeyPairs], Array],
    pairs: KeyPairs,
    key_buckets: Ints,
    moments: BucketMoments,
    gaussians: list[Gaussian],
    eligible: Bools,
) -> AttentionPlasticity:
    """Score the pairs under each query bucket's Gaussian.

    `differences` returns the rotated key differences W (pairs, d) of a block of pairs. A pair is
    used for a query bucket if the buckets of both keys are eligible. It is counted in the cell of
    its owner.
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
    """Add the scores of the pairs with differences `W` (pairs, d) to `sums` and `counts`."""
    for code, gaussian in enumerate(gaussians):
        used = np.flatnonzero(eligible[code, pairs.owner] & eligible[code, pairs.other])
        if len(used) == 0:
            continue
        begin, end = used[0], used[-1] + 1
        rows = slice(begin, end) if end - begin == len(used) else used
        values = plasticity_from_margin(standardised_margin(W[rows], gaussian))
        sums[code] += np.bincount(pairs.owner[rows], values, minlength=eligible.shape[1])
        counts[code] += np.bincount(pairs.owner[rows], minlength=eligible.shape[1])


def weighted_mean(values: Array, weights: npt.NDArray[Any]) -> float:
    """Weighted mean of the values that are not NaN; NaN if there is no such value."""
    valid = ~np.isnan(values)
    total = float(weights[valid].sum())
    return float(values[valid] @ weights[valid]) / total if total > 0 else float("nan")


def means_by_fifth(profile: Array, positions: Array, counts: Ints, context: float) -> Array:
    """(5,) means of the profile over each fifth of `[0, context]`, weighted by queries."""
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
    """Plasticity of one head from queries and keys in the rotated space.

    `bucket_window_limits` is the lowest key bucket within the window, per query bucket. Raises a
    `ValueError` for vectors out of the range 2^-200 to 2^127. Plasticity does not depend on the
    scale of queries or keys.
    """
    positions, buckets = np.asarray(p_q, np.float64), np.asarray(b_q, np.int64)
    require_range("X_q_rot", np.r_[column_maxima(X_q_rot), bucket_maxima(X_q_rot, buckets)])
    require_range("X_k_rot", row_maxima(X_k_rot))
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
