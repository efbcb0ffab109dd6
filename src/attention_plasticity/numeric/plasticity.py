"""Plasticity of one head from arrays: the function for notebooks.

Arrays in, arrays out; numpy and scipy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.eligibility import earlier_cells
from attention_plasticity.numeric.key_pairs import KeyIndex, PairSampling
from attention_plasticity.numeric.pair_samples import KeyVectors, PairSample, chosen_pairs
from attention_plasticity.numeric.profile import AttentionPlasticity
from attention_plasticity.numeric.query_model import QueryModel, bucket_gaussians, bucket_moments
from attention_plasticity.numeric.scaling import (
    bucket_maxima,
    column_maxima,
    require_range,
    row_maxima,
)
from attention_plasticity.numeric.scoring import score_pairs

Array = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.floating[Any]]


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
    pair_sampling: PairSampling = "bucket",
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
    gaussians = bucket_gaussians(query_model, moments, alpha_rot, beta_rot, resid_var)
    keys = KeyIndex(p_k, b_k, example_ids_k)
    rng = np.random.default_rng(0) if rng is None else rng
    pairs = chosen_pairs(keys, pair_sampling, num_pairs_per_bucket, max_rel_dist, rng)
    eligible = earlier_cells(moments.bucket, keys.buckets)  # (query buckets, key buckets)
    if bucket_window_limits is not None:
        lowest = np.array([bucket_window_limits.get(int(j), 0) for j in moments.bucket])
        eligible &= keys.buckets[None, :] >= lowest[:, None]
    sample = PairSample(KeyVectors(X_k_rot), pairs, keys.buckets, eligible)
    return score_pairs(QueryModel(moments, gaussians), sample)[0]
