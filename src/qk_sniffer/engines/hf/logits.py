"""Find how an attention function computes its weights from queries and keys.

The function is called with random queries and keys and with one-hot values, so that its output
holds the weights. They are compared with softmax of the logits, with and without the soft-cap and
the learned sinks of the call. If no combination agrees, the logits of the layer are not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from qk_sniffer.engines.engine import Logits
from qk_sniffer.engines.hf.attention_hooks import AttentionCall

TOLERANCES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""Largest rounding error of a weight, per precision, if logits are small."""

_ROUNDING = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Largest relative rounding error of a logit; a weight changes by at most half of the error."""

HIDDEN_BELOW = -1e4  # a mask adds this or less to the logit of a hidden key
_LARGEST_SPREAD = 64.0  # standard deviation of the logits of the last query
_MARGIN = 4  # the vectors of this test are larger than those of a text


def allowed(dtype: str, largest_logit: float) -> float:
    """The largest difference of weights that rounding explains; it grows with the logits."""
    known = dtype if dtype in TOLERANCES else "float32"
    return max(TOLERANCES[known], _ROUNDING[known] * largest_logit / 2)


def logits_of(
    call: AttentionCall, visible: Tensor, scale: float, softcap: float | None
) -> Logits | None:
    """How the call computes its logits, given the `visible` keys (heads, s, s); None if unknown."""
    call = _with_random_vectors(call, scale)
    try:
        measured = in_float32(call).weights()  # (heads, s, s)
        dtype = "float32"
    except (RuntimeError, ValueError, TypeError, AssertionError):  # only half precision
        measured = call.weights()
        dtype = "bfloat16" if call.query.dtype == torch.bfloat16 else "float16"
    plain = _products(call) * scale  # (heads, s, s)
    biases = _both(sum_of_biases(call))
    for cap, sink, bias in product(_both(softcap), _both(sinks_of(call)), biases):
        logits = plain if cap is None else cap * torch.tanh(plain / cap)
        if bias is not None:
            logits = logits + bias[0].to(plain)
        logits = torch.where(visible, logits, -torch.inf)
        if _agree(logits, sink, measured, dtype):
            changed = bias is not None and bool((bias[0].cpu() * visible.cpu()).any())
            return Logits(cap, sink is not None, changed)
    return None


def sinks_of(call: AttentionCall) -> Tensor | None:
    """The learned sinks (heads,) of a call."""
    sinks = call.options.get("s_aux")
    return sinks.detach() if isinstance(sinks, Tensor) else None


def mask_of(call: AttentionCall) -> Tensor | None:
    """The mask (b or 1, heads or 1, s, s) of a call, if it is a tensor."""
    mask = call.others[0] if call.others else call.options.get("attention_mask")
    return mask.detach() if isinstance(mask, Tensor) and mask.dim() == 4 else None


def sum_of_biases(call: AttentionCall) -> Tensor | None:
    """All that is added to the logits, (b or 1, heads or 1, s, s); hidden keys are very low."""
    found = []
    mask, bias = mask_of(call), call.options.get("position_bias")
    length = call.key.shape[2]
    if mask is not None and mask.is_floating_point():
        found.append(mask[..., :length].float())
    if isinstance(bias, Tensor) and bias.dim() == 4:
        found.append(bias.detach()[..., :length].float())
    return sum(found[1:], found[0]) if found else None


def _both(value: Any) -> Iterator[Any]:
    """The value, then None."""
    if value is not None:
        yield value
    yield None


def _with_random_vectors(call: AttentionCall, scale: float) -> AttentionCall:
    """The call with random vectors; the logits of later queries have a larger spread."""
    generator = torch.Generator().manual_seed(0)
    length, width = call.query.shape[2:]
    query = torch.randn(call.query[:1].shape, generator=generator)
    key = torch.randn(call.key[:1].shape, generator=generator)
    spread = torch.logspace(0, 1, length, _LARGEST_SPREAD)[:, None]  # (s, 1)
    query *= spread / (abs(scale) * width**0.5)
    return replace(call, query=query.to(call.query), key=key.to(call.key), value=call.value[:1])


def in_float32(call: AttentionCall) -> AttentionCall:
    """The call with all floating tensors in float32."""

    def widened(value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.float() if is_float else value

    return replace(
        call,
        query=call.query.float(),
        key=call.key.float(),
        value=call.value.float(),
        others=tuple(map(widened, call.others)),
        options={name: widened(value) for name, value in call.options.items()},
    )


def _products(call: AttentionCall) -> Tensor:
    """q·k (heads, s, s) of the first text."""
    repeats = call.query.shape[1] // call.key.shape[1]
    keys = call.key[0].float().repeat_interleave(repeats, dim=0)  # (heads, s, d)
    return call.query[0].float() @ keys.transpose(1, 2)


def _agree(logits: Tensor, sinks: Tensor | None, measured: Tensor, dtype: str) -> bool:
    """Whether the softmax of the logits (heads, s, s) equals the measured weights."""
    lse = logits.logsumexp(dim=-1, keepdim=True)  # (heads, s, 1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.to(lse)[:, None, None].expand_as(lse))
    difference = (torch.exp(logits - lse) - measured.float()).abs().amax(dim=-1)  # (heads, s)
    largest = torch.where(logits.isfinite(), logits.abs(), 0.0).amax(dim=-1)  # (heads, s)
    limits = (largest * (_ROUNDING[dtype] / 2)).clamp(min=TOLERANCES[dtype])  # as in `allowed`
    return bool((difference <= _MARGIN * limits).all())
