"""Triton kernels of the attention that keys receive; `received_kernel` launches them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def capped(logits, softcap):
    """Logits with a soft-cap, also large ones: softcap · tanh(logits / softcap)."""
    power = tl.exp(-2.0 * tl.abs(logits) / softcap)
    size = softcap * (1.0 - power) / (1.0 + power)
    return tl.where(logits < 0, -size, size)


@triton.jit(do_not_specialize=["length", "n", "segments"])
def query_sums(
    Q, K, POSITION, LOW, KEY_HEADS, SUMS,
    scale, softcap, length, n, segments, group, width, stride_h, stride_s, stride_d,
    CAPPED: tl.constexpr, EXACT: tl.constexpr, TILE: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr, SEGMENT: tl.constexpr,
):  # fmt: skip
    """Sums over the keys of one segment, for a tile of queries of one head.

    SUMS (2, heads, n, segments): the largest logit and Σ exp(logit − largest).
    """
    tile, head, segment = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    line = tile * TILE + tl.arange(0, TILE)
    inside = line < n
    position = tl.load(POSITION + line, mask=inside, other=-1)
    low = tl.load(LOW + line, mask=inside, other=2147483647)
    d = tl.arange(0, WIDTH)
    place = head.to(tl.int64) * n + line
    q = tl.load(
        Q + place[:, None] * width + d[None, :],
        mask=inside[:, None] & (d < width)[None, :],
        other=0.0,
    )
    keys = K + tl.load(KEY_HEADS + head // group).to(tl.int64) * stride_h
    largest = tl.full([TILE], -float("inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    start = tl.maximum(segment * SEGMENT, tl.min(low) // KEYS * KEYS)
    stop = tl.minimum(segment * SEGMENT + SEGMENT, tl.max(position) + 1)
    for block in range(start, stop, KEYS):
        number = block + tl.arange(0, KEYS)
        k = tl.load(
            keys + number.to(tl.int64)[None, :] * stride_s + d[:, None] * stride_d,
            mask=(number < length)[None, :] & (d < width)[:, None],
            other=0.0,
        )
        logits = tl.dot(q, k, input_precision="ieee" if EXACT else "tf32") * scale
        if CAPPED:
            logits = capped(logits, softcap)
        seen = (number[None, :] >= low[:, None]) & (number[None, :] <= position[:, None])
        logits = tl.where(seen, logits, -float("inf"))
        higher = tl.maximum(largest, tl.max(logits, 1))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        decay = tl.exp(tl.where(largest == -float("inf"), base, largest) - base)
        total = total * decay + tl.sum(tl.exp(logits - base[:, None]), 1)
        largest = higher
    target = SUMS + place * segments + segment
    tl.store(target, largest, mask=inside)
    plane = tl.num_programs(1).to(tl.int64) * n * segments
    tl.store(target + plane, total, mask=inside)


@triton.jit(do_not_specialize=["length", "n"])
def key_means(
    Q, K, POSITION, LOW, KEY_HEADS, LSE, FIRST, LAST, RESULT,
    scale, softcap, length, n, group, width, stride_h, stride_s, stride_d,
    CAPPED: tl.constexpr, EXACT: tl.constexpr, TILE: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """RESULT (heads, length): mean weight that the n queries of a head give a block of keys.

    Queries FIRST to LAST (not included) of the block see some of its keys.
    """
    block, head = tl.program_id(0), tl.program_id(1)
    number = block * KEYS + tl.arange(0, KEYS)
    d = tl.arange(0, WIDTH)
    keys = K + tl.load(KEY_HEADS + head // group).to(tl.int64) * stride_h
    k = tl.load(
        keys + number.to(tl.int64)[None, :] * stride_s + d[:, None] * stride_d,
        mask=(number < length)[None, :] & (d < width)[:, None],
        other=0.0,
    )
    total = tl.zeros([KEYS], tl.float32)
    for start in range(tl.load(FIRST + block), tl.load(LAST + block), TILE):
        line = start + tl.arange(0, TILE)
        inside = line < n
        position = tl.load(POSITION + line, mask=inside, other=-1)
        low = tl.load(LOW + line, mask=inside, other=2147483647)
        place = head.to(tl.int64) * n + line
        lse = tl.load(LSE + place, mask=inside, other=0.0)
        q = tl.load(
            Q + place[:, None] * width + d[None, :],
            mask=inside[:, None] & (d < width)[None, :],
            other=0.0,
        )
        logits = tl.dot(q, k, input_precision="ieee" if EXACT else "tf32") * scale
        if CAPPED:
            logits = capped(logits, softcap)
        seen = (number[None, :] >= low[:, None]) & (number[None, :] <= position[:, None])
        total += tl.sum(tl.where(seen, tl.exp(logits - lse[:, None]), 0.0), 0)
    tl.store(RESULT + head.to(tl.int64) * length + number, total / n, mask=number < length)
