"""How an attention function computes its weights, found by calling it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qk_sniffer.engines.engine import Logits
from qk_sniffer.engines.hf.attention_hooks import AttentionCall
from qk_sniffer.engines.hf.logits import logits_of

SINKS = torch.tensor([0.5, -1.0, 3.0, 2.0])
BIAS = torch.randn(1, 4, 13, 13, generator=torch.Generator().manual_seed(3))
Change = Callable[[Tensor], Tensor]


def function(change: Change, *, sinks: bool = False, scale: float = 0.25) -> Callable[..., Any]:
    """Eager attention with changed logits."""

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options: Any
    ) -> Any:
        logits = change(query @ key.repeat_interleave(2, 1).transpose(2, 3) * scale) + mask
        if sinks:
            extra = SINKS.to(logits)[None, :, None, None].expand(*logits.shape[:3], 1)
            logits = torch.cat([logits, extra], dim=-1)
        weights = logits.softmax(-1)[..., : key.shape[2]]
        return (weights @ value.repeat_interleave(2, 1)).transpose(1, 2), weights

    return attention


def capped(logits: Tensor) -> Tensor:
    return 30 * torch.tanh(logits / 30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("attention", "options", "expected"),
    [
        (function(lambda x: x), {}, Logits()),
        (function(capped), {"softcap": 30.0}, Logits(softcap=30.0)),
        (function(lambda x: x), {"softcap": 30.0}, Logits()),  # the function ignores it
        (function(capped), {}, None),  # the call does not show it
        (function(lambda x: x, sinks=True), {"s_aux": SINKS}, Logits(sinks=True)),
        (function(lambda x: x), {"s_aux": SINKS}, Logits()),
        (function(lambda x: x, sinks=True), {}, None),
        (function(lambda x: x + BIAS), {"position_bias": BIAS}, Logits(biased=True)),
        (function(lambda x: x + BIAS), {}, None),
        (function(lambda x: x, scale=0.24), {}, None),
    ],
)
def test_what_a_function_does(
    attention: Callable[..., Any],
    options: dict[str, Any],
    expected: Logits | None,
    dtype: torch.dtype,
) -> None:
    query, key = torch.zeros(1, 4, 13, 16, dtype=dtype), torch.zeros(1, 2, 13, 16, dtype=dtype)
    visible = torch.ones(13, 13, dtype=torch.bool).tril().expand(4, -1, -1)
    mask = torch.full((1, 1, 13, 13), torch.finfo(dtype).min, dtype=dtype).triu(1)
    call = AttentionCall(nn.Identity(), query, key, key, (mask,), options, attention)
    assert logits_of(call, visible, 0.25, options.get("softcap")) == expected
