"""Changes of the input that must not change the result."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

from attention_plasticity.measure.plasticity import COLUMNS
from attention_plasticity.metrics import HEAD_NUMBERS, METRICS, UNROTATED
from dumps import head_rows
from head_pairs import analyze as analyze_files
from head_pairs import analyze_key_head, without_rope, write_pair

MODELS = ("positional", "full", "diagonal")
law = settings(deadline=None, max_examples=5, derandomize=True)
seeds = st.integers(0, 10**6)
ALL_PAIRS = {"num_pairs_per_bucket": 10**6, "num_pairs_per_bin": 10**6}
OURS = tuple(name for one in (*COLUMNS, *UNROTATED) for name in (one, f"{one}_se"))
"""Columns from float32 products."""
IN_ANY_BASIS = (
    *("q_R2_scalar", "q_mae_proj", "q_mae_ratio", "q_beta_norm", "q_R2_total"),
    *("q_resid0_skew", "q_resid0_kurt", "q_resid0_ks_p", "ap_overall", *OURS),
)
SCALE_FREE = tuple(name for name in HEAD_NUMBERS if not METRICS[name].any_scale)


def random_head(seed, dtype=np.float64, **shape):
    shape = {"n": 150, "d": 5, "examples": 6, **shape}
    q, k = (head_rows(**shape, seed=[seed, kind]) for kind in (0, 1))
    rng = np.random.default_rng(seed)
    for rows in (q, k):
        mix = np.eye(rows["vectors"].shape[1]) + 0.3 * rng.standard_normal(rows["vectors"].shape[1])
        rows["vectors"] = (rows["vectors"].astype(np.float64) @ mix).astype(dtype)
    return q, k


def analyze(folder, q, k, **config):
    return analyze_files(without_rope(write_pair(folder, q, k)), **{"bin_size": 128, **config})


def with_vectors(rows, vectors):
    return {**rows, "vectors": vectors}


def scaled(rows, by):
    dtype = rows["vectors"].dtype
    return with_vectors(rows, (rows["vectors"].astype(np.float64) * by).astype(dtype))


def assert_same(one, two, rtol, metrics=HEAD_NUMBERS):
    assert np.isfinite([two.metrics[name] for name in ("ap_aligned_drop", "ap_phase_se")]).all()
    for name in metrics:
        tolerance = max(rtol, 1e-6) if "ks_p" in name or name in OURS else rtol
        atol = max(rtol, 1e-5) if name in OURS else tolerance
        found, expected = one.metrics[name], two.metrics[name]
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=atol, err_msg=name)
    for table, tolerance in (("bucket_plasticity", rtol), ("bins", max(rtol, 1e-5))):
        for name in set(one.tables[table]) - {"q_start", "q_end", "k_start", "k_end"}:
            np.testing.assert_allclose(
                *(result.tables[table][name] for result in (one, two)),
                rtol=tolerance,
                atol=tolerance,
                err_msg=name,
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("query_model", MODELS)
def test_a_power_of_two_changes_no_bit(tmp_path, query_model, dtype):
    q, k = random_head(0, dtype)
    before = analyze(tmp_path, q, k, query_model=query_model)
    of_keys = analyze_key_head(tmp_path, query_model=query_model, bin_size=128).values
    assert np.isfinite(of_keys["aligned_plasticity"])
    for x, y in ((-30, 0), (0, 30), (-1, 7), (45, -60)):
        heads = scaled(q, 2.0**x), scaled(k, 2.0**y)
        after = analyze(tmp_path, *heads, query_model=query_model)
        for table in ("bucket_plasticity", "component_weights", "bins", "bands", "roles"):
            np.testing.assert_equal(after.tables.get(table), before.tables.get(table))
        for name in SCALE_FREE:
            np.testing.assert_equal(after.metrics[name], before.metrics[name], name)
        assert after.metrics["q_beta_norm"] == before.metrics["q_beta_norm"] * 2.0**x
        again = analyze_key_head(tmp_path, query_model=query_model, bin_size=128).values
        np.testing.assert_equal(again, of_keys)


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(np.float64, 1e-9), (np.float32, 1e-5)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("query_model", MODELS)
def test_a_factor_on_queries_or_keys_changes_nothing(tmp_path, query_model, dtype, rtol):
    """From 1e-9 to 1e9, and smaller: vectors have a scale of their own."""
    q, k = random_head(3, dtype)
    before = analyze(tmp_path, q, k, query_model=query_model)
    for x, y in ((1e-9, 1e9), (1e9, 1.0), (1.0, 1e-9), (1e-30, 3e12)):
        after = analyze(tmp_path, scaled(q, x), scaled(k, y), query_model=query_model)
        assert_same(after, before, rtol, SCALE_FREE)
        norm = before.metrics["q_beta_norm"] * x
        np.testing.assert_allclose(after.metrics["q_beta_norm"], norm, rtol=rtol)
        weights = (one.tables["component_weights"]["weight"] for one in (after, before))
        np.testing.assert_allclose(*weights, rtol=max(rtol, 1e-8))


@pytest.mark.parametrize("query_model", MODELS)
def test_the_scale_of_the_keys_of_one_text_changes_nothing(tmp_path, query_model):
    """Both keys of a pair are of one text, and plasticity does not depend on their scale."""
    q, k = random_head(1)
    before = analyze(tmp_path, q, k, query_model=query_model)
    plasticity = ("ap_overall", *(name for name in OURS if name.startswith("ap_")))
    for exponent in (-30, 20):
        by = np.where(k["example_id"] == 2, 2.0**exponent, 1.0)[:, None]
        after = analyze(tmp_path, q, scaled(k, by), query_model=query_model)
        assert_same(after, before, 1e-7, plasticity)


def test_zeros_and_single_small_numbers_are_no_scale(tmp_path):
    q, k = random_head(4)
    before = analyze(tmp_path, q, k)
    for rows in (q, k):
        rows["vectors"][7, 2] = 1e-300  # one number among many, beside zeros
        rows["vectors"][7, 3] = 0.0
    after = analyze(tmp_path, q, k)
    assert after.metrics["ap_overall"] == pytest.approx(before.metrics["ap_overall"], abs=0.05)
    q["vectors"][:, 1] = 0.0
    k["vectors"][5] = 0.0
    assert analyze(tmp_path, q, k).component_weights["r2"][1] == 0.0


@pytest.mark.parametrize("query_model", ["positional", "full"])
@law
@given(seed=seeds)
def test_rotating_queries_and_keys_together_changes_no_plasticity(
    tmp_path_factory, query_model, seed
):
    folder = tmp_path_factory.mktemp("dump")
    q, k = random_head(seed)
    turn = ortho_group.rvs(5, random_state=np.random.default_rng(seed))
    turned = [with_vectors(rows, rows["vectors"] @ turn) for rows in (q, k)]
    before = analyze(folder, q, k, query_model=query_model)
    after = analyze(folder, *turned, query_model=query_model)
    assert_same(after, before, 1e-7, IN_ANY_BASIS)


@pytest.mark.parametrize("query_model", MODELS)
@law
@given(seed=seeds)
def test_flipping_the_sign_of_dimensions_changes_nothing(tmp_path_factory, query_model, seed):
    folder = tmp_path_factory.mktemp("dump")
    q, k = random_head(seed)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], 5)
    flipped = [with_vectors(rows, rows["vectors"] * signs) for rows in (q, k)]
    before = analyze(folder, q, k, query_model=query_model)
    after = analyze(folder, *flipped, query_model=query_model)
    assert_same(after, before, 1e-9)  # orientation undoes the flips
    r2 = (one.tables["component_weights"]["r2"] for one in (after, before))
    np.testing.assert_allclose(*r2, rtol=1e-9)


@pytest.mark.parametrize("query_model", ["positional", "full"])
@law
@given(seed=seeds)
def test_moving_all_keys_changes_no_plasticity(tmp_path_factory, query_model, seed):
    folder = tmp_path_factory.mktemp("dump")
    q, k = random_head(seed)
    moved = with_vectors(k, k["vectors"] + np.random.default_rng(seed).standard_normal(5))
    before = analyze(folder, q, k, query_model=query_model)
    after = analyze(folder, q, moved, query_model=query_model)
    names = tuple(name for name in IN_ANY_BASIS if not name.startswith("k_"))
    assert_same(after, before, 1e-7, names)


@law
@given(seed=seeds, stretch=st.sampled_from([1e-3, 7.0, 1e6]))
def test_the_unit_of_position_changes_neither_fit_nor_plasticity(tmp_path_factory, seed, stretch):
    folder = tmp_path_factory.mktemp("dump")
    q, k = random_head(seed)
    before = analyze(folder, q, k)
    stretched = [{**rows, "position": rows["position"] * stretch} for rows in (q, k)]
    after = analyze(folder, *stretched)
    kept = [name for name in HEAD_NUMBERS if "R2_scalar" not in name and "mae" not in name]
    kept = [name for name in kept if name not in ("q_beta_norm", "q_position_max")]
    for name in kept:
        if not name.startswith(COLUMNS):  # bins are made of tokens
            expected = pytest.approx(before.metrics[name], rel=1e-6, abs=1e-6, nan_ok=True)
            assert after.metrics[name] == expected, name
    plasticity = (one.tables["bucket_plasticity"]["plasticity"] for one in (after, before))
    np.testing.assert_allclose(*plasticity, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("query_model", MODELS)
@law
@given(seed=seeds)
def test_the_order_of_rows_and_texts_changes_nothing(tmp_path_factory, query_model, seed):
    """With all pairs. The names of texts are exchanged; each of them is a group."""
    folder = tmp_path_factory.mktemp("dump")
    heads = random_head(seed)
    rng = np.random.default_rng(seed)
    how = {"query_model": query_model, **ALL_PAIRS}
    before = analyze(folder, *heads, **how)
    names = rng.permutation(6)
    shuffled = []
    for rows in heads:
        order = rng.permutation(len(rows["position"]))
        moved = {name: values[order] for name, values in rows.items()}
        shuffled.append(moved | {"example_id": names[moved["example_id"]]})
    assert_same(analyze(folder, *shuffled, **how), before, 1e-9)


@pytest.mark.parametrize("pair_sampling", ["bucket", "local", "context"])
def test_names_of_examples_decide_only_their_groups(tmp_path, pair_sampling):
    q, k = random_head(0, examples=9)
    before = analyze(tmp_path, q, k, pair_sampling=pair_sampling)
    same_groups = [{**rows, "example_id": 17 * rows["example_id"] + 48} for rows in (q, k)]
    after = analyze(tmp_path, *same_groups, pair_sampling=pair_sampling)
    for name in ("bucket_plasticity", "bins", "influences", "drift"):
        np.testing.assert_equal(after.tables[name], before.tables[name])
    np.testing.assert_equal(after.metrics, before.metrics)
    assert np.isfinite(before.metrics["ap_aligned_se"])
    other_groups = [{**rows, "example_id": 4 * rows["example_id"]} for rows in (q, k)]
    after = analyze(tmp_path, *other_groups, pair_sampling=pair_sampling)  # four groups
    assert after.metrics["n_text_groups"] == 4
    assert after.metrics["ap_aligned_se"] != before.metrics["ap_aligned_se"]
    np.testing.assert_equal(after.tables["bucket_plasticity"], before.tables["bucket_plasticity"])
