"""The attention that keys receive on CUDA, in Triton.

The first kernel computes the log-sum-exp of every query, in segments of keys that run at the same
time. The second one takes a block of keys and adds up the weights of all queries that see it. No
logits are in memory.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from qk_sniffer.attention.received_triton import key_means, query_sums
from qk_toolkit.raised_in import is_our_bug

_SEGMENT = 4096  # keys of a program of the first kernel
_KEYS, _KEYS_AT_ONCE = 64, 64  # of a program of the second kernel, and in a step of the first
_LARGEST_TILE, _SMALLEST_TILE = 64, 16  # queries


class KernelRule(NamedTuple):
    """How logits are computed, and which keys the queries see."""

    scale: float
    softcap: float | None
    low: Tensor  # (n,) int64 in host memory: the first key that each query sees, ascending
    sinks: Tensor | None  # (k, group) learned logits of the query heads


def kernel_received(
    vectors: Tensor, positions: Tensor, keys: Tensor, key_heads: tuple[int, ...], rule: KernelRule
) -> Tensor:
    """(k, group, s): mean weight that each key gets, as `received_attention` computes it.

    `vectors` (k, group, n, d) are the queries at `positions` (n,), in host memory; `keys` (key
    heads, s, d).
    """
    number, group, n, width = vectors.shape
    length, device = keys.shape[1], keys.device
    queries = vectors.contiguous()
    starts = torch.arange(0, length, _KEYS)  # of the blocks of keys
    tables = [positions, rule.low, torch.tensor(key_heads)]
    tables.append(torch.searchsorted(positions, starts))  # the first query that sees a block,
    tables.append(torch.searchsorted(rule.low, starts + _KEYS))  # and the first one beyond it
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
            *(queries, keys, position, low, heads, sums, *factors),
            *(length, n, segments, group, width, *keys.stride()),
            KEYS=_KEYS_AT_ONCE,
            SEGMENT=_SEGMENT,
            **options,
        )
        lse = (sums[0] + sums[1].log()).logsumexp(dim=-1)  # (heads, n)
        if rule.sinks is not None:
            lse = torch.logaddexp(lse, rule.sinks.to(lse).reshape(-1, 1).expand_as(lse))
        key_means[(len(starts), number * group)](
            *(queries, keys, position, low, heads, lse.contiguous(), first, last, result),
            *(*factors, length, n, group, width, *keys.stride()),
            KEYS=_KEYS,
            **options,
        )
    return result


@cache
def received_kernel_works(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether the kernels can be compiled and run for vectors of this size."""
    try:
        n = _LARGEST_TILE
        vectors = torch.zeros((1, 1, n, width), dtype=dtype, device=device)
        keys = torch.zeros((1, n, width), dtype=dtype, device=device)
        rule = KernelRule(1.0, None, torch.zeros(n, dtype=torch.int64), None)
        found = kernel_received(vectors, torch.arange(n), keys, (0,), rule).cpu()[0, 0]
        expected = torch.from_numpy(1 / np.arange(1, n + 1)).flip(0).cumsum(0).flip(0) / n
        return bool(torch.allclose(found.double(), expected, rtol=1e-3))
    except Exception as error:  # of many types, from Triton, its compiler and the driver
        if is_our_bug(error):
            raise
        reason = " ".join(str(error).split())[:200]
        warnings.warn(
            f"the Triton kernel of the attention that keys receive cannot be used for vectors of "
            f"{width} dimensions ({type(error).__name__}: {reason}); plain torch is used, which is "
            "slower",
            RuntimeWarning,
            stacklevel=2,
        )
        return False


def _on_device(tables: list[Tensor], device: torch.device) -> list[Tensor]:
    """Tables of int32 on the device, in one copy."""
    joined = torch.cat([table.to(torch.int32) for table in tables]).pin_memory()
    found = joined.to(device, non_blocking=True)
    ends = np.cumsum([len(table) for table in tables]).tolist()
    return [found[end - len(table) : end] for table, end in zip(tables, ends, strict=True)]
