"""The attention that keys receive on CUDA, in Triton.

The first kernel computes the log-sum-exp of every query, in segments of keys that run at the same
time. The second one takes a block of keys and adds up the weights of all queries that see it. No
logits are in memory.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from qk_sniffer.attention.queries import SpacedQueries
from qk_sniffer.attention.triton_code import key_means, query_sums
from qk_sniffer.device_copies import to_device
from qk_sniffer.engines.engine import AttentionRule

_SEGMENT = 4096  # keys of a program of the first kernel
_KEYS, _KEYS_AT_ONCE = 64, 64  # of a program of the second kernel, and in a step of the first
_LARGEST_TILE, _SMALLEST_TILE = 64, 16  # queries


def kernel_received(queries: SpacedQueries, keys: Tensor, rule: AttentionRule) -> Tensor:
    """(k, group, s): mean weight that each key gets, as `received_attention` computes it."""
    vectors, positions = queries.vectors.contiguous(), queries.on_host
    first_keys = rule.first_visible(positions)  # (n,) ascending
    number, group, n, width = vectors.shape
    length, device = keys.shape[1], keys.device
    starts = torch.arange(0, length, _KEYS)  # of the blocks of keys
    tables = [positions, first_keys, torch.tensor(queries.key_heads)]
    tables.append(torch.searchsorted(positions, starts))  # the first query that sees a block,
    tables.append(torch.searchsorted(first_keys, starts + _KEYS))  # and the first one beyond it
    position, low, heads, first, last = _on_device(tables, device)
    segments = triton.cdiv(length, _SEGMENT)
    tile = min(_LARGEST_TILE, max(_SMALLEST_TILE, triton.next_power_of_2(n)))
    options = {
        "CAPPED": rule.softcap is not None,
        "EXACT": vectors.dtype == torch.float32,
        "TILE": tile,
        "WIDTH": max(16, triton.next_power_of_2(width)),
    }
    factors = (rule.scale, rule.softcap or 1.0)
    sums = torch.empty((2, number * group, n, segments), dtype=torch.float32, device=device)
    result = torch.empty((number, group, length), dtype=torch.float32, device=device)
    with torch.cuda.device(device):
        query_sums[(triton.cdiv(n, tile), number * group, segments)](
            *(vectors, keys, position, low, heads, sums, *factors),
            *(length, n, segments, group, width, *keys.stride()),
            KEYS=_KEYS_AT_ONCE,
            SEGMENT=_SEGMENT,
            **options,
        )
        lse = (sums[0] + sums[1].log()).logsumexp(dim=-1)  # (heads, n)
        if rule.sinks is not None:
            sinks = rule.sinks.to(lse)[queries.members]  # (k, group)
            lse = torch.logaddexp(lse, sinks.reshape(-1, 1).expand_as(lse))
        key_means[(len(starts), number * group)](
            *(vectors, keys, position, low, heads, lse.contiguous(), first, last, result),
            *(*factors, length, n, group, width, *keys.stride()),
            KEYS=_KEYS,
            **options,
        )
    return result


def _on_device(tables: list[Tensor], device: torch.device) -> list[Tensor]:
    """Tables of int32 on the device, in one copy."""
    found = to_device(torch.cat([table.to(torch.int32) for table in tables]), device)
    return list(torch.split(found, [len(table) for table in tables]))
