"""Changes of the input that must not change the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

from attention_plasticity import analyze_head, compute_attention_plasticity, make_config, open_dump
from attention_plasticity.head.result import HeadResult
from attention_plasticity.metrics import HEAD_NUMBERS
from dumps import head_rows
from reference import write_rows

MODELS = ("positional", "full", "diagonal")
law = settings(deadline=None, max_examples=6, derandomize=True)
seeds = st.integers(0, 10**6)
ALL_PAIRS = 10**6
IN_ANY_BASIS = (
    *("q_R2_scalar", "q_mae_proj", "q_mae_ratio", "q_beta_norm", "q_R2_total"),
    *("q_resid0_skew", "q_resid0_kurt", "q_resid0_ks_p"),
    *("ap_overall", "ap_first20", "ap_last20", "ap_drop"),
    *HEAD_NUMBERS[HEAD_NUMBERS.index("ap_overall_se") :],
)
COUNTED = ("ap_counted", "ap_counted_se", "ap_gaussian_gap", "ap_gaussian_gap_se")
FROM_TEXTS = (*(name for name in HEAD_NUMBERS if name.endswith("_se")), "n_text_groups")

Rows = dict[str, Any]


def random_head(seed: int, dtype: type = np.float64, **shape: Any) -> tuple[Rows, Rows]:
    shape = {"n": 120, "d": 5, "examples": 6, **shape}
    q, k = (head_rows(**shape, seed=[seed, kind]) for kind in (0, 1))
    rng = np.random.default_rng(seed)
    for rows in (q, k):
        mix = np.eye(rows["vectors"].shape[1]) + 0.3 * rng.standard_normal(rows["vectors"].shape[1])
        rows["vectors"] = (rows["vectors"].astype(np.float64) @ mix).astype(dtype)
    return q, k


def analyze(folder: Path, q: Rows, k: Rows, **config: Any) -> HeadResult:
    write_rows(folder, "l00h00q", **q)
    write_rows(folder, "l00h00k", **k)
    return analyze_head(0, 0, 0, open_dump(folder), make_config(**config))


def with_vectors(rows: Rows, vectors: np.ndarray) -> Rows:
    return {**rows, "vectors": vectors}


def assert_same(one: HeadResult, two: HeadResult, rtol: float, metrics=HEAD_NUMBERS) -> None:
    for name in metrics:
        assert_close(name, one.metrics[name], two.metrics[name], rtol)
    for name in one.buckets:
        if name != "plasticity_counted" or "ap_counted" in metrics:
            assert_close(name, one.buckets[name], two.buckets[name], rtol)


def assert_close(name: str, found: Any, expected: Any, tolerance: float) -> None:
    """Standard errors, bias and counts are computed from float32 products."""
    rtol, atol = tolerance, max(tolerance, 1e-6) if "ks_p" in name else tolerance
    if name in COUNTED or name.endswith(("_se", "_bias", "_counted", "_corrected")):
        rtol, atol = max(tolerance, 1e-5), max(tolerance, 1e-6)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=name)


SCALE_FREE = tuple(name for name in HEAD_NUMBERS if name != "q_beta_norm")


@pytest.mark.parametrize("side", ["queries", "keys"])
@pytest.mark.parametrize("query_model", MODELS)
def test_scaling_by_a_power_of_two_changes_no_bit(
    tmp_path: Path, query_model: str, side: str
) -> None:
    q, k = random_head(0, np.float32)
    before = analyze(tmp_path, q, k, query_model=query_model)
    for exponent in (-60, -30, -1, 7, 60):
        rows = q if side == "queries" else k
        scaled = with_vectors(rows, rows["vectors"] * np.float32(2.0**exponent))
        heads = (scaled, k) if side == "queries" else (q, scaled)
        after = analyze(tmp_path, *heads, query_model=query_model)
        np.testing.assert_equal(after.buckets, before.buckets)
        np.testing.assert_equal(after.components, before.components)
        np.testing.assert_equal(after.influences, before.influences)
        for name in SCALE_FREE:
            np.testing.assert_equal(after.metrics[name], before.metrics[name], name)


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(np.float64, 1e-9), (np.float32, 1e-5)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("query_model", MODELS)
def test_scaling_queries_or_keys_changes_nothing(
    tmp_path: Path, query_model: str, dtype: type, rtol: float
) -> None:
    q, k = random_head(3, dtype)
    before = analyze(tmp_path, q, k, query_model=query_model)
    scales = (1e-30, 1e9, 1e30)
    for q_scale, k_scale in [pair for s in scales for pair in ((s, 1.0), (1.0, s), (s, s))]:
        larger = [
            with_vectors(rows, (rows["vectors"].astype(np.float64) * by).astype(dtype))
            for rows, by in ((q, q_scale), (k, k_scale))
        ]
        after = analyze(tmp_path, *larger, query_model=query_model)
        assert_same(after, before, rtol, SCALE_FREE)
        np.testing.assert_allclose(after.components["weight"], before.components["weight"], rtol)


@pytest.mark.parametrize("query_model", ["positional", "full"])
@law
@given(seed=seeds)
def test_rotating_queries_and_keys_together_changes_no_plasticity(
    tmp_path_factory: pytest.TempPathFactory, query_model: str, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("dump")
    q, k = random_head(seed)
    O = ortho_group.rvs(5, random_state=np.random.default_rng(seed))  # noqa: E741
    turned = [with_vectors(rows, rows["vectors"] @ O) for rows in (q, k)]
    before = analyze(folder, q, k, query_model=query_model)
    after = analyze(folder, *turned, query_model=query_model)
    assert_same(after, before, 1e-7, IN_ANY_BASIS)


@law
@given(seed=seeds)
def test_full_plasticity_of_arrays_is_free_of_the_basis(seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, k = random_head(seed)
    O = ortho_group.rvs(5, random_state=rng) * rng.choice([-1, 1], 5)  # noqa: E741
    none = np.zeros(5)
    one, two = (
        compute_attention_plasticity(
            *(q["position"], q["bucket"], q["vectors"] @ basis, none, none, none),
            *(k["position"], k["bucket"], k["example_id"], k["vectors"] @ basis),
            query_model="full",
        )
        for basis in (np.eye(5), O)
    )
    np.testing.assert_allclose(one.plasticity, two.plasticity, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("query_model", MODELS)
@law
@given(seed=seeds)
def test_flipping_the_sign_of_dimensions_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, query_model: str, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("dump")
    q, k = random_head(seed)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], 5)
    flipped = [with_vectors(rows, rows["vectors"] * signs) for rows in (q, k)]
    before = analyze(folder, q, k, query_model=query_model)
    after = analyze(folder, *flipped, query_model=query_model)
    assert_same(after, before, 1e-9)  # orientation undoes the flips
    np.testing.assert_allclose(after.components["r2"], before.components["r2"], rtol=1e-9)


@pytest.mark.parametrize("query_model", ["positional", "full"])
@law
@given(seed=seeds, size=st.sampled_from([1.0, 1e3]))
def test_moving_all_keys_changes_no_plasticity(
    tmp_path_factory: pytest.TempPathFactory, query_model: str, seed: int, size: float
) -> None:
    folder = tmp_path_factory.mktemp("dump")
    q, k = random_head(seed)
    moved = with_vectors(k, k["vectors"] + size * np.random.default_rng(seed).standard_normal(5))
    before = analyze(folder, q, k, query_model=query_model)
    after = analyze(folder, q, moved, query_model=query_model)
    assert_same(after, before, 1e-7, IN_ANY_BASIS)


@law
@given(seed=seeds, stretch=st.sampled_from([1e-3, 7.0, 1e6]))
def test_the_unit_of_position_changes_neither_fit_nor_plasticity(
    tmp_path_factory: pytest.TempPathFactory, seed: int, stretch: float
) -> None:
    folder = tmp_path_factory.mktemp("dump")
    q, k = random_head(seed)
    before = analyze(folder, q, k)
    stretched = [{**rows, "position": rows["position"] * stretch} for rows in (q, k)]
    after = analyze(folder, *stretched)
    kept = [name for name in HEAD_NUMBERS if "R2_scalar" not in name and "mae" not in name]
    kept = [name for name in kept if name not in ("q_beta_norm", "q_position_max")]
    for name in kept:
        expected = pytest.approx(before.metrics[name], rel=1e-7, abs=1e-7, nan_ok=True)
        assert after.metrics[name] == expected, name
    np.testing.assert_allclose(
        after.buckets["plasticity"], before.buckets["plasticity"], rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize("query_model", MODELS)
@law
@given(seed=seeds)
def test_the_order_of_rows_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, query_model: str, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("dump")
    heads = random_head(seed)
    rng = np.random.default_rng(seed)
    how = {"query_model": query_model, "num_pairs_per_bucket": ALL_PAIRS}
    before = analyze(folder, *heads, **how)
    shuffled = []
    for rows in heads:
        order = rng.permutation(len(rows["position"]))
        shuffled.append({name: values[order] for name, values in rows.items()})
    assert_same(analyze(folder, shuffled[0], heads[1], **how), before, 1e-9)
    # the order of keys decides which pairs are counted
    others = [name for name in HEAD_NUMBERS if name not in COUNTED]
    assert_same(analyze(folder, *shuffled, **how), before, 1e-9, others)


@pytest.mark.parametrize("pair_sampling", ["bucket", "local"])
def test_names_of_examples_decide_only_their_groups(tmp_path: Path, pair_sampling: str) -> None:
    q, k = random_head(0, examples=9)
    before = analyze(tmp_path, q, k, pair_sampling=pair_sampling)
    same_groups = [{**rows, "example_id": 17 * rows["example_id"] + 48} for rows in (q, k)]
    after = analyze(tmp_path, *same_groups, pair_sampling=pair_sampling)
    np.testing.assert_equal(after.buckets, before.buckets)
    np.testing.assert_equal(after.metrics, before.metrics)
    np.testing.assert_equal(after.influences, before.influences)
    assert np.isfinite(before.metrics["ap_overall_se"])
    other_groups = {**k, "example_id": 3 * k["example_id"] + 40}
    after = analyze(tmp_path, q, other_groups, pair_sampling=pair_sampling)
    assert after.metrics["ap_overall_se"] != before.metrics["ap_overall_se"]
    del after.buckets["plasticity_se"], before.buckets["plasticity_se"]
    np.testing.assert_equal(after.buckets, before.buckets)
    others = [name for name in HEAD_NUMBERS if name not in FROM_TEXTS]
    assert_same(after, before, 1e-12, others)
