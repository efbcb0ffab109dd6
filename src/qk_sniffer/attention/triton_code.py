"""Triton kernels; `kernel` launches the first three of them, `received_kernel` the last two."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def capped(logits, softcap):
    """Logits with a soft-cap, also large ones: softcap · tanh(logits / softcap)."""
    power = tl.exp(-2.0 * tl.abs(logits) / softcap)
    size = softcap * (1.0 - power) / (1.0 + power)
    return tl.where(logits < 0, -size, size)


@triton.jit(do_not_specialize=["tokens", "n", "heads", "segments", "offset"])
def segment_sums(
    Q, K, POSITION, LOW, TOKENS, MEMBERS, TILES, FIRST, LAST, BIN, SUMS,
    scale, softcap, tokens, n, heads, segments, offset, size, width,
    stride_s, stride_h, stride_d,
    CAPPED: tl.constexpr, EXACT: tl.constexpr, BY_TOKEN: tl.constexpr, TILE: tl.constexpr,
    KEYS: tl.constexpr, WIDTH: tl.constexpr, SINK_TOKENS: tl.constexpr,
):  # fmt: skip
    """Sums over the keys of one segment, for a tile of queries that share a key head.

    SUMS (4 or 6, heads, n, segments): the largest logit, Σ p and Σ p · (logit − largest) with
    p = exp(logit − largest), the first key of the block with the largest logit as the bits of an
    int32, and, BY_TOKEN, Σ p over keys with the token of the query and over induction keys. K
    (tokens, key heads, width) and TOKENS (tokens,) are those of all texts. The first program takes
    segment `offset`.
    """
    tile, key_head = tl.program_id(0), tl.program_id(1)
    segment = tl.program_id(2) + offset
    text = tl.load(TILES + 3 * tile)  # its first token
    first_row = tl.load(TILES + 3 * tile + 1)
    row_count = tl.load(TILES + 3 * tile + 2)
    nearest, farthest = tl.load(FIRST + segment), tl.load(LAST + segment)
    kind = tl.load(BIN + segment)  # -1: the first tokens, -2: token 0
    members = MEMBERS + key_head * (size + 1)

    line = tl.arange(0, TILE)
    row = line // size  # query of the tile
    inside = row < row_count
    head = tl.load(members + 1 + line % size, mask=inside, other=-1)
    inside = inside & (head >= 0)
    row = first_row + row
    position = tl.load(POSITION + row, mask=inside, other=0)
    # a line sees keys from `begin` to `end`, both included
    begin = tl.load(LOW + row, mask=inside, other=0)
    begin = tl.maximum(begin, position - farthest)
    end = position - nearest
    if kind < 0:
        end = tl.minimum(end, tl.where(kind == -1, SINK_TOKENS - 1, 0))
    begin = tl.where(inside, begin, 2147483647)
    end = tl.where(inside, end, -1)
    start, stop = tl.min(begin), tl.max(end) + 1

    d = tl.arange(0, WIDTH)
    place = head.to(tl.int64) * n + row
    q = tl.load(
        Q + place[:, None] * width + d[None, :],
        mask=inside[:, None] & (d < width)[None, :],
        other=0.0,
    )
    keys = K + text.to(tl.int64) * stride_s + tl.load(members).to(tl.int64) * stride_h
    length = tokens - text  # no key can be read beyond
    largest = tl.full([TILE], -float("inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    slope = tl.zeros([TILE], tl.float32)
    highest = tl.full([TILE], -1, tl.int32)
    duplicate = tl.zeros([TILE], tl.float32)
    induction = tl.zeros([TILE], tl.float32)
    ids = TOKENS + text
    own = position
    if BY_TOKEN:
        own = tl.load(ids + position, mask=inside, other=-2)
    for block in range(start // KEYS * KEYS, stop, KEYS):
        number = block + tl.arange(0, KEYS)
        k = tl.load(
            keys + number.to(tl.int64)[None, :] * stride_s + d[:, None] * stride_d,
            mask=(number < length)[None, :] & (d < width)[:, None],
            other=0.0,
        )
        logits = tl.dot(q, k, input_precision="ieee" if EXACT else "tf32") * scale
        if CAPPED:
            logits = capped(logits, softcap)
        seen = (number[None, :] >= begin[:, None]) & (number[None, :] <= end[:, None])
        logits = tl.where(seen, logits, -float("inf"))
        here = tl.max(logits, 1)
        highest = tl.where(here > largest, block, highest)
        higher = tl.maximum(largest, here)
        base = tl.where(higher == -float("inf"), 0.0, higher)
        below = logits - base[:, None]
        power = tl.exp(below)
        old = tl.where(largest == -float("inf"), base, largest) - base
        decay = tl.exp(old)
        slope = (slope + total * old) * decay + tl.sum(tl.where(power > 0.0, power * below, 0.0), 1)
        total = total * decay + tl.sum(power, 1)
        if BY_TOKEN:
            token = tl.load(ids + number, mask=number < length, other=-1)
            same = token[None, :] == own[:, None]  # also the query itself: the bin of distance 0
            duplicate = duplicate * decay + tl.sum(tl.where(same, power, 0.0), 1)
            inner = (number > 0) & (number <= length)
            previous = tl.load(ids + number - 1, mask=inner, other=-1)
            follows = previous[None, :] == own[:, None]
            induction = induction * decay + tl.sum(tl.where(follows, power, 0.0), 1)
        largest = higher
    target = SUMS + place * segments + segment
    plane = heads.to(tl.int64) * n * segments
    tl.store(target, largest, mask=inside)
    tl.store(target + plane, total, mask=inside)
    tl.store(target + 2 * plane, slope, mask=inside)
    tl.store(target + 3 * plane, highest.to(tl.float32, bitcast=True), mask=inside)
    if BY_TOKEN:
        tl.store(target + 4 * plane, duplicate, mask=inside)
        tl.store(target + 5 * plane, induction, mask=inside)


@triton.jit(do_not_specialize=["rows", "n", "segments"])
def combine(
    SUMS, BIN, SINKS, DUPLICATES, INDUCTIONS, RESULT, rows, n, segments,
    HAS_SINKS: tl.constexpr, BY_TOKEN: tl.constexpr, ROWS: tl.constexpr, SEGMENTS: tl.constexpr,
    BINS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Attention columns RESULT (heads, n, COLUMNS) of some queries, from their segments.

    DUPLICATES and INDUCTIONS (n,) are numbers of keys. The place of the largest logit is the first
    key of its block; `locate` replaces it.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    segment = tl.arange(0, SEGMENTS)
    inside = (row < rows)[:, None] & (segment < segments)[None, :]
    source = SUMS + row.to(tl.int64)[:, None] * segments + segment[None, :]
    plane = rows.to(tl.int64) * segments
    numbers = tl.load(BIN + segment, mask=segment < segments, other=-3)
    largest = tl.load(source, mask=inside, other=-float("inf"))
    total = tl.load(source + plane, mask=inside, other=0.0)
    slope = tl.load(source + 2 * plane, mask=inside, other=0.0)
    is_bin = (numbers >= 0)[None, :]
    top = tl.max(tl.where(is_bin, largest, -float("inf")), 1)
    below = tl.where(largest == -float("inf"), 0.0, largest - top[:, None])
    decay = tl.where(largest == -float("inf"), 0.0, tl.exp(below))
    share = decay * total  # (rows, segments)
    whole = tl.sum(tl.where(is_bin, share, 0.0), 1)
    change = tl.sum(tl.where(is_bin, decay * (slope + total * below), 0.0), 1)
    lse = top + tl.log(whole)
    if HAS_SINKS:
        sink = tl.load(SINKS + row // n, mask=row < rows, other=0.0)
        higher = tl.maximum(lse, sink)
        lse = higher + tl.log(tl.exp(lse - higher) + tl.exp(sink - higher))
    unit = tl.exp(top - lse)
    entropy = tl.maximum(unit * (whole * (lse - top) - change), 0.0)
    result = RESULT + row.to(tl.int64) * COLUMNS
    tl.store(result, lse, mask=row < rows)
    tl.store(result + 1, top, mask=row < rows)
    tl.store(result + 2, entropy, mask=row < rows)
    at_start = tl.sum(tl.where((numbers == -1)[None, :], share, 0.0), 1)
    tl.store(result + 3, unit * at_start, mask=row < rows)
    for number in tl.static_range(BINS):
        mass = unit * tl.sum(tl.where((numbers == number)[None, :], share, 0.0), 1)
        tl.store(result + 4 + number, mass, mask=row < rows)
    first = tl.sum(tl.where((numbers == -2)[None, :], share, 0.0), 1)
    tl.store(result + 4 + BINS, unit * first, mask=row < rows)
    highest = tl.load(source + 3 * plane, mask=inside, other=0.0).to(tl.int32, bitcast=True)
    at_top = is_bin & inside & (largest == top[:, None])
    place = tl.min(tl.where(at_top, highest, 2147483647), 1)
    tl.store(result + 7 + BINS, place.to(tl.float32, bitcast=True), mask=row < rows)
    if BY_TOKEN:
        duplicate = tl.load(source + 4 * plane, mask=inside, other=0.0)
        induction = tl.load(source + 5 * plane, mask=inside, other=0.0)
        duplicate_mass = unit * tl.sum(
            tl.where((numbers > 0)[None, :], decay * duplicate, 0.0), 1
        )  # without the query itself
        induction_mass = unit * tl.sum(tl.where(is_bin, decay * induction, 0.0), 1)
        duplicates = tl.load(DUPLICATES + row % n, mask=row < rows, other=0)
        inductions = tl.load(INDUCTIONS + row % n, mask=row < rows, other=0)
    else:
        duplicate_mass = tl.full([ROWS], float("nan"), tl.float32)
        induction_mass = tl.full([ROWS], float("nan"), tl.float32)
        duplicates = tl.full([ROWS], -1, tl.int32)
        inductions = tl.full([ROWS], -1, tl.int32)
    tl.store(result + 5 + BINS, duplicate_mass, mask=row < rows)
    tl.store(result + 6 + BINS, induction_mass, mask=row < rows)
    tl.store(result + 8 + BINS, duplicates.to(tl.float32, bitcast=True), mask=row < rows)
    tl.store(result + 9 + BINS, inductions.to(tl.float32, bitcast=True), mask=row < rows)


@triton.jit(do_not_specialize=["n", "tokens"])
def locate(
    Q, K, POSITION, LOW, TEXT, KEY_HEADS, RESULT,
    scale, softcap, tokens, n, width, stride_s, stride_h, stride_d,
    CAPPED: tl.constexpr, PLACE: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Replace the block of the largest logit in column PLACE by the first key that has it."""
    row, head = tl.program_id(0), tl.program_id(1)
    target = RESULT + (head.to(tl.int64) * n + row) * COLUMNS + PLACE
    block = tl.load(target).to(tl.int32, bitcast=True)
    number = block + tl.arange(0, KEYS)
    seen = (number >= tl.load(LOW + row)) & (number <= tl.load(POSITION + row))
    d = tl.arange(0, WIDTH)
    q = tl.load(Q + (head.to(tl.int64) * n + row) * width + d, mask=d < width, other=0.0)
    text = tl.load(TEXT + row)
    keys = K + text.to(tl.int64) * stride_s
    keys += tl.load(KEY_HEADS + head).to(tl.int64) * stride_h
    k = tl.load(
        keys + number.to(tl.int64)[:, None] * stride_s + d[None, :] * stride_d,
        mask=(number < tokens - text)[:, None] & (d < width)[None, :],
        other=0.0,
    )
    logits = tl.sum(q[None, :].to(tl.float32) * k.to(tl.float32), 1) * scale  # (KEYS,)
    if CAPPED:
        logits = capped(logits, softcap)
    logits = tl.where(seen, logits, -float("inf"))
    first = tl.min(tl.where(logits == tl.max(logits, 0), number, 2147483647), 0)
    tl.store(target, first.to(tl.float32, bitcast=True))


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
