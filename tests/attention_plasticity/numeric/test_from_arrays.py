"""The probability that a key wins, the cells that count, and the means over them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attention_plasticity import (
    analyze_head,
    compute_attention_plasticity,
    fit_multioutput_linear_regressor,
    make_config,
    make_pos_rotation,
    open_dump,
    orientation_from_keys,
)
from attention_plasticity.numeric.eligibility import earlier_cells, windowed_cells
from attention_plasticity.numeric.profile import means_by_fifth, weighted_mean
from attention_plasticity.numeric.query_model import Gaussian, bucket_gaussians, bucket_moments
from attention_plasticity.numeric.scores import (
    margin_and_deviation,
    plasticity_from_margin,
    standardised,
)
from dumps import head_rows, make_dump
from margins import win_probability
from reference import gaussian as reference_gaussian

NAN = math.nan


@pytest.mark.parametrize("factor", [np.zeros(2), np.zeros((2, 2))])
def test_without_variance_the_sign_of_the_margin_decides(factor: np.ndarray) -> None:
    W = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1e-300, 0.0]])
    p = win_probability(W, Gaussian(np.array([2.0, 0.0]), factor))
    assert p.tolist() == [1.0, 0.0, 0.5, 0.5, 1.0]
    z = standardised(*margin_and_deviation(W, Gaussian(np.array([2.0, 0.0]), factor)))
    assert plasticity_from_margin(z).tolist() == [0.0, 0.0, 1.0, 1.0, 0.0]


def test_variance_in_one_direction_leaves_the_other_decided() -> None:
    only_first = Gaussian(np.array([0.0, 3.0]), np.diag([1.0, 0.0]))
    p = win_probability(np.array([[5.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), only_first)
    assert p.tolist() == [0.5, 1.0, 0.0]


def test_plasticity_falls_to_zero_and_never_below() -> None:
    z = np.concatenate([np.linspace(-60, 60, 2401), [np.inf, -np.inf, 1e300, -1e300, 0.0]])
    value = plasticity_from_margin(z)
    assert ((value >= 0) & (value <= 1)).all()
    assert (value[-5:] == [0, 0, 0, 0, 1]).all()
    expected = 4 * stats.norm.cdf(z) * stats.norm.sf(z)
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-300)
    assert plasticity_from_margin(np.array([20.0]))[0] > 0  # 1 - p alone would have rounded to 0


@pytest.mark.parametrize("query_model", ["positional", "full", "diagonal"])
def test_probability_equals_the_share_of_drawn_queries(query_model: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 4)) @ rng.standard_normal((4, 4)) + 1.5
    p, b = np.arange(40.0), np.ones(40, np.int64)
    alpha, beta, variance = np.full(4, 0.3), np.full(4, 0.02), np.full(4, 1.7)
    (model,) = bucket_gaussians(query_model, bucket_moments(p, b, X), alpha, beta, variance)
    mean, covariance = reference_gaussian(query_model, X, 0.3 + 0.02 * p.mean(), 1.7)
    W = rng.standard_normal((25, 4))
    share = (rng.multivariate_normal(mean, covariance, 200_000) @ W.T > 0).mean(axis=0)
    found = win_probability(W, model)
    error = np.sqrt(found * (1 - found) / 200_000) + 1e-6
    assert (np.abs(share - found) < 4.5 * error).all()
    assert np.ptp(found) > 0.3


def test_only_earlier_buckets_are_compared() -> None:
    cells = earlier_cells(np.array([1, 4]), np.array([0, 1, 3, 4, 7]))
    assert cells.tolist() == [
        [True, False, False, False, False],
        [True, True, True, False, False],
    ]


rows_of_a_head = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), min_size=1, max_size=25)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(queries=rows_of_a_head, keys=rows_of_a_head, window=st.integers(1, 70), by=st.booleans())
def test_windows_in_tokens_equal_brute_force(queries, keys, window: int, by: bool) -> None:
    if by:  # buckets as a dump has them; otherwise any assignment at all
        queries, keys = ([(p, p // 10) for p, _ in rows] for rows in (queries, keys))
    (p_q, b_q), (p_k, b_k) = (np.array(rows).T for rows in (queries, keys))
    query_buckets, key_buckets = np.unique(b_q), np.unique(b_k)
    found = windowed_cells(
        query_buckets, key_buckets, window, p_q.astype(float), b_q, p_k.astype(float), b_k
    )
    for row, j in enumerate(query_buckets):
        for column, c in enumerate(key_buckets):
            near = any(
                p - window <= s <= p for p, a in queries if a == j for s, e in keys if e == c
            )
            assert found[row, column] == (c < j and (near or c == j - 1))


def test_window_reaches_exactly_its_tokens() -> None:
    def reached(window: int) -> bool:
        cells = windowed_cells(
            *(np.array([5]), np.array([2]), window),
            *(np.array([100.0, 90.0]), np.array([5, 5])),
            *(np.array([40.0, 20.0]), np.array([2, 2])),
        )
        return bool(cells[0, 0])

    assert reached(50)  # key 40 from query 90
    assert not reached(49)


def test_query_buckets_left_out_of_the_model_open_no_window() -> None:
    cells = windowed_cells(
        *(np.array([6]), np.array([2]), 10),
        *(np.array([30.0, 90.0]), np.array([4, 6])),
        *(np.array([25.0]), np.array([2])),
    )
    assert not cells.any()


def test_weighted_mean_leaves_out_unknown_values() -> None:
    assert weighted_mean(np.array([1.0, NAN, 0.0]), np.array([3, 100, 1])) == 0.75
    assert math.isnan(weighted_mean(np.array([NAN]), np.array([3])))
    assert math.isnan(weighted_mean(np.array([]), np.array([], np.int64)))


def test_fifths_hold_the_buckets_whose_mean_position_lies_in_them() -> None:
    positions = np.array([0.0, 19.9, 20.0, 59.0, 79.9, 80.0, 100.0])
    profile = np.array([1.0, 0.5, 0.4, 0.3, NAN, 0.2, 0.1])
    counts = np.array([1, 3, 9, 9, 9, 1, 3])
    found = means_by_fifth(profile, positions, counts, 100.0)
    np.testing.assert_allclose(found, [0.625, 0.4, 0.3, NAN, 0.125])


def rotated_head(n: int = 300) -> dict[str, np.ndarray]:
    """Head 0 of `make_dump`, as arguments of `compute_attention_plasticity`, already rotated."""
    q, k = head_rows(n=n, seed=[0, 0, True]), head_rows(n=n, seed=[0, 0, False])
    signs = orientation_from_keys(k["bucket"], k["vectors"])
    fit = fit_multioutput_linear_regressor(q["position"], q["vectors"])
    S = np.diag(signs) @ make_pos_rotation(signs * fit.beta)
    X_q, X_k = (rows["vectors"].astype(np.float64) @ S for rows in (q, k))
    fit_rot = fit_multioutput_linear_regressor(q["position"], X_q)
    residuals = X_q - fit_rot.alpha - np.outer(q["position"], fit_rot.beta)
    return {
        "p_q": q["position"],
        "b_q": q["bucket"],
        "X_q_rot": X_q,
        "alpha_rot": fit_rot.alpha,
        "beta_rot": fit_rot.beta,
        "resid_var": (residuals**2).sum(axis=0) / (n - 2),
        "p_k": k["position"],
        "b_k": k["bucket"],
        "example_ids_k": k["example_id"],
        "X_k_rot": X_k,
    }


@pytest.mark.parametrize("pair_sampling", ["bucket", "local"])
@pytest.mark.parametrize("query_model", ["positional", "full", "diagonal"])
def test_arrays_give_what_files_give(tmp_path: Path, query_model: str, pair_sampling: str) -> None:
    how = {"query_model": query_model, "pair_sampling": pair_sampling, "num_pairs_per_bucket": 50}
    make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, n=300)
    found = compute_attention_plasticity(**rotated_head(), rng=np.random.default_rng(0), **how)
    expected = analyze_head(0, 0, 0, open_dump(tmp_path), make_config(**how))
    assert found.q_bucket.tolist() == expected.buckets["q_bucket"]
    assert found.k_bucket.tolist() == expected.buckets["k_bucket"]
    assert found.n_pairs.tolist() == expected.buckets["n_pairs"]
    np.testing.assert_allclose(found.plasticity, expected.buckets["plasticity"], rtol=1e-8)
    assert found.overall == pytest.approx(expected.metrics["ap_overall"], rel=1e-9)


def test_profile_is_the_mean_over_pairs_not_over_cells() -> None:
    found = compute_attention_plasticity(**rotated_head(n=120), num_pairs_per_bucket=40)
    assert len(set(found.n_pairs.tolist())) > 2
    for code, value in enumerate(found.profile):
        mine = (found.q_code == code) & (found.n_pairs > 0)
        expected = np.average(found.plasticity[mine], weights=found.n_pairs[mine])
        assert value == pytest.approx(expected, rel=1e-12)
    expected = np.average(found.profile, weights=found.query_counts)
    assert found.overall == pytest.approx(expected, rel=1e-12)


def test_bucket_window_limits_cut_the_far_key_buckets() -> None:
    head = rotated_head()
    whole = compute_attention_plasticity(**head)
    cut = compute_attention_plasticity(**head, bucket_window_limits={7: 5, 4: 3, 2: 0})
    kept = [
        (j, c)
        for j, c in zip(whole.q_bucket.tolist(), whole.k_bucket.tolist(), strict=True)
        if c >= {7: 5, 4: 3}.get(j, 0)
    ]
    assert list(zip(cut.q_bucket.tolist(), cut.k_bucket.tolist(), strict=True)) == kept
    values = dict(
        zip(zip(whole.q_bucket, whole.k_bucket, strict=True), whole.plasticity, strict=True)
    )
    np.testing.assert_allclose(cut.plasticity, [values[cell] for cell in kept], rtol=1e-9)


def test_attended_pairs_need_more_than_these_arrays() -> None:
    with pytest.raises(ValueError, match="expected bucket, local or context, got 'attended'"):
        compute_attention_plasticity(**rotated_head(), pair_sampling="attended")  # type: ignore[arg-type]


def test_key_bucket_without_a_pair_is_nan_and_takes_no_part() -> None:
    head = rotated_head()
    alone = head["b_k"] == 2
    head["example_ids_k"] = np.where(alone, 1000 + np.arange(len(alone)), head["example_ids_k"])
    found = compute_attention_plasticity(**head)
    empty = found.k_bucket == 2
    assert (found.n_pairs[empty] == 0).all()
    assert np.isnan(found.plasticity[empty]).all()
    assert np.isfinite(found.plasticity[~empty]).all()
    assert np.isfinite(found.profile).all()


def test_pairs_of_a_key_bucket_serve_every_query_bucket() -> None:
    found = compute_attention_plasticity(**rotated_head(), num_pairs_per_bucket=30)
    for c in np.unique(found.k_bucket):
        assert len(set(found.n_pairs[found.k_bucket == c].tolist())) == 1


def test_same_queries_in_two_buckets_have_one_plasticity() -> None:
    head = rotated_head()
    twice = np.r_[head["X_q_rot"], head["X_q_rot"]]
    head |= {"X_q_rot": twice, "p_q": np.zeros(len(twice))}
    head["b_q"] = np.repeat([8, 9], len(twice) // 2)
    found = compute_attention_plasticity(**head, query_model="full", num_pairs_per_bucket=20)
    one, two = (found.plasticity[found.q_bucket == j] for j in (8, 9))
    np.testing.assert_allclose(one, two, rtol=1e-10)  # the very same pairs were scored
