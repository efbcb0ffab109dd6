"""Milliseconds of the attention columns of a layer in plain torch, by the size of blocks.

A GPU uses plain torch where its Triton kernel cannot run, such as for the masks that some models
give to their attention function.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.models import QWEN3_8B, SMALL
from benchmarks.timing import best_in_turn, show
from qk_sniffer.attention.queries import SampledQueries, TextTokens
from qk_sniffer.attention.query_attention import MOST_LOGITS, chunked_attention
from qk_sniffer.engines.engine import AttentionRule
from qk_sniffer.sampling.rows import KindRows

QUERIES = 512  # of a text
SMALL_BLOCK = 1 << 20  # logits; that of a CPU


def benchmark(options: Namespace) -> None:
    """On a GPU: a layer of Qwen3-8B. On a CPU: one of a small model. Prints the ratio of times."""
    on_gpu = torch.cuda.is_available()
    shape, length = (QWEN3_8B, 32_768) if on_gpu else (SMALL, 4096)
    tokens = options.tokens or length
    device = torch.device("cuda" if on_gpu else "cpu")
    queries, key = _layer(shape, tokens, device)
    rule = AttentionRule(shape["head_dim"] ** -0.5, None, None, chunked=False)
    chosen = MOST_LOGITS["cuda" if on_gpu else "other"]
    blocks = {SMALL_BLOCK, MOST_LOGITS["cuda"], chosen}
    things = {f"{most:,}": partial(_finished, queries, key, rule, most) for most in sorted(blocks)}
    for thing in things.values():
        thing()  # reserves the memory
    best = best_in_turn(things, options.rounds)
    name = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} threads"
    print(f"{name}, a text of {tokens:,} tokens, {QUERIES} queries of every head")
    reference = best[f"{SMALL_BLOCK:,}"]
    rows = []
    for most, took in best.items():
        here = " (used here)" if most == f"{chosen:,}" else ""
        rows.append([most + here, f"{took * 1000:.0f} ms", f"{reference / took:.1f}"])
    show(["logits of a block", "a layer", f"times as fast as {SMALL_BLOCK:,}"], rows)


def _layer(
    shape: dict[str, int], tokens: int, device: torch.device
) -> tuple[SampledQueries, Tensor]:
    """Random queries at even positions, and all keys (tokens, key heads, d)."""
    generator = torch.Generator(device).manual_seed(0)
    heads, key_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    width, dtype = shape["head_dim"], torch.bfloat16 if device.type == "cuda" else torch.float32
    number = min(QUERIES, tokens)
    options: dict[str, Any] = {"generator": generator, "device": device, "dtype": dtype}
    vectors = torch.randn((heads, number, width), **options)
    key = torch.randn((tokens, key_heads, width), **options)
    place = np.linspace(0, tokens - 1, number).astype(np.int64)  # (n,)
    ids = torch.randint(0, 1000, (tokens,), generator=generator, device=device)
    rows, start = KindRows(np.zeros(number, np.int64), place), np.zeros(1, np.int64)
    queries = SampledQueries(
        vectors, rows, start, tuple(range(heads)), heads // key_heads, TextTokens(ids)
    )
    return queries, key


def _finished(queries: SampledQueries, key: Tensor, rule: AttentionRule, most: int) -> None:
    chunked_attention(queries, key, rule, most)
    if key.is_cuda:
        torch.cuda.synchronize()
