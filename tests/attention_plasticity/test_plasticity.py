"""Plasticity from arrays: what files give, at any scale, and the cells that count.

`measure/reference.py` has the same from plain loops over pairs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity import (
    analyze_head,
    compute_attention_plasticity,
    fit_multioutput_linear_regressor,
    make_config,
    make_pos_rotation,
    open_dump,
    orientation_from_keys,
)
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.seed_pairs import seen_cells
from dumps import head_rows, make_dump

MODELS = ("positional", "full", "diagonal")
RNG = np.random.default_rng


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


@pytest.mark.parametrize("query_model", MODELS)
def test_without_variance_the_sign_of_the_margin_decides(query_model: str) -> None:
    queries = {"p_q": [9, 9], "b_q": [1, 1], "X_q_rot": np.array([[2.0, 0.0], [2.0, 0.0]])}
    fit = {"alpha_rot": np.array([2.0, 0]), "beta_rot": np.zeros(2), "resid_var": np.zeros(2)}

    def plasticity(*w: float) -> float:
        keys = {"p_k": [0, 1], "b_k": [0, 0], "example_ids_k": [3, 3]}
        keys |= {"X_k_rot": np.array([w, (0.0, 0.0)])}
        return compute_attention_plasticity(
            **queries, **fit, **keys, query_model=query_model
        ).overall

    assert [plasticity(1, 0), plasticity(-1, 0), plasticity(1e-300, 0)] == [0.0, 0.0, 0.0]
    assert [plasticity(0, 1), plasticity(0, 0)] == [1.0, 1.0]


@pytest.mark.parametrize("pair_sampling", ["bucket", "local", "context"])
@pytest.mark.parametrize("query_model", MODELS)
def test_arrays_give_what_files_give(tmp_path: Path, query_model: str, pair_sampling: str) -> None:
    how = {"query_model": query_model, "pair_sampling": pair_sampling, "num_pairs_per_bucket": 50}
    make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, n=300)
    head, size = rotated_head(), {"positional": 1e9, "full": 1e-9, "diagonal": 1.0}[query_model]
    for name in ("X_q_rot", "alpha_rot", "beta_rot"):
        head[name] = head[name] * size
    head |= {"resid_var": head["resid_var"] * size**2, "X_k_rot": head["X_k_rot"] / size}
    found = compute_attention_plasticity(**head, rng=RNG(0), **how)
    expected = analyze_head(0, 0, 0, open_dump(tmp_path), make_config(**how))
    table = expected.bucket_plasticity
    assert found.q_bucket.tolist() == table["q_bucket"].tolist()
    assert found.k_bucket.tolist() == table["k_bucket"].tolist()
    assert found.n_pairs.tolist() == table["n_pairs"].tolist()
    np.testing.assert_allclose(found.plasticity, table["plasticity"], rtol=1e-8)
    assert found.overall == pytest.approx(expected.metrics["ap_overall"], rel=1e-8)
    counts = np.bincount(head["b_q"])[found.query_buckets]
    assert found.overall == pytest.approx(np.average(found.profile, weights=counts), rel=1e-9)


def test_bucket_window_limits_cut_the_far_key_buckets() -> None:
    head = rotated_head()
    whole = compute_attention_plasticity(**head)
    cut = compute_attention_plasticity(**head, bucket_window_limits={7: 5, 4: 3, 2: 0})
    cells = list(zip(whole.q_bucket.tolist(), whole.k_bucket.tolist(), strict=True))
    kept = [(j, c) for j, c in cells if c >= {7: 5, 4: 3}.get(j, 0)]
    assert list(zip(cut.q_bucket.tolist(), cut.k_bucket.tolist(), strict=True)) == kept
    values = dict(zip(cells, whole.plasticity, strict=True))
    np.testing.assert_allclose(cut.plasticity, [values[cell] for cell in kept], rtol=1e-9)


def test_other_samplings_are_refused() -> None:
    with pytest.raises(ValueError, match="expected bucket, local or context, got 'attended'"):
        compute_attention_plasticity(**rotated_head(), pair_sampling="attended")  # type: ignore[arg-type]


rows_of_a_head = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), min_size=1, max_size=25)


@settings(max_examples=60)
@given(
    queries=rows_of_a_head,
    keys=rows_of_a_head,
    size=st.none() | st.integers(1, 70),
    chunked=st.booleans(),
    by=st.booleans(),
)
def test_windows_in_tokens_equal_brute_force(queries, keys, size, chunked, by) -> None:
    """Buckets as a dump has them, or any assignment at all. Query bucket 3 is left out."""
    if by:
        queries, keys = ([(p, p // 10) for p, _ in rows] for rows in (queries, keys))
    (p_q, b_q), (p_k, b_k) = (np.array(rows).T for rows in (queries, keys))
    query_buckets, key_buckets = np.setdiff1d(b_q, [3]), np.unique(b_k)
    visible = Visible(size, chunked and size is not None)
    found = seen_cells(
        query_buckets, key_buckets, visible, p_q.astype(float), b_q, p_k.astype(float), b_k
    )

    def near(p: int, s: int) -> bool:
        if size is None:
            return True
        return s <= p and (p // size == s // size if chunked else p - s <= size)

    for row, j in enumerate(query_buckets):
        for column, c in enumerate(key_buckets):
            seen = any(near(p, s) for p, a in queries if a == j for s, e in keys if e == c)
            before = c == j - 1 and not (chunked and size is not None)
            assert found[row, column] == (c < j and (seen or before))
