"""Scores of the key pairs of every bin: plasticity of bins and cells, also without each group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attention_plasticity.estimate.quantity import present_groups
from attention_plasticity.estimate.score import (
    Centred,
    counted_plasticity,
    gaussian_plasticity,
    means_of_cells,
    pairs_of_cells,
    score_sums,
    without_each,
)
from attention_plasticity.estimate.sizes import GROUPS
from attention_plasticity.measure.bin_pairs import BinPairs
from attention_plasticity.measure.grid import Grid
from qk_toolkit.arrays import Array


@dataclass(frozen=True)
class Scored:
    """Plasticity of bins and cells: of all texts, and without each group."""

    cells: Array  # (1 + g, b, cells); NaN without a pair
    share: Array  # (1 + g, b, cells) weight of a cell in its bin; they sum to 1, or are all 0
    profile: Array  # (1 + g, b); NaN without a pair, or with too few texts
    counted: Array  # (1 + g, b) without a Gaussian


def score(
    grid: Grid,
    pairs: BinPairs,
    W: npt.NDArray[np.float32],
    frame: Callable[[int], Centred],
    *,
    counted: bool = True,
) -> Scored:
    """Score the pairs of every bin with its queries; `frame` gives the queries of a bin."""
    present = np.flatnonzero(present_groups(grid.group) | present_groups(pairs.group))
    without = without_each(present)  # groups without rows have the value of all groups
    row = np.zeros(1 + GROUPS, np.int64)
    row[1 + present] = 1 + np.arange(len(present))
    shape = (len(without), len(grid), len(pairs.cells))
    used = [n for n, own in enumerate(pairs.of_bin) if len(own) and grid.enough_texts[n]]
    if not used:
        nothing = np.full(shape, np.nan)[row]
        return Scored(nothing, np.zeros(nothing.shape), nothing[:, :, 0], nothing[:, :, 0])
    number = np.concatenate([pairs.of_bin[place] for place in used])  # (pairs,)
    bins = np.repeat(used, [len(pairs.of_bin[place]) for place in used])
    gaussian, counts = np.empty((2, len(without), len(number)))  # (1 + r, pairs) each
    ends = np.searchsorted(bins, used, side="right").tolist()
    for place, begin, end in zip(used, [0, *ends], ends, strict=False):
        sums = score_sums(W.take(number[begin:end], axis=0), frame(place), counted=counted)
        gaussian[:, begin:end] = gaussian_plasticity(sums, without)
        if counted:
            counts[:, begin:end] = counted_plasticity(sums, without)
    of_pairs = [pairs.group] if pairs.seen_by is None else [pairs.group, pairs.seen_by]
    groups = [row[1 + group[number]] - 1 for group in of_pairs]
    slot, slots = bins * shape[2] + pairs.cell[number], shape[1] * shape[2]

    def means(values: Array) -> tuple[Array, Array]:
        cells = means_of_cells(values, slot, slots, *groups).reshape(shape)
        if pairs.of_cells:
            return cells, _mean_of_known(cells)
        return cells, means_of_cells(values, bins, shape[1], *groups)

    cells, profile = means(gaussian)
    weight = (~np.isnan(cells)).astype(np.float64)
    if not pairs.of_cells:
        weight *= pairs_of_cells(slot, slots, len(without), *groups).reshape(shape)
    total = weight.sum(axis=2, keepdims=True)
    of_counts = means(counts)[1] if counted else np.full(profile.shape, np.nan)
    return Scored(
        cells[row], (weight / np.where(total > 0, total, 1.0))[row], profile[row], of_counts[row]
    )


def _mean_of_known(cells: Array) -> Array:
    """(1 + g, b) means over the cells of a bin with pairs."""
    known = ~np.isnan(cells)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, cells, 0.0).sum(axis=2) / known.sum(axis=2))
