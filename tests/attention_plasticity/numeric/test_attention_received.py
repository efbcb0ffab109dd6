"""Attention of keys: against a plain loop, for every mask, and for logits that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.numeric import attention_received as module
from attention_plasticity.numeric.attention_received import Logits, TextRows, attention_received


def rows_of(rng: np.random.Generator, n: int, texts: int, length: int, dtype: Any) -> TextRows:
    vectors = rng.standard_normal((n, 3)).astype(dtype)
    position = rng.integers(0, length, n).astype(float)
    return TextRows(vectors, position, rng.integers(0, texts, n))


def plain(
    queries: TextRows, lse: np.ndarray, keys: TextRows, logits: Logits
) -> tuple[list[float], list[int]]:
    sums, numbers = [], []
    for key, at, text in zip(*keys, strict=True):
        weights = []
        for query, p, one, total in zip(*queries, lse, strict=True):
            seen = one == text and p > at and not np.isnan(total)
            if logits.window is not None and logits.chunked:
                seen &= p // logits.window == at // logits.window
            elif logits.window is not None:
                seen &= p - at < logits.window
            if seen:
                logit = logits.scale * float(query.astype(float) @ key.astype(float))
                if logits.softcap is not None:
                    logit = logits.softcap * np.tanh(logit / logits.softcap)
                weights.append(np.exp(logit - total))
        sums.append(float(np.sum(weights)))
        numbers.append(len(weights))
    return sums, numbers


@settings(deadline=None, max_examples=120, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n_q=st.integers(0, 60),
    n_k=st.integers(1, 60),
    texts=st.integers(1, 20),
    window=st.none() | st.integers(1, 40),
    chunked=st.booleans(),
    softcap=st.none() | st.floats(0.5, 5),
    dtype=st.sampled_from([np.float32, np.float64]),
    block=st.sampled_from([1, 7, 256]),
    products=st.sampled_from([1, 50, 1 << 19]),
)
def test_received_attention_equals_a_plain_loop(
    seed: int,
    n_q: int,
    n_k: int,
    texts: int,
    window: int | None,
    chunked: bool,
    softcap: float | None,
    dtype: Any,
    block: int,
    products: int,
) -> None:
    rng = np.random.default_rng(seed)
    queries, keys = (rows_of(rng, n, texts, 30, dtype) for n in (n_q, n_k))
    lse = (20 + rng.random(n_q)).astype(np.float32)
    lse[rng.random(n_q) < 0.2] = np.nan
    logits = Logits(0.7, softcap, window, chunked and window is not None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_KEY_BLOCK", block)
        patch.setattr(module, "_BLOCK_PRODUCTS", products)
        found = attention_received(queries, lse, keys, logits)
    assert found is not None
    sums, numbers = plain(queries, lse, keys, logits)
    np.testing.assert_allclose(found.attention, sums, rtol=1e-5, atol=0)
    assert found.queries.tolist() == numbers


def test_logits_above_lse_do_not_fit() -> None:
    queries = TextRows(np.full((1, 1), 2.0, np.float32), np.array([5.0]), np.array([0]))
    keys = TextRows(np.full((2, 1), 3.0, np.float32), np.array([1.0, 9.0]), np.array([0, 0]))
    for lse, fits in ((6.0, True), (5.95, True), (5.8, False), (7.0, True)):
        found = attention_received(queries, np.array([lse], np.float32), keys, Logits(1.0))
        assert (found is not None) is fits
    unseen = Logits(1.0, window=2)  # the keys are not seen, so that any lse fits
    assert attention_received(queries, np.array([0.0], np.float32), keys, unseen) is not None
    for scale in (np.inf, np.nan):
        assert attention_received(queries, np.array([6.0]), keys, Logits(scale)) is None


def test_many_queries_of_a_text_are_chosen_evenly() -> None:
    n = 5000
    queries = TextRows(np.zeros((n, 1), np.float32), np.arange(1.0, n + 1), np.zeros(n, int))
    keys = TextRows(np.zeros((2, 1), np.float32), np.array([0.0, n / 2]), np.zeros(2, int))
    found = attention_received(queries, np.zeros(n, np.float32), keys, Logits(1.0))
    assert found is not None
    assert found.queries.tolist() == [1024, 512]
    np.testing.assert_allclose(found.attention, [1024, 512])
    many = TextRows(np.zeros((n, 1), np.float32), np.zeros(n), np.zeros(n, int))
    found = attention_received(queries, np.zeros(n, np.float32), many, Logits(1.0))
    assert found is not None
    assert set(found.queries) == {1024}
    few = module._chosen_queries(queries, np.zeros(n), np.zeros(40_000, int))
    assert len(few) == 128  # 2^23 products / 40,000 keys is more than 128 and less than 256
