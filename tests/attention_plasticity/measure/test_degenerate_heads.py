"""Heads at the edge: one key, one bucket, constant or perfectly linear queries."""

import math
from itertools import product

import numpy as np
import pytest

from attention_plasticity import make_config
from attention_plasticity.metrics import HEAD_NUMBERS
from dumps import head_rows
from head_pairs import analyze, without_rope, write_pair
from reference import analyse
from reference_checks import assert_equals_reference, assert_reasons_are_complete

NORMALITY = (*(name for name in HEAD_NUMBERS if "resid0" in name or "noise" in name),)


@pytest.mark.parametrize(
    ("n", "context", "order", "intercept"),
    [
        *product([300], [1e3], ["sorted", "shuffled", "by example"], [0.0, 1.0, 1e6]),
        (2000, 1e6, "sorted", 0.0),
        (5000, 50, "shuffled", 1.0),
        (20_000, 1e3, "by example", 1e6),
    ],
)
def test_residuals_of_perfectly_linear_queries_are_not_tested(
    tmp_path, n, context, order, intercept
):
    rng = np.random.default_rng(0)
    position = rng.integers(0, int(context), n)
    if order != "shuffled":
        parts = np.array_split(position, 1 if order == "sorted" else 20)
        position = np.concatenate([np.sort(part) for part in parts])
    ranks = np.argsort(np.argsort(position, kind="stable"))
    first = np.searchsorted(np.sort(position), position)
    queries = {
        "bucket": (8 * position / context).astype(int),
        "example_id": ranks - first,  # one row of a text at a position
        "position": position,
        "vectors": intercept * rng.standard_normal(5) + np.outer(position, rng.standard_normal(5)),
    }
    write_pair(tmp_path, queries, head_rows(n=200, d=5, seed=2))
    result = analyze(tmp_path)
    assert result.metrics["q_R2_pos"] == pytest.approx(1.0, abs=1e-7)
    assert result.metrics["q_R2_total"] == pytest.approx(1.0, abs=1e-7)
    assert max(result.bucket_plasticity["plasticity"]) < 1e-9
    assert {name: result.metrics[name] for name in NORMALITY} == pytest.approx(
        dict.fromkeys(NORMALITY, math.nan), nan_ok=True
    )


def test_queries_without_any_slope_predict_no_position(tmp_path):
    t = np.arange(1, 65)  # mean 32.5: every sum below is exact, and the slope exactly zero
    mirrored = np.random.default_rng(4).integers(-8, 9, (32, 3)) / 4.0
    mirrored[:, 0] = np.arange(32)  # far from uncorrelated with log2(position + 1)
    queries = {"bucket": t // 8, "example_id": 0 * t, "position": t}
    queries["vectors"] = np.concatenate([mirrored, mirrored[::-1]])
    write_pair(tmp_path, queries, head_rows(n=60, d=3, examples=1, seed=2))
    result = analyze(tmp_path)
    assert result.metrics["q_beta_norm"] == 0
    assert result.metrics["q_R2_scalar"] == 0
    assert result.metrics["q_mae_ratio"] == 1
    assert_equals_reference(result, analyse(tmp_path, 0, 0, 0, make_config()))


def rows(seed, **changes):
    """500 rows of six texts."""
    return {**head_rows(n=500, d=4, examples=6, seed=seed), **changes}


SAME = np.tile([0.3, -0.2, 0.9, 0.1], (500, 1))
ODD_HEADS = {
    "constant queries": (rows(1, vectors=SAME), rows(2), 0.0),
    "zero queries": (rows(1, vectors=0 * SAME), rows(2), 1.0),
    "identical keys": (rows(1), rows(2, vectors=SAME), 1.0),
    "one key": (rows(1), {name: column[:1] for name, column in rows(2).items()}, math.nan),
    "wide vectors": (
        head_rows(500, 300, examples=6),
        head_rows(500, 300, examples=6, seed=2),
        None,
    ),
}


@pytest.mark.parametrize("factor", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize(("queries", "keys", "value"), ODD_HEADS.values(), ids=ODD_HEADS)
def test_odd_heads_have_values_or_reasons(tmp_path, queries, keys, value, factor):
    """Nothing is a warning or infinite; a factor changes nothing."""
    scaled = queries | {"vectors": queries["vectors"].astype(np.float64) * factor}
    result = analyze(without_rope(write_pair(tmp_path, scaled, keys)), bin_size=64)
    assert_reasons_are_complete(result)
    for table in result.tables.values():
        for column in table.values():
            assert not any(isinstance(one, float) and math.isinf(one) for one in column)
    if value is not None:
        for name in ("ap_overall", "ap_aligned", "ap_pooled", "ap_aligned_counted"):
            assert result.metrics[name] == pytest.approx(value, abs=1e-6, nan_ok=True), name
    if value is not None and not math.isnan(value):
        assert result.metrics["ap_aligned_se"] == pytest.approx(0.0, abs=1e-6)
        assert result.metrics["ap_phase"] == result.metrics["ap_phase_se"] == 0.0
