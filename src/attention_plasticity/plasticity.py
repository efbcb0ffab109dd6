"""Plasticity of one head from arrays, as the seeds define it: Gaussians of query buckets.

Arrays in, arrays out; numpy and scipy only. `AttentionPlasticity` and `sample_key_pairs` are
defined in `measure/`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from attention_plasticity.estimate.blocks import scale_exponent
from attention_plasticity.measure.seed_pairs import (
    KeyIndex,
    PairSampling,
    earlier_cells,
    sample_key_pairs,
)
from attention_plasticity.measure.seed_scores import (
    AttentionPlasticity,
    BucketSums,
    FirstAxis,
    PairChoice,
    QueryModel,
    bucket_gaussians,
    score_buckets,
)
from qk_toolkit.arrays import Array, Vectors

__all__ = ["AttentionPlasticity", "compute_attention_plasticity", "sample_key_pairs"]


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
    query_model: QueryModel = "positional",
    pair_sampling: PairSampling = "bucket",
    max_rel_dist: float = 0.05,
    rng: np.random.Generator | None = None,
) -> AttentionPlasticity:
    """Plasticity of one head from queries and keys in the rotated space.

    A query bucket is compared with all earlier key buckets. Bucket 0 and buckets with one query
    have no result. Plasticity does not depend on the scale of queries or keys.

    Args:
        p_q: (n,) positions, one per query.
        b_q: (n,) buckets, one per query.
        X_q_rot: (n, d) queries in the rotated space.
        alpha_rot: (d,) intercepts of the regression of `X_q_rot` on position.
        beta_rot: (d,) slopes of this regression.
        resid_var: (d,) variances of its residuals.
        p_k: (m,) positions, one per key.
        b_k: (m,) buckets, one per key.
        example_ids_k: (m,) texts, one per key. Both keys of a pair have the same text.
        X_k_rot: (m, d) keys in the rotated space.
        num_pairs_per_bucket: key pairs drawn per key bucket, or all pairs if there are fewer.
        bucket_window_limits: query bucket → lowest key bucket within the window; without it there
            is no window.
        query_model: how a Gaussian describes the queries of a bucket. `positional` takes only the
            first numbers of `alpha_rot`, `beta_rot` and `resid_var`; `full` and `diagonal` take
            none of them.
        pair_sampling: two keys of one bucket (`bucket`), nearby keys (`local`), or any two earlier
            keys of a text (`context`).
        max_rel_dist: of `local` pairs, as in `sample_key_pairs`.
        rng: random generator; the default is `default_rng(0)`.

    Returns:
        `profile` (query buckets,) and `plasticity` (cells,), where a cell is a query bucket and an
            earlier key bucket; `overall`, the mean of the profile weighted by queries.

    Examples:
        >>> import numpy as np
        >>> from attention_plasticity import compute_attention_plasticity
        >>> zeros, ones = np.zeros(2), np.ones(2)
        >>> regression = {"alpha_rot": zeros, "beta_rot": zeros, "resid_var": ones}
        >>> queries = np.array([[1.0, 2.0], [-1.0, -2.0]])  # mean 0: no key is preferred
        >>> q = {"p_q": [4, 5], "b_q": [1, 1], "X_q_rot": queries}
        >>> k = {"p_k": [0, 1], "b_k": [0, 0], "example_ids_k": [7, 7], "X_k_rot": np.eye(2)}
        >>> compute_attention_plasticity(**q, **regression, **k).overall
        1.0
    """
    positions, buckets = np.asarray(p_q, np.float64), np.asarray(b_q, np.int64)
    exponent = scale_exponent(X_q_rot)
    moments = BucketSums.of(positions, buckets, np.ldexp(X_q_rot, -exponent)).moments()
    unit = 2.0**-exponent
    rotated = np.zeros(X_q_rot.shape[1])
    line, variance = (alpha_rot[0] * unit, beta_rot[0] * unit), resid_var[0] * unit * unit
    gaussians = bucket_gaussians(query_model, moments, FirstAxis(rotated, *line, variance))
    keys = KeyIndex(p_k, b_k, example_ids_k)
    eligible = earlier_cells(moments.bucket, keys.buckets)  # (query buckets, key buckets)
    if bucket_window_limits is not None:
        lowest = np.array([bucket_window_limits.get(int(j), 0) for j in moments.bucket])
        eligible &= keys.buckets[None, :] >= lowest[:, None]
    rng = np.random.default_rng(0) if rng is None else rng
    choice = PairChoice(pair_sampling, num_pairs_per_bucket, max_rel_dist, rng)
    vectors = np.ldexp(X_k_rot, -scale_exponent(X_k_rot))
    return score_buckets(moments, gaussians, keys, vectors, eligible, choice)
