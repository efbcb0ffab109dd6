"""Scores of the key pairs of every bin: plasticity of bins and cells, also without each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attention_plasticity.estimate.quantity import present_groups
from attention_plasticity.estimate.score import (
    CellSums,
    Singles,
    counted_plasticity,
    gaussian_plasticity,
    joined,
    score_sums,
)
from attention_plasticity.estimate.sizes import GROUPS
from attention_plasticity.measure.bin_pairs import BinPairs
from attention_plasticity.measure.grid import Grid
from qk_toolkit.arrays import Array

_BLOCK = 1 << 16  # numbers of pairs at a time, so that they stay in the CPU cache


@dataclass(frozen=True)
class Scored:
    """Plasticity of bins and cells of one head: of all texts, and without each group."""

    cells: Array  # (1 + g, b, cells); NaN without a pair
    share: Array  # (1 + g, b, cells) weight of a cell in its bin; they sum to 1, or are all 0
    profile: Array  # (1 + g, b); NaN without a pair, or with too few texts
    counted: Array  # (1 + g, b) without a Gaussian; NaN if it was not counted


def score(
    grid: Grid,
    pairs: BinPairs,
    W: Singles,
    frames: Sequence[Callable[[int], Singles]],
    *,
    counted: bool = True,
) -> list[list[Scored]]:
    """Score the differences `W` (pairs, d) of every bin with its queries, of all heads together.

    Every frame gives the queries (heads, n, d) of a bin. The result is by frame and head. Only
    preferences in the first frame are `counted`.
    """
    heads = len(frames[0](0)) if len(grid) else len(grid.heads)
    with_counts = heads * counted
    present = np.flatnonzero(present_groups(grid.group) | present_groups(pairs.group))
    row = np.zeros(1 + GROUPS, np.int64)  # groups without rows have the value of all groups
    row[1 + present] = 1 + np.arange(len(present))
    of_pairs = [row[1 + pairs.group] - 1]
    if pairs.seen_by is not None:
        of_pairs.append(row[1 + pairs.seen_by] - 1)
    group, groups = row[1 + grid.group] - 1, len(present)
    shape = (1 + groups, len(grid), len(pairs.cells))
    number = np.zeros(shape)
    sums = np.full((len(frames) * heads, *shape), np.nan)
    counts = np.full((with_counts, *shape), np.nan)
    for places in _blocks(grid, pairs, len(sums) * shape[0]):
        parts = []
        for place in places:
            stack = np.concatenate([frame(place) for frame in frames])  # (frames · heads, n, d)
            own, queries = W.take(pairs.of_bin[place], axis=0), group[grid.chosen[place]]
            parts.append(score_sums(own, stack, queries, groups, with_counts))
        scores, used = joined(parts), np.concatenate([pairs.of_bin[place] for place in places])
        bins = np.repeat(places, [len(pairs.of_bin[place]) for place in places])
        slot = bins * shape[2] + pairs.cell[used]
        cells = CellSums(slot, groups, *(one[used] for one in of_pairs))
        where = ..., *np.divmod(cells.cells, shape[2])
        number[where] = cells.pairs
        sums[where] = cells.of(gaussian_plasticity(scores))
        if counted:
            counts[where] = cells.of(counted_plasticity(scores))
    with np.errstate(invalid="ignore", divide="ignore"):
        means, of_counts = sums / number, counts / number  # (…, 1 + g, b, cells)
    known = ~np.isnan(means[0])  # the same for all of the stack
    weight = known * (1.0 if pairs.of_cells else number)
    total = weight.sum(axis=2, keepdims=True)
    share = weight / np.where(total > 0, total, 1.0)  # (1 + g, b, cells)
    profile, of_counts = (_mean(one, share)[:, row] for one in (means, of_counts))
    nothing = np.full(profile.shape[1:], np.nan)
    found = [
        Scored(cell[row], share[row], own, of_counts[one] if one < with_counts else nothing)
        for one, (cell, own) in enumerate(zip(means, profile, strict=True))
    ]
    return [found[start : start + heads] for start in range(0, len(found), heads)]


def _blocks(grid: Grid, pairs: BinPairs, values: int) -> list[list[int]]:
    """The bins with a value, in parts whose pairs have few numbers, `values` for each pair."""
    found: list[list[int]] = []
    size = _BLOCK
    for place, used in enumerate(pairs.of_bin):
        if not (len(used) and grid.enough_texts[place]):
            continue
        if size + len(used) * values > _BLOCK:
            found.append([])
            size = 0
        found[-1].append(place)
        size += len(used) * values
    return found


def _mean(cells: Array, share: Array) -> Array:
    """(…, 1 + g, b) means over the cells of a bin with pairs; NaN without one."""
    sums = np.where(share > 0, cells * share, 0.0).sum(axis=-1)
    return np.where((share > 0).any(axis=-1), sums, np.nan)
