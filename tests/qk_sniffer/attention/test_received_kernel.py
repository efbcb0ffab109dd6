"""The Triton kernels of the attention that keys receive, against plain torch, on a GPU."""

from __future__ import annotations

import pytest
import torch

from qk_sniffer.attention.received import SpacedQueries, plain_received, received_attention
from qk_sniffer.attention.rule import AttentionRule
from qk_sniffer.sampling.attended_keys import AttendedSampler

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RULES = {
    "full": AttentionRule(0.25, None, None, False),
    "soft-cap": AttentionRule(0.25, 30.0, None, False),
    "window": AttentionRule(0.25, None, 200, False),
    "chunks": AttentionRule(0.25, None, 300, True),
    "sinks": AttentionRule(0.25, None, None, False, sinks=torch.linspace(-3, 6, 12)),
}
SHAPES = {  # query heads, key heads, length, width, captured key heads
    "groups of 4": (12, 3, 700, 64, (0, 1, 2)),
    "one key head": (12, 1, 500, 128, (0,)),
    "no groups, width 80": (12, 12, 300, 80, (1, 2, 5)),
    "long": (12, 3, 20_000, 32, (2,)),
    "width 256": (12, 6, 400, 256, (0, 5)),
    "short": (12, 3, 5, 64, (0, 2)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", RULES)
def test_the_kernel_equals_plain_torch(rule: str, shape: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q_heads, k_heads, length, width, captured = SHAPES[shape]
    group = q_heads // k_heads
    how = RULES[rule]
    if how.sinks is not None:
        how = AttentionRule(0.25, None, None, False, sinks=how.sinks.cuda())
    query, key = (
        1.5 * torch.randn((n, length, width), device="cuda").to(dtype) for n in (q_heads, k_heads)
    )
    key = key.transpose(0, 1).contiguous().transpose(0, 1)  # as many models make it
    members = torch.tensor(captured)[:, None] * group + torch.arange(group)  # (k, group)
    members = members.cuda()
    on_host = torch.from_numpy(AttendedSampler(1).query_positions(length, how.window))
    position = on_host.cuda()
    vectors = query[members[..., None], position]  # (k, group, n, d)
    queries = SpacedQueries(vectors, position, on_host, captured, members)
    found = received_attention(queries, key, how, 0)
    expected = plain_received(queries, key, how, 0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    if how.sinks is None:
        torch.testing.assert_close(found.sum(-1), torch.ones_like(found[..., 0]))


def test_nan_is_not_hidden() -> None:
    torch.manual_seed(0)
    vectors, key = torch.randn(1, 1, 100, 64).cuda(), torch.randn(1, 100, 64).cuda()
    key[0, 50, 3] = float("nan")
    on_host = torch.arange(100)
    members = torch.zeros((1, 1), dtype=torch.int64).cuda()
    queries = SpacedQueries(vectors, on_host.cuda(), on_host, (0,), members)
    found = received_attention(queries, key, RULES["full"], 0)
    assert not found.isfinite().any()
