"""Cells of query bucket and key bucket that the seeds' columns use: loops over all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure import seed_scores
from attention_plasticity.measure.eligibility import earlier_cells, seen_cells
from dumps import make_dump
from head_pairs import analyze


def plain_cell(q: np.ndarray, k: np.ndarray, row: int, column: int, visible: Visible) -> bool:
    """Whether a query of a bucket sees a key of an earlier one; `q` and `k` are positions."""
    if column >= row:
        return False
    size = visible.size
    if size is None:
        return True
    if visible.chunked:
        return any(p // size == s // size and s <= p for p in q for s in k)
    return column == row - 1 or any(p - size <= s <= p for p in q for s in k)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "visible",
    [Visible(), Visible(1), Visible(30), Visible(30, chunked=True), Visible(64, chunked=True)],
    ids=str,
)
def test_cells_equal_a_loop_over_all_rows(visible: Visible, seed: int) -> None:
    """Also buckets that overlap in position, and query buckets that are left out."""
    rng = np.random.default_rng(seed)
    p_q, p_k = (np.floor(rng.random(n) * 200) for n in (60, 50))
    b_q, b_k = (
        np.maximum(0, (p // 25 + rng.integers(-1, 2, len(p)) * (seed % 2))).astype(int)
        for p in (p_q, p_k)
    )
    query_buckets = np.unique(b_q)[1 :: 1 + seed % 3]
    key_buckets = np.unique(b_k)
    cells = seen_cells(query_buckets, key_buckets, visible, p_q, b_q, p_k, b_k)
    assert cells.shape == (len(query_buckets), len(key_buckets))
    for i, row in enumerate(query_buckets):
        for j, column in enumerate(key_buckets):
            expected = plain_cell(p_q[b_q == row], p_k[b_k == column], row, column, visible)
            assert cells[i, j] == expected, (row, column)
    assert (cells <= earlier_cells(query_buckets, key_buckets)).all()


def test_many_buckets_are_compared_in_bulk() -> None:
    rng = np.random.default_rng(0)
    bucket, position = np.arange(20_000) % 1000, rng.random(20_000) * 1e6
    buckets = np.arange(1000)
    cells = seen_cells(buckets, buckets, Visible(50), position, bucket, position, bucket)
    for row, column in rng.integers(0, 1000, (200, 2)):
        own = position[bucket == row], position[bucket == column]
        assert cells[row, column] == plain_cell(*own, row, column, Visible(50))


@pytest.mark.parametrize("pair_sampling", ["bucket", "local", "context"])
def test_pairs_are_scored_block_by_block_with_the_same_result(
    tmp_path: Path, pair_sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, n=400, window=300, examples=8)
    how = {"pair_sampling": pair_sampling, "num_pairs_per_bucket": 300}
    whole = analyze(tmp_path, **how).bucket_plasticity
    monkeypatch.setattr(seed_scores, "_PAIR_BLOCK", 8 * 37)
    parts = analyze(tmp_path, **how).bucket_plasticity
    np.testing.assert_allclose(parts["plasticity"], whole["plasticity"], rtol=1e-12)
    assert parts["n_pairs"].tolist() == whole["n_pairs"].tolist()
