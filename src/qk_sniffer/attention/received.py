"""The attention that every key of a text receives from evenly spaced queries.

Only the logits of a part of the queries with all their keys are in memory at a time. A text is
computed without the other texts of its batch, and on a CPU a key head without the other heads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qk_sniffer.attention.rule import AttentionRule

_MOST_LOGITS = {"cuda": 1 << 23, "other": 1 << 20}  # in memory at a time
_MOST_KEYS = {"cuda": 1 << 17, "other": 1}  # in float32 at a time; one head at least


class SpacedQueries(NamedTuple):
    """Queries of one text that measure the attention of its keys."""

    vectors: Tensor  # (k, group, n, d)
    position: Tensor  # (n,) ascending
    on_host: Tensor  # (n,) the same in host memory
    key_heads: tuple[int, ...]  # k places in the tensor of keys
    members: Tensor  # (k, group) numbers of the query heads


def received_attention(
    queries: SpacedQueries, keys: Tensor, rule: AttentionRule, sequence: int
) -> Tensor:
    """(k, group, s): mean weight that each key gets from the queries, in float32.

    `keys` (key heads, s, d) are all keys of the text, which is number `sequence` of its batch. CUDA
    uses a Triton kernel, other devices plain torch.
    """
    if queries.vectors.is_cuda and rule.extra is None and len(queries.on_host):
        found = _with_kernel(queries, keys, rule)
        if found is not None:
            return found
    return plain_received(queries, keys, rule, sequence)


def _with_kernel(queries: SpacedQueries, keys: Tensor, rule: AttentionRule) -> Tensor | None:
    """The same from the Triton kernel; None if it cannot be used."""
    try:
        from qk_sniffer.attention.received_kernel import (
            KernelRule,
            kernel_received,
            received_kernel_works,
        )
    except ImportError:  # no Triton
        return None
    vectors = queries.vectors
    if not received_kernel_works(vectors.device, vectors.dtype, vectors.shape[3]):
        return None
    low = rule.first_visible(queries.on_host)  # (n,)
    sinks = None if rule.sinks is None else rule.sinks[queries.members]  # (k, group)
    how = KernelRule(rule.scale, rule.softcap, low, sinks)
    return kernel_received(vectors, queries.on_host, keys, queries.key_heads, how)


def plain_received(
    queries: SpacedQueries, keys: Tensor, rule: AttentionRule, sequence: int
) -> Tensor:
    """The same in plain torch, for any device."""
    vectors, members = queries.vectors, queries.members
    number, group = members.shape
    length = keys.shape[1]
    kind = "cuda" if vectors.is_cuda else "other"
    result = vectors.new_zeros((number, group, length), dtype=torch.float32)
    heads = max(1, _MOST_KEYS[kind] // length)
    step = max(1, _MOST_LOGITS[kind] // (length * group * min(heads, number)))
    low = rule.first_visible(queries.position)  # (n,)
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
            weights = _weights(
                vectors[part, :, rows],
                block[:, begin:end],
                (queries.position[rows], low[rows], begin),
                rule,
                members[part],
                sequence,
            )  # (k, group, r, keys)
            result[part, :, begin:end] += weights.sum(dim=2)
    return result.div_(max(1, len(lasts)))


def _weights(
    queries: Tensor,
    keys: Tensor,
    places: tuple[Tensor, Tensor, int],
    rule: AttentionRule,
    members: Tensor,
    sequence: int,
) -> Tensor:
    """Weights (k, group, r, keys) of `queries` (k, group, r, d) on `keys` (k, keys, d).

    `places` are the positions (r,) of the queries, the first keys (r,) that they see, and the
    position of the first key. `members` (k, group) are the numbers of the query heads.
    """
    position, low, begin = places
    k, group, r, width = queries.shape
    flat = queries.float().reshape(k, group * r, width) * rule.scale
    logits = (flat @ keys.transpose(1, 2)).view(k, group, r, -1)
    if rule.softcap is not None:
        logits.div_(rule.softcap).tanh_().mul_(rule.softcap)
    place = torch.arange(begin, begin + keys.shape[1], device=keys.device)  # (keys,)
    hidden = (place > position[:, None]) | (place < low[:, None])  # (r, keys)
    if rule.extra is not None:
        extra = rule.extra[sequence % len(rule.extra)]  # (heads or 1, s, s)
        chosen = members[..., None] if len(extra) > 1 else members.new_zeros(1, 1, 1)
        rows = extra[..., begin : begin + keys.shape[1]]
        added = rows[chosen, position].float()  # (k or 1, group or 1, r, keys)
        hidden = hidden | (added == -torch.inf)
        logits += torch.where(hidden, 0.0, added)
    logits.masked_fill_(hidden, -torch.inf)
    weights = logits.softmax(dim=-1)
    if rule.sinks is not None:  # a learned logit takes its share
        sinks = rule.sinks.to(weights)[members][..., None]  # (k, group, 1)
        weights *= torch.sigmoid(logits.logsumexp(dim=-1) - sinks)[..., None]
    # a query that sees no key gives no weight
    return weights.masked_fill_(hidden, 0.0) if rule.extra is not None else weights
