"""No value of a head depends on the scale of its vectors, at any scale that float64 holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attention_plasticity import (
    HeadError,
    analyze_head,
    compute_attention_plasticity,
    compute_first_component_residual_stats,
    compute_noise_normality_stats,
    compute_scalar_position_predictability,
    fit_multioutput_linear_regressor,
    make_config,
    make_pos_rotation,
    open_dump,
    orientation_from_keys,
)
from attention_plasticity.head.result import HeadResult
from attention_plasticity.metrics import HEAD_NUMBERS
from dumps import head_rows
from reference import write_rows

MODELS = ("positional", "full", "diagonal")
SCALE_FREE = tuple(name for name in HEAD_NUMBERS if name != "q_beta_norm")
law = settings(deadline=None, max_examples=6, derandomize=True)
exponents = st.integers(-300, 300)

Rows = dict[str, Any]


def random_head(seed: int = 0) -> tuple[Rows, Rows]:
    """Queries and keys in float64."""
    heads = [head_rows(n=120, d=5, examples=6, seed=[seed, kind]) for kind in (0, 1)]
    for rows in heads:
        rows["vectors"] = rows["vectors"].astype(np.float64)
    return heads[0], heads[1]


def scaled(rows: Rows, by: Any) -> Rows:
    return {**rows, "vectors": rows["vectors"] * by}


def analyze(folder: Path, q: Rows, k: Rows, **config: Any) -> HeadResult:
    write_rows(folder, "l00h00q", **q)
    write_rows(folder, "l00h00k", **k)
    return analyze_head(0, 0, 0, open_dump(folder), make_config(**config))


def assert_alike(found: HeadResult, expected: HeadResult, q_scale: float) -> None:
    for name in SCALE_FREE:
        assert_close(name, found.metrics[name], expected.metrics[name])
    norm = expected.metrics["q_beta_norm"] * q_scale
    np.testing.assert_allclose(found.metrics["q_beta_norm"], norm, rtol=1e-9)
    for one, two in ((found.buckets, expected.buckets), (found.components, expected.components)):
        for name in one:
            assert_close(name, one[name], two[name])


def assert_close(name: str, found: Any, expected: Any) -> None:
    """Standard errors, bias and counts are computed from float32 products."""
    from_products = (
        "counted" in name or "gap" in name or name.endswith(("_se", "_bias", "_corrected"))
    )
    tolerance = 1e-6 if from_products else 1e-9
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("query_model", MODELS)
@law
@given(q=exponents, k=exponents, seed=st.integers(0, 10**6))
def test_any_scale_gives_the_same_numbers(
    tmp_path_factory: pytest.TempPathFactory, query_model: str, q: int, k: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("dump")
    queries, keys = random_head(seed)
    before = analyze(folder, queries, keys, query_model=query_model)
    larger = scaled(queries, 10.0**q), scaled(keys, 10.0**k)
    assert_alike(analyze(folder, *larger, query_model=query_model), before, 10.0**q)


@pytest.mark.parametrize("query_model", MODELS)
def test_a_power_of_two_changes_no_bit(tmp_path: Path, query_model: str) -> None:
    q, k = random_head(1)
    before = analyze(tmp_path, q, k, query_model=query_model)
    exponents = (-1000, -100, -1, 60, 1000)
    for x, y in [pair for e in exponents for pair in ((e, 0), (0, e), (e, e))]:
        heads = scaled(q, 2.0**x), scaled(k, 2.0**y)
        after = analyze(tmp_path, *heads, query_model=query_model)
        np.testing.assert_equal(after.buckets, before.buckets)
        np.testing.assert_equal(after.components, before.components)
        np.testing.assert_equal(after.influences, before.influences)
        for name in SCALE_FREE:
            np.testing.assert_equal(after.metrics[name], before.metrics[name], name)


@pytest.mark.parametrize("query_model", MODELS)
def test_the_scale_of_the_keys_of_one_text_changes_nothing(
    tmp_path: Path, query_model: str
) -> None:
    """Both keys of a pair are of one text, and plasticity does not depend on their scale."""
    q, k = random_head(1)
    before = analyze(tmp_path, q, k, query_model=query_model)
    for exponent in (-60, -160, 40):
        by = np.where(k["example_id"] == 2, 2.0**exponent, 1.0)[:, None]
        after = analyze(tmp_path, q, scaled(k, by), query_model=query_model)
        assert_alike(after, before, 1.0)


def test_the_largest_and_the_smallest_numbers_there_are_are_analysed(tmp_path: Path) -> None:
    q, k = random_head(2)
    before = analyze(tmp_path, q, k)
    largest = np.finfo(np.float64).max / 64
    peaks = [np.abs(rows["vectors"]).max() for rows in (q, k)]
    huge = analyze(tmp_path, *(scaled(r, largest / p) for r, p in zip((q, k), peaks, strict=True)))
    assert_alike(huge, before, largest / peaks[0])
    # below 2.2e-308 digits are lost: what is left of them decides, not an underflow
    tiny = analyze(tmp_path, scaled(q, 1e-315), scaled(k, 1e-315))
    assert tiny.metrics["ap_overall"] == pytest.approx(before.metrics["ap_overall"], abs=1e-3)


@pytest.mark.parametrize(
    ("side", "spoil"),
    [
        ("q", lambda rows: scaled(rows, [1.0, 1.0, 1e-200, 1.0, 1.0])),
        ("q", lambda rows: scaled(rows, np.where(rows["bucket"] == 3, 1e-200, 1.0)[:, None])),
        ("k", lambda rows: scaled(rows, np.where(rows["bucket"] == 3, 1e-200, 1.0)[:, None])),
        ("q", lambda rows: scaled(rows, [1e300, 1.0, 1.0, 1.0, 1.0])),
    ],
)
def test_scales_too_far_apart_are_refused(tmp_path: Path, side: str, spoil: Any) -> None:
    q, k = random_head(3)
    heads = (spoil(q), k) if side == "q" else (q, spoil(k))
    with pytest.raises(HeadError, match=rf"l00h00{side}: values differ by more than a factor of"):
        analyze(tmp_path, *heads)


def test_zeros_and_single_small_numbers_are_no_scale(tmp_path: Path) -> None:
    q, k = random_head(4)
    before = analyze(tmp_path, q, k)
    for rows in (q, k):
        rows["vectors"][7, 2] = 1e-300  # one number among many, beside zeros
        rows["vectors"][7, 3] = 0.0
    after = analyze(tmp_path, q, k)
    assert after.metrics["ap_overall"] == pytest.approx(before.metrics["ap_overall"], abs=0.05)
    q["vectors"][:, 1] = 0.0
    k["vectors"][5] = 0.0
    assert analyze(tmp_path, q, k).components["r2"][1] == 0.0


@pytest.mark.parametrize("value", [1e300, 2.0**53 + 2, 1e-300])
def test_positions_that_count_no_tokens_are_refused(tmp_path: Path, value: float) -> None:
    q, k = random_head(5)
    q["position"] = q["position"].astype(np.float64)
    q["position"][17] = value
    with pytest.raises(Exception, match="row 17: position is too "):
        analyze(tmp_path, q, k)


# functions that are called with arrays


def arrays(by: float, at: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries and positions at a scale, and the queries' slope at scale 1."""
    q, _ = random_head(6)
    X, t = q["vectors"], q["position"].astype(np.float64)
    return X * by, t * at, fit_multioutput_linear_regressor(t, X).beta


@law
@given(x=exponents, t=exponents)
def test_a_regression_holds_at_any_scale(x: int, t: int) -> None:
    assume(abs(x - t) < 300)  # beyond, the slope itself is out of range
    X, position, _ = arrays(10.0**x, 10.0**t)
    expected = fit_multioutput_linear_regressor(*arrays(1.0)[1::-1])
    found = fit_multioutput_linear_regressor(position, X)
    np.testing.assert_allclose(found.r2, expected.r2, rtol=1e-9)
    assert found.r2_mean == pytest.approx(expected.r2_mean, rel=1e-9)
    np.testing.assert_allclose(found.alpha / 10.0**x, expected.alpha, rtol=1e-7)
    np.testing.assert_allclose(found.beta / 10.0 ** (x - t), expected.beta, rtol=1e-7)


@pytest.mark.parametrize("by", [1e-300, 1e-200, 1e-80, 1e80, 1e200, 1e300])
def test_other_functions_hold_at_any_scale_or_say_that_they_do_not(by: float) -> None:
    X, t, beta = arrays(by)
    at_one = arrays(1.0)[0]
    np.testing.assert_allclose(make_pos_rotation(beta * by), make_pos_rotation(beta), atol=1e-14)
    np.testing.assert_allclose(
        compute_scalar_position_predictability(t, X, beta * by),
        compute_scalar_position_predictability(t, at_one, beta),
        rtol=1e-9,
    )
    bucket = (t // 128).astype(np.int64)
    np.testing.assert_array_equal(
        orientation_from_keys(bucket, X), orientation_from_keys(bucket, at_one)
    )
    residuals = X - X.mean(axis=0)
    none = np.zeros(5)
    for call in (
        lambda: compute_first_component_residual_stats(residuals, np.ones(5)),
        lambda: compute_noise_normality_stats(residuals, np.ones(5)),
        lambda: compute_attention_plasticity(
            *(t, bucket, X, none, none, none, t, bucket, np.zeros(len(t), int), at_one)
        ),
        lambda: compute_attention_plasticity(
            *(t, bucket, at_one, none, none, none, t, bucket, np.zeros(len(t), int), X)
        ),
    ):
        with pytest.raises(ValueError, match=r"multiply .* by 2\*\*"):
            call()
