"""What holds of every probability and every plasticity, whatever the numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import ndtr

from attention_plasticity import compute_attention_plasticity
from attention_plasticity.estimate.score import plasticity_of
from attention_plasticity.measure.seed_scores import Gaussians

law = settings(deadline=None, max_examples=100, derandomize=True)
numbers = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, -1.0, 1e-150, 1e30])


def gaussians(d):
    factor = arrays(float, (d, d), elements=numbers).map(np.tril)
    diagonal = arrays(float, d, elements=numbers).map(np.diag)
    factors = (factor | diagonal).map(lambda one: one[None])
    return st.builds(Gaussians, arrays(float, (1, d), elements=numbers), factors)


@law
@given(W=arrays(float, (5, 3), elements=numbers), gaussian=gaussians(3))
def test_one_of_two_keys_wins_and_their_order_changes_no_plasticity(W, gaussian):
    scores = [gaussian.standardised(side) for side in (W, -W)]
    np.testing.assert_allclose(ndtr(scores[0]) + ndtr(scores[1]), 1.0, atol=1e-15)
    forward, backward = map(plasticity_of, scores)
    assert (forward == backward).all()
    assert ((forward >= 0) & (forward <= 1)).all()


@law
@given(
    W=arrays(float, (5, 3), elements=st.floats(-10, 10)),
    gaussian=gaussians(3),
    exponent=st.integers(0, 40),
)
def test_probability_depends_on_the_direction_of_the_difference_alone(W, gaussian, exponent):
    W = np.where(np.abs(W) < 1e-3, 0.0, W)  # so that no square underflows
    one, longer = (ndtr(gaussian.standardised(factor * W)) for factor in (1.0, 2.0**exponent))
    np.testing.assert_allclose(one, longer, atol=1e-15)


@pytest.mark.parametrize("query_model", ["positional", "full", "diagonal"])
@pytest.mark.parametrize("pair_sampling", ["bucket", "local", "context"])
@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(3, 60),
    d=st.integers(1, 6),
    decimals=st.sampled_from([0, 1, 9]),
    spread=st.sampled_from([1e-9, 1.0, 1e9]),
    offset=st.sampled_from([0.0, 1.0, 1e6]),
)
def test_every_plasticity_lies_between_zero_and_one(
    query_model, pair_sampling, seed, n, d, decimals, spread, offset
):
    rng = np.random.default_rng(seed)
    X = np.round(rng.standard_normal((2 * n, d)), decimals) * spread + offset
    p = rng.integers(0, 40, 2 * n)
    found = compute_attention_plasticity(
        *(p[:n], p[:n] // 10, X[:n], X[0], X[1], np.abs(X[2])),
        *(p[n:], p[n:] // 10, rng.integers(0, 2, n), X[n:]),
        num_pairs_per_bucket=10,
        query_model=query_model,
        pair_sampling=pair_sampling,
    )
    empty = found.n_pairs == 0
    assert np.isnan(found.plasticity[empty]).all()
    assert ((found.plasticity[~empty] >= 0) & (found.plasticity[~empty] <= 1)).all()
    known = found.profile[~np.isnan(found.profile)]
    assert ((known >= 0) & (known <= 1)).all()
    if len(known):
        assert known.min() - 1e-12 <= found.overall <= known.max() + 1e-12
