"""The attention that every key of a text receives from evenly spaced queries.

Only the logits of a part of the queries with all their keys are in memory at a time. A text is
computed without the other texts of its batch, and on a CPU a key head without the other heads.
"""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from qk_sniffer.attention import trial
from qk_sniffer.attention.logits import visible_logits
from qk_sniffer.attention.queries import SpacedQueries
from qk_sniffer.engines.engine import AttentionRule

_MOST_LOGITS = {"cuda": 1 << 23, "other": 1 << 20}  # in memory at a time
_MOST_KEYS = {"cuda": 1 << 17, "other": 1}  # in float32 at a time; one head at least


def received_attention(
    queries: SpacedQueries, keys: Tensor, rule: AttentionRule, text: int
) -> Tensor:
    """(k, group, s): mean weight that each key gets from the queries, in float32.

    `keys` (key heads, s, d) are all keys of the text, which is number `text` of its forward. CUDA
    uses a Triton kernel, other devices plain torch.
    """
    vectors = queries.vectors
    use_kernel = vectors.is_cuda and rule.extra is None and len(queries.on_host) > 0
    if use_kernel and kernel_works(vectors.device, vectors.dtype, vectors.shape[3]):
        from qk_sniffer.attention.received_kernel import kernel_received

        return kernel_received(queries, keys, rule)
    return plain_received(queries, keys, rule, text)


@cache
def kernel_works(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether the Triton kernels can be compiled and run for vectors of this size."""
    return trial.runs(partial(_equals_plain_torch, device, dtype, width), width)


def _equals_plain_torch(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Run the kernels with queries and keys of zeros: all visible keys have the same weight."""
    from qk_sniffer.attention.received_kernel import kernel_received

    on_host = torch.arange(trial.ROWS)
    vectors = torch.zeros((1, 1, trial.ROWS, width), dtype=dtype, device=device)
    members = torch.zeros((1, 1), dtype=torch.int64, device=device)
    queries = SpacedQueries(vectors, on_host.to(device), on_host, (0,), members)
    rule = AttentionRule(1.0, None, None, chunked=False)
    found = kernel_received(queries, vectors[0], rule)
    return torch.allclose(found, plain_received(queries, vectors[0], rule, 0), rtol=1e-3)


def plain_received(queries: SpacedQueries, keys: Tensor, rule: AttentionRule, text: int) -> Tensor:
    """The same in plain torch, for any device."""
    vectors, members = queries.vectors, queries.members
    number, group = members.shape
    length = keys.shape[1]
    kind = "cuda" if vectors.is_cuda else "other"
    result = vectors.new_zeros((number, group, length), dtype=torch.float32)
    heads = max(1, _MOST_KEYS[kind] // length)
    step = max(1, _MOST_LOGITS[kind] // (length * group * min(heads, number)))
    firsts = rule.first_visible(queries.on_host).tolist()
    lasts = queries.on_host.tolist()
    for first_head in range(0, number, heads):
        part = slice(first_head, first_head + heads)
        chosen = queries.key_heads[part]
        one = len(chosen) == 1
        block = (keys[chosen[0]][None] if one else keys[list(chosen)]).float()  # (k, s, d)
        for start in range(0, len(lasts), step):
            rows = slice(start, start + step)
            begin, end = firsts[rows][0], lasts[rows][-1] + 1
            products = _products(vectors[part, :, rows], block[:, begin:end], rule.scale)
            places = (queries.position[rows], begin)
            logits, seen = visible_logits(products, *places, rule, text, members[part])
            weights = _weights(logits, seen, rule, members[part])  # (k, group, r, keys)
            result[part, :, begin:end] += weights.sum(dim=2)
    return result.div_(max(1, len(lasts)))


def _products(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Scaled products (k, group, r, keys) of queries (k, group, r, d) and keys (k, keys, d)."""
    k, group, r, width = queries.shape
    flat = queries.float().reshape(k, group * r, width) * scale
    return (flat @ keys.transpose(1, 2)).view(k, group, r, -1)


def _weights(logits: Tensor, seen: Tensor, rule: AttentionRule, members: Tensor) -> Tensor:
    """Weights (k, group, r, keys) of `logits`, which are −inf where keys are not `seen`.

    `members` (k, group) are the numbers of the query heads.
    """
    weights = logits.softmax(dim=-1)
    if rule.sinks is not None:  # a learned logit takes its share
        sinks = rule.sinks.to(weights)[members][..., None]  # (k, group, 1)
        weights *= torch.sigmoid(logits.logsumexp(dim=-1) - sinks)[..., None]
    # a query that sees no key gives no weight
    return weights.masked_fill_(~seen, 0.0) if rule.extra is not None else weights
