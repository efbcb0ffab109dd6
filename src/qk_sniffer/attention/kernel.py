"""The attention of sampled queries on CUDA, in Triton.

The distances from a query to its keys are divided into segments: one per distance bin, long bins in
several parts. A program takes a tile of queries that share a key head, and the keys of one
segment, block by block, with a running maximum and running sums. Segments of short distances have
narrow tiles, because a program reads all keys between the first and the last query of its tile. A
second kernel adds up the segments, and a third one finds the largest logit in its block. Memory
holds six numbers per query and segment, and no logits.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from qk_dump.columns import MASS_BINS, SINK_TOKENS, first_distances
from qk_sniffer.attention.queries import SampledQueries
from qk_sniffer.attention.totals import ARGMAX_PLACE, COLUMNS
from qk_sniffer.attention.triton_code import combine, locate, segment_sums
from qk_sniffer.device_copies import to_device
from qk_sniffer.engines.engine import AttentionRule
from qk_sniffer.sampling.rows import KindRows
from qk_toolkit.arrays import Ints

_LONGEST_SEGMENT = 16_384  # distances
_WIDE_SPAN = 8192  # positions from the first to the last query of a wide tile, at most
_NARROW_SPAN = 256  # the same of a narrow tile
_KEYS = 64  # keys of a step
_LARGEST_TILE = 64  # queries of all heads
_SMALLEST_TILE = 16  # the least that a matrix product can have
_ROWS_PER_PROGRAM = 16  # of the second kernel


class _Segments(NamedTuple):
    """Ranges of distances. Two of them are no ranges: they hold the first tokens, and token 0."""

    first: Tensor  # (segments,) smallest distance
    last: Tensor  # (segments,) largest distance
    bin: Tensor  # (segments,) distance bin; -1 for the first tokens, -2 for token 0
    ends: tuple[int, ...]  # largest distances in host memory, descending

    def longer_than(self, span: int) -> int:
        """How many segments, from the first on, have keys at larger distances than `span`."""
        return sum(end > span for end in self.ends)


class _Tiles(NamedTuple):
    """Groups of neighbouring queries of one text."""

    table: Tensor  # (tiles, 3) first token of the text, first row, number of rows
    rows: int  # most rows of a tile
    span: int  # positions from the first to the last query of a tile, about


def kernel_attention(queries: SampledQueries, key: Tensor, rule: AttentionRule) -> Tensor:
    """Attention columns (heads, n, COLUMNS), as `chunked_attention` computes them."""
    vectors, rows, starts, heads, group, tokens = queries
    device, vectors = vectors.device, vectors.contiguous()
    number, n, width = vectors.shape
    length = int(rows.position.max()) + 1
    reach = length if rule.window is None else min(length, rule.window)
    segments = _segments(reach.bit_length(), device)
    members = _members(heads, group, device)  # (key heads, 1 + group)
    size = members.shape[1] - 1
    position = to_device(rows.position.astype(np.int32), device)  # (n,)
    text = to_device(starts[rows.sequence].astype(np.int32), device)  # (n,) its first token
    low = rule.first_visible(position)  # (n,)
    count = len(segments.bin)
    by_token = tokens is not None
    sums = torch.empty((6 if by_token else 4, number, n, count), dtype=torch.float32, device=device)
    duplicates, inductions = (position, position)  # not read without tokens
    if tokens is not None:
        duplicates, inductions = tokens.counts(text, position, low)  # (n,), (n,)
    columns = torch.empty((number, n, COLUMNS), dtype=torch.float32, device=device)
    factors = (rule.scale, rule.softcap or 1.0)
    options = {
        "CAPPED": rule.softcap is not None,
        "KEYS": _KEYS,
        "WIDTH": max(16, triton.next_power_of_2(width)),
    }
    wide, narrow = (_tiles(rows, starts, size, span, device) for span in (_WIDE_SPAN, _NARROW_SPAN))
    long = segments.longer_than(wide.span)  # the number of segments with wide tiles
    with torch.cuda.device(device if vectors.is_cuda else -1):
        for tiles, begin, end in ((wide, 0, long), (narrow, long, count)):
            tile = max(_SMALLEST_TILE, triton.next_power_of_2(tiles.rows * size))
            segment_sums[(len(tiles.table), len(members), end - begin)](
                *(vectors, key, position, low, position if tokens is None else tokens.ids),
                *(members, tiles.table, segments.first, segments.last, segments.bin, sums),
                *(*factors, len(key), n, number, count, begin, size, width, *key.stride()),
                EXACT=vectors.dtype == torch.float32,
                BY_TOKEN=by_token,
                TILE=tile,
                SINK_TOKENS=SINK_TOKENS,
                num_warps=4 if tile <= _LARGEST_TILE else 8,
                num_stages=2 if width > 128 or vectors.dtype == torch.float32 else 3,
                **options,
            )
        sinks = vectors if rule.sinks is None else _sinks(rule.sinks, heads, device)
        combine[(triton.cdiv(number * n, _ROWS_PER_PROGRAM),)](
            *(sums, segments.bin, sinks, duplicates, inductions, columns, number * n, n, count),
            HAS_SINKS=rule.sinks is not None,
            BY_TOKEN=by_token,
            ROWS=_ROWS_PER_PROGRAM,
            SEGMENTS=triton.next_power_of_2(count),
            BINS=MASS_BINS,
            COLUMNS=COLUMNS,
        )
        key_heads = _key_heads(heads, group, device)  # (heads,)
        locate[(n, number)](
            *(vectors, key, position, low, text, key_heads, columns),
            *(*factors, len(key), n, width, *key.stride()),
            PLACE=ARGMAX_PLACE,
            COLUMNS=COLUMNS,
            **options,
        )
    return columns


@cache
def _segments(bits: int, device: torch.device) -> _Segments:
    """The segments for distances below 2^bits."""
    starts = [*first_distances(), 1 << 31]
    found: list[tuple[int, int, int]] = []
    for number, (begin, end) in enumerate(pairwise(starts)):
        if begin >= 1 << bits:
            break
        end = min(end, 1 << bits)
        found += [
            (part, min(part + _LONGEST_SEGMENT, end) - 1, number)
            for part in range(begin, end, _LONGEST_SEGMENT)
        ]
    found += [(0, (1 << 31) - 1, -1), (0, (1 << 31) - 1, -2)]
    found.sort(key=lambda segment: segment[1], reverse=True)  # long segments start first
    first, last, number_of_bin = (to_device(part, device) for part in np.array(found, np.int32).T)
    return _Segments(first, last, number_of_bin, tuple(end for _, end, _ in found))


@cache
def _members(heads: tuple[int, ...], group: int, device: torch.device) -> Tensor:
    """(used key heads, 1 + most): the key head, then the places of its query heads, or -1."""
    by_key_head: dict[int, list[int]] = {}
    for place, head in enumerate(heads):
        by_key_head.setdefault(head // group, []).append(place)
    most = max(map(len, by_key_head.values()))
    table = np.full((len(by_key_head), 1 + most), -1, np.int32)
    for row, (key_head, places) in zip(table, by_key_head.items(), strict=True):
        row[0] = key_head
        row[1 : 1 + len(places)] = places
    return to_device(table, device)


@cache
def _key_heads(heads: tuple[int, ...], group: int, device: torch.device) -> Tensor:
    """(heads,) the key head of every query head."""
    return to_device(np.array([head // group for head in heads], np.int32), device)


def _tiles(rows: KindRows, starts: Ints, size: int, longest: int, device: torch.device) -> _Tiles:
    """Tiles of neighbouring rows; they are smaller where positions are far apart.

    `size` query heads share a key head. All keys between the first and the last query of a tile are
    read once per segment, so a tile spans about `longest` positions at most.
    """
    texts = list(rows.texts())
    span = sum(int(rows.position[end - 1] - rows.position[begin]) for begin, end in texts)
    gap = span / max(1, len(rows) - len(texts))
    most = max(1, _LARGEST_TILE // size)
    wanted = min(most, max(1, int(longest / max(gap, 1.0))))
    per_tile = 1 << (wanted.bit_length() - 1)
    table = [
        (int(starts[rows.sequence[begin]]), start, min(per_tile, end - start))
        for begin, end in texts
        for start in range(begin, end, per_tile)
    ]
    return _Tiles(to_device(np.array(table, np.int32), device), per_tile, int(gap * (per_tile - 1)))


def _sinks(sinks: Tensor, heads: tuple[int, ...], device: torch.device) -> Tensor:
    return sinks.to(device, torch.float32)[list(heads)].contiguous()
