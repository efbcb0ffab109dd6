"""The Triton kernels against plain torch, on a GPU."""

import numpy as np
import pytest
import torch

from qk_sniffer.attention.queries import SampledQueries, SpacedQueries, TextTokens
from qk_sniffer.attention.query_attention import chunked_attention, query_attention
from qk_sniffer.attention.received import plain_received, received_attention
from qk_sniffer.engines.engine import AttentionRule
from qk_sniffer.sampling.attended_keys import AttendedSampler
from qk_sniffer.sampling.rows import KindRows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RULES = {
    "full": AttentionRule(0.25, None, None, False),
    "soft-cap": AttentionRule(0.25, 30.0, None, False),
    "window": AttentionRule(0.25, None, 200, False),
    "chunks": AttentionRule(0.25, None, 300, True),
    "sinks": AttentionRule(0.25, None, None, False, sinks=torch.linspace(-3, 6, 12)),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = {  # query heads, key heads, length, width, share of positions, captured heads
    "groups of 4": (12, 3, 700, 64, 0.2, None),
    "one key head": (12, 1, 500, 128, 0.05, (0, 3, 11)),
    "no groups, width 80": (12, 12, 300, 80, 0.5, (1, 2, 5)),
    "far apart": (12, 3, 20_000, 32, 0.0005, None),
    "width 256": (12, 6, 400, 256, 0.1, None),
}


def rows_of(batch, length, share):
    rng = np.random.default_rng(length)
    kept = [np.flatnonzero(rng.random(length) < share) for _ in range(batch)]
    kept[-1] = np.array([0, length - 1])
    return KindRows(np.repeat(np.arange(batch), [len(part) for part in kept]), np.concatenate(kept))


def vectors(*shape, dtype):
    return 1.5 * torch.randn(shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", RULES)
def test_columns_of_queries_equal_plain_torch(rule, shape, dtype):
    torch.manual_seed(0)
    q_heads, k_heads, length, width, share, captured = SHAPES[shape]
    heads = captured or tuple(range(q_heads))
    rows, starts = rows_of(2, length, share), np.array([0, length])
    query, key = (vectors(2 * length, n, width, dtype=dtype) for n in (q_heads, k_heads))
    place = torch.as_tensor(starts[rows.sequence] + rows.position).cuda()  # (n,)
    chosen = query[place[None], torch.tensor(heads).cuda()[:, None]]  # (heads, n, d)
    tokens = TextTokens(torch.randint(0, 20, (2 * length,), device="cuda"))
    strided = key.transpose(0, 1).contiguous().transpose(0, 1)  # as many models make it
    for known in (tokens, None):
        queries = SampledQueries(chosen, rows, starts, heads, q_heads // k_heads, known)
        found = query_attention(queries, strided, RULES[rule])
        expected = chunked_attention(queries, key, RULES[rule])
        masses, numbers = found[..., :-3], found[..., -3:].view(torch.int32)
        torch.testing.assert_close(
            masses, expected[..., :-3], rtol=1e-6, atol=1e-5, equal_nan=known is None
        )
        assert torch.equal(numbers[..., 1:], expected[..., -2:].view(torch.int32))
        best, right = numbers[..., 0], expected[..., -3].view(torch.int32)  # (heads, n)
        key_head = (torch.tensor(heads).cuda() // (q_heads // k_heads))[:, None]
        begin = torch.as_tensor(starts[rows.sequence]).cuda()  # (n,)
        logits = [
            torch.linalg.vecdot(chosen.double(), key[begin + at, key_head].double())
            for at in (best, right)
        ]
        assert (best == right).float().mean() > 0.99
        torch.testing.assert_close(*logits, rtol=1e-6, atol=1e-4)  # equal but for rounding


def test_the_earliest_of_equal_keys_is_the_strongest():
    """All logits are equal, in many blocks of keys and segments of distances."""
    rows = KindRows(np.zeros(300, np.int64), np.arange(0, 30_000, 100))
    ones = torch.ones(1, 300, 64, device="cuda")
    queries = SampledQueries(ones, rows, np.zeros(1, np.int64), (0,), 1)
    key = torch.ones(30_000, 1, 64, device="cuda")
    for window in (None, 777):
        found = query_attention(queries, key, AttentionRule(0.25, None, window, False))
        low = rows.position * 0 if window is None else np.maximum(0, rows.position - window + 1)
        assert found[0, :, -3].view(torch.int32).tolist() == low.tolist()


def test_infinite_and_nan_logits_are_not_hidden():
    torch.manual_seed(0)
    rows = rows_of(1, 300, 0.1)
    for bad in (float("nan"), float("inf")):
        queries, key = (
            vectors(*s, dtype=torch.float32) for s in ((2, len(rows), 64), (300, 2, 64))
        )
        key[100, 0, 3] = bad
        sampled = SampledQueries(queries.abs(), rows, np.zeros(1, np.int64), (0, 1), 1)
        found = query_attention(sampled, key, RULES["full"])
        later = torch.as_tensor(rows.position >= 100)
        assert not found[0, later.cuda(), 0].isfinite().any()
        assert found[0, ~later.cuda(), 0].isfinite().all()
        assert found[1, :, 0].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, "short"])
@pytest.mark.parametrize("rule", RULES)
def test_what_keys_receive_equals_plain_torch(rule, shape, dtype):
    torch.manual_seed(0)
    sizes = {**SHAPES, "short": (12, 3, 5, 64, 1.0, None)}
    q_heads, k_heads, length, width, _, _ = sizes[shape]
    group, captured, how = q_heads // k_heads, tuple(range(k_heads))[::2], RULES[rule]
    query, key = (vectors(n, length, width, dtype=dtype) for n in (q_heads, k_heads))
    key = key.transpose(0, 1).contiguous().transpose(0, 1)  # as many models make it
    members = (torch.tensor(captured)[:, None] * group + torch.arange(group)).cuda()  # (k, group)
    on_host = torch.from_numpy(AttendedSampler(1).query_positions(length, how.window))
    chosen = query[members[..., None], on_host.cuda()]  # (k, group, n, d)
    queries = SpacedQueries(chosen, on_host.cuda(), on_host, captured, members)
    found = received_attention(queries, key, how, 0)
    torch.testing.assert_close(found, plain_received(queries, key, how, 0), rtol=1e-4, atol=1e-7)
    if how.sinks is None:
        torch.testing.assert_close(found.sum(-1), torch.ones_like(found[..., 0]))
    key[captured[0], length // 2, 3] = float("nan")  # is not hidden
    assert not received_attention(queries, key, how, 0)[0].isfinite().all()
