"""Plasticity at one position by the distance of keys, and the two parts of its drop.

Later queries see keys that are farther away. A cell is a bin of queries and a bin of keys; its
distance is the difference of their numbers. So the drop from the first to the last fifth is the
sum of a part at equal distances, which comes from position, and a part from other distances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attention_plasticity.estimate.quantity import (
    Quantity,
    leave_one_out,
    quantity,
    unknown,
)
from attention_plasticity.estimate.sizes import FIFTHS
from attention_plasticity.measure.bin_pairs import BinPairs
from attention_plasticity.measure.grid import Grid
from attention_plasticity.measure.result import Columns
from attention_plasticity.measure.scores import Scored
from qk_toolkit.arrays import Array, Bools, Ints

NO_COMMON_DISTANCE = "queries of the first and of the last fifth have no distance to keys in common"


@dataclass(frozen=True)
class ByDistance:
    """The cells of some queries by distance: of all texts, and without each group."""

    share: Array  # (1 + g, distances) of the cells, by the weights of the mean over tokens
    plasticity: Array  # (1 + g, distances); NaN without a cell

    @classmethod
    def of(cls, cells: Array, weight: Array, distance: Distances) -> ByDistance:
        """From `cells` and their weights, (1 + g, b, cells) each."""
        total = weight.sum(axis=(1, 2), keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = distance.sums(weight / total)
            above = distance.sums(np.where(weight > 0, cells * weight / total, 0.0))
            return cls(share, above / share)


@dataclass(frozen=True)
class Distances:
    """The distances of cells, in bins. They are the same for all heads at the same places."""

    number: Ints  # (distances,) of those that queries see
    member: Array  # (b · cells, distances) 1 where a cell has a distance
    columns: dict[str, npt.NDArray[np.generic]]  # of the table, without plasticity

    @classmethod
    def of(cls, grid: Grid, pairs: BinPairs) -> Distances:
        """The distances of all cells that queries see."""
        between = grid.number[:, None] - pairs.cells[None, :]  # (b, cells)
        number = np.unique(between[pairs.eligible])
        member = (between.reshape(-1, 1) == number) & pairs.eligible.reshape(-1, 1)
        return cls(number, member.astype(np.float64), _columns(grid, pairs, number, member))

    def sums(self, values: Array) -> Array:
        """(1 + g, distances) sums of `values` (1 + g, b, cells)."""
        return np.asarray(values.reshape(len(values), -1) @ self.member)


def drop_parts(
    grid: Grid, distance: Distances, aligned: Scored, drop: Quantity
) -> tuple[Quantity, Quantity]:
    """The parts of the drop from the first to the last fifth: from position, from distance.

    With A₁(δ), A₅(δ) plasticity at a distance for the queries of these fifths and w₁(δ), w₅(δ) the
    shares of their cells, they are Σ w₁(A₁ − A₅) and Σ (w₁ − w₅)A₅. Distances that one fifth lacks
    belong to the second part. The sum of both parts is the drop.
    """
    first, last = _fifth(grid, aligned, distance, 0), _fifth(grid, aligned, distance, FIFTHS - 1)
    common = (first.share > 0) & (last.share > 0)  # (1 + g, distances)
    if math.isnan(drop.value) or not common[0].any():
        return unknown(), unknown()
    parts = np.where(common, first.share * (first.plasticity - last.plasticity), 0.0)
    position = np.where(common.any(axis=1), parts.sum(axis=1), np.nan)  # (1 + g,)
    known = ~np.isnan(aligned.profile[0])
    weight = grid.weight_of_fifths[0] + grid.weight_of_fifths[FIFTHS - 1]
    found = quantity(position, (weight[:, known].sum(axis=1) > 0) & grid.has_errors)
    of_position = found._replace(groups=min(found.groups, drop.groups))
    return of_position, drop.minus(of_position)


def near_profile(grid: Grid, pairs: BinPairs, aligned: Scored) -> Array:
    """(1 + g, b) plasticity of bins from keys at the distances of the first fifth alone.

    A bin without a cell at one of these distances is NaN, so that all others are compared at equal
    distances.
    """
    known = aligned.share[0] > 0  # (b, cells)
    between = np.where(known, grid.number[:, None] - pairs.cells[None, :], -1)
    near = np.unique(between[known])
    has = (between[:, :, None] == near[near <= grid.bins.near]).any(axis=1)  # (b, distances)
    usual = has[known.any(axis=1)].mean(axis=0) >= 0.5 if known.any() else np.zeros(0, np.bool_)
    used = np.isin(between, near[near <= grid.bins.near][usual])  # (b, cells)
    used &= has[:, usual].all(axis=1)[:, None] & bool(usual.any())
    weight = np.where(used, aligned.share, 0.0)
    with np.errstate(invalid="ignore"):
        values = np.where(weight > 0, aligned.cells * weight, 0.0).sum(axis=2) / weight.sum(axis=2)
    return np.asarray(values)


def distance_columns(
    grid: Grid, distance: Distances, aligned: Scored, pooled: Scored
) -> tuple[Columns, Quantity]:
    """The table of distances, and plasticity at each of them with its errors."""
    tokens = leave_one_out(grid.weight)[:, :, None]  # (1 + g, b, 1)
    present = _present(grid, aligned, distance, grid.weight)
    found = {}
    for name, scored in (("plasticity", aligned), ("pooled", pooled)):
        weight = tokens * (scored.share > 0)
        found[name] = quantity(ByDistance.of(scored.cells, weight, distance).plasticity, present)
    columns = distance.columns | {"n_groups": np.asarray(found["plasticity"].groups)}
    for name, one in found.items():
        columns |= {name: one.value, f"{name}_se": one.standard_error}
    for name, fifth in (("first20", 0), ("last20", FIFTHS - 1)):
        own = _fifth(grid, aligned, distance, fifth)
        there = _present(grid, aligned, distance, grid.weight_of_fifths[fifth])
        value = quantity(own.plasticity, there)
        columns |= {name: value.value, f"{name}_se": value.standard_error}
        columns[f"{name}_share"] = own.share[0]
    return {name: column.tolist() for name, column in columns.items()}, found["plasticity"]


def _columns(
    grid: Grid, pairs: BinPairs, number: Ints, member: Bools
) -> dict[str, npt.NDArray[np.generic]]:
    """What the table says of distances `number` (distances,) of cells."""
    bins = grid.bins
    most = math.inf if pairs.reach is None else pairs.reach - 1
    last = np.minimum((number + 1) * bins.size - 1, min(most, bins.context - 1))
    used = [np.bincount(pairs.cell[own], minlength=len(pairs.cells)) for own in pairs.of_bin]
    return {
        "distance_bin": number,
        "first_distance": np.maximum((number - 1) * bins.size + 1, 0),
        "last_distance": last.astype(np.int64),
        "distance": _mean_distance(grid, pairs, number),
        "n_pairs": np.asarray(np.reshape(used, -1) @ member, np.int64),
    }


def _fifth(grid: Grid, aligned: Scored, distance: Distances, fifth: int) -> ByDistance:
    """The cells of a fifth of the context, with their weights in its mean over tokens."""
    tokens = leave_one_out(grid.weight_of_fifths[fifth])[:, :, None]  # (1 + g, b, 1)
    return ByDistance.of(aligned.cells, tokens * aligned.share, distance)


def _present(grid: Grid, aligned: Scored, distance: Distances, weight: Array) -> Bools:
    """(g, distances) groups with queries, of `weight` (g, b), at each distance."""
    known = (aligned.share[0] > 0).reshape(-1, 1) * distance.member  # (b · cells, distances)
    bins = known.reshape(len(grid), -1, len(distance.number)).any(axis=1)  # (b, distances)
    return np.asarray(((weight > 0) @ bins) & grid.has_errors)


def _mean_distance(grid: Grid, pairs: BinPairs, number: Ints) -> Array:
    """(distances,) tokens from the query to the middle of the keys of a pair, as a mean."""
    sums, numbers = np.zeros((2, len(number)))
    tokens = grid.weight.sum(axis=0)  # (b,)
    for place, used in enumerate(pairs.of_bin):
        away = pairs.distances(used, float(grid.target[place]))  # (pairs,)
        slot = np.searchsorted(number, grid.number[place] - pairs.cells[pairs.cell[used]])
        of_bin = np.bincount(slot, minlength=len(sums))
        total = np.bincount(slot, away, len(sums))
        sums += tokens[place] * np.where(of_bin > 0, total / np.maximum(of_bin, 1), 0.0)
        numbers += tokens[place] * (of_bin > 0)
    return np.where(numbers > 0, sums / np.where(numbers > 0, numbers, 1.0), np.nan)
