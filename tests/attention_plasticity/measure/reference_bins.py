"""Plasticity in bins of one head, fitted again from the rows that are left without each group.

Slow and plain on purpose: a loop per bin, pair and group, float64, one covariance per bin. The
package gives the key pairs, with the group of their text and of the query that sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.bin_pairs import BinPairs, SortedKeys, attended_pairs, bin_pairs
from attention_plasticity.measure.grid import Grid
from attention_plasticity.measure.plasticity import grid_of
from attention_plasticity.measure.streams import Purpose, Streams
from attention_plasticity.read.pool import read_pool
from attention_plasticity.read.rows import read_keys, read_queries
from qk_dump.source import open_dump
from reference import pair_plasticity, read_rows
from reference_groups import Expected, layer_facts, leave_out, tokens_of, turned

Keeps = Callable[[int], bool]


class Drawn(NamedTuple):
    """What the package draws."""

    pairs: BinPairs
    attended: BinPairs | None
    bins: list[int]  # numbers of the bins of queries, in the order of `of_bin`


class Reference(NamedTuple):
    """What the tables should hold."""

    metrics: dict[str, Expected]
    bins: dict[str, dict[int, Expected]]  # quantity of the table of influences → bin
    cells: dict[str, dict[tuple[int, int], Expected]]  # column → bin of queries, bin of keys
    distances: dict[str, dict[int, Expected]]  # column → distance in bins


def drawn_by_the_package(root: Path, config: RunnerConfig) -> Drawn:
    """The pairs of layer 0, key head 0."""
    dump = open_dump(root)
    keys = read_keys(dump, 0, 0, config)
    queries = read_queries(dump, 0, 0, keys, config)
    grid, visible = grid_of(queries, keys), queries.visible
    assert isinstance(grid, Grid)
    assert isinstance(visible, Visible)
    rng = Streams(config.seed, 0, 0).rng(Purpose.BIN_PAIRS)
    how = (config.pair_sampling, config.max_rel_dist, config.num_pairs_per_bin, rng)
    pairs = bin_pairs(SortedKeys.of(keys, keys.weight, grid.bins), grid, visible, *how)
    pool, attended = read_pool(dump, 0, 0, keys, config), None
    if pool is not None:
        weight, largest = pool.pair_weight(pool.attention(0)), {}
        for text in set(pool.keys.text.tolist()):
            largest[text] = weight[pool.keys.text == text].max() or 1.0
        weight = weight / [largest[text] for text in pool.keys.text.tolist()]
        rng = Streams(config.seed, 0, 0).rng(Purpose.ATTENDED_PAIRS)
        own = SortedKeys.of(pool.keys, weight, grid.bins)
        [attended] = attended_pairs(own, [weight], grid, visible, 256, [rng])
    return Drawn(pairs, attended, grid.number.tolist())


class Bin:
    """The queries of one bin, and the pairs they are asked about."""

    def __init__(
        self, Q: np.ndarray, group: list[int], pairs: BinPairs, used: np.ndarray, W: np.ndarray
    ) -> None:
        self.Q, self.group, self.of_cells = Q, np.array(group), pairs.of_cells
        self.W = W[used].astype(float)
        self.cell = [int(pairs.cells[code]) for code in pairs.cell[used]]
        texts = [pairs.group[used]] + ([] if pairs.seen_by is None else [pairs.seen_by[used]])
        self.texts = list(zip(*(part.tolist() for part in texts), strict=True))  # of every pair

    def cells(self, keeps: Keeps, *, counted: bool = False) -> dict[int, list[float]]:
        """Plasticity of the pairs of every cell, without the groups that are left out."""
        kept = np.array([keeps(g) for g in self.group.tolist()])
        Q, group = self.Q[kept], self.group[kept]
        found: dict[int, list[float]] = {}
        if len(Q) < 2 or (counted and len(set(group.tolist())) < 2):
            return found
        d = Q.shape[1]
        mean, covariance = Q.mean(axis=0), np.cov(Q, rowvar=False).reshape(d, d)
        differ = group[:, None] != group[None, :]
        for w, cell, texts in zip(self.W, self.cell, self.texts, strict=True):
            if not all(map(keeps, texts)):
                continue
            if counted:  # twice the chance that two queries of different groups disagree
                first = 0.5 * (1 + np.sign(Q @ w))
                disagree = first[:, None] * (1 - first[None, :])
                value = 4.0 * float(disagree[differ].mean())
            else:
                value = pair_plasticity(w, mean, covariance)
            found.setdefault(cell, []).append(value)
        return found

    def value(self, keeps: Keeps, *, counted: bool = False) -> float:
        """Mean over the cells of the mean over pairs, or the mean over all pairs."""
        cells = self.cells(keeps, counted=counted)
        if not cells:
            return math.nan
        if self.of_cells:
            return float(np.mean([np.mean(values) for values in cells.values()]))
        return float(np.mean([value for values in cells.values() for value in values]))


class Frame:
    """All bins of a head, with queries turned to one position or as captured."""

    def __init__(
        self, root: Path, config: RunnerConfig, drawn: Drawn, name: str, size: int
    ) -> None:
        q = read_rows(root, "l00h00q", config)
        self.position, self.group = q.position, q.example_id % 16
        self.weight = np.array([tokens_of(root, float(p), "q") for p in q.position])
        self.code = np.floor(q.position / size).astype(int)
        pairs = drawn.attended if name == "attended" else drawn.pairs
        assert pairs is not None
        texts = len(set(q.example_id.tolist()))
        self.bins: dict[int, Bin] = {}
        for number, used in zip(drawn.bins, pairs.of_bin, strict=True):
            rows = self.code == number
            few = len(set(q.example_id[rows].tolist())) < min(4, texts)
            if few or not len(used):
                continue
            Q, W = q.vectors[rows], pairs.W
            if name != "pooled":
                tau, W = q.position[rows].mean(), pairs.turned
                Q = turned(Q, tau - q.position[rows], layer_facts(root, 0).get("rotary"))
            self.bins[number] = Bin(Q, self.group[rows].tolist(), pairs, used, W)

    def mean(self, inside: np.ndarray, *, counted: bool = False) -> Expected:
        """Mean over the tokens of the queries `inside` (n,), of the bins with a value."""
        used = inside & np.isin(self.code, list(self.bins))

        def value(keeps: Keeps) -> float:
            above = below = 0.0
            kept = used & np.array([keeps(g) for g in self.group.tolist()])
            for number, own in self.bins.items():
                tokens = self.weight[kept & (self.code == number)].sum()
                plasticity = own.value(keeps, counted=counted) if tokens else math.nan
                if not math.isnan(plasticity):
                    above += tokens * plasticity
                    below += tokens
            return above / below if below else math.nan

        return leave_out(value, set(self.group[used].tolist()))

    def weighted_cells(
        self, inside: np.ndarray, keeps: Keeps, *, equal: bool = False
    ) -> dict[tuple[int, int], tuple[float, float]]:
        """Weight and value of every cell in the mean over the tokens of the queries `inside`.

        `equal`: all cells of a bin have the weight of its tokens.
        """
        found = {}
        kept = inside & np.array([keeps(g) for g in self.group.tolist()])
        for number, own in self.bins.items():
            tokens = self.weight[kept & (self.code == number)].sum()
            cells = own.cells(keeps) if tokens else {}
            every = sum(len(values) for values in cells.values())
            for cell, values in cells.items():
                share = 1 / len(cells) if own.of_cells else len(values) / every
                weight = float(tokens * (1.0 if equal else share))
                found[number, cell] = weight, float(np.mean(values))
        return found

    def at_distances(
        self, inside: np.ndarray, keeps: Keeps, *, equal: bool = False
    ) -> dict[int, tuple[float, float]]:
        """Share of the weights and mean value of the cells at every distance in bins."""
        cells = self.weighted_cells(inside, keeps, equal=equal)
        total = sum(weight for weight, _ in cells.values())
        found = {}
        for distance in {q - k for q, k in cells}:
            own = [one for (q, k), one in cells.items() if q - k == distance]
            weight = sum(w for w, _ in own)
            found[distance] = weight / total, sum(w * value for w, value in own) / weight
        return found

    def of_distances(self, inside: np.ndarray, *, equal: bool = False) -> dict[int, Expected]:
        """The mean over the cells of every distance."""
        found = {}
        for distance in self.at_distances(inside, lambda _: True, equal=equal):

            def value(keeps: Keeps, distance: int = distance) -> float:
                own = self.at_distances(inside, keeps, equal=equal)
                return own[distance][1] if distance in own else math.nan

            bins = [q for q, k in self.weighted_cells(inside, lambda _: True) if q - k == distance]
            rows = inside & np.isin(self.code, bins)
            found[distance] = leave_out(value, set(self.group[rows].tolist()))
        return found

    def drop_at_equal_distances(self, first: np.ndarray, last: np.ndarray) -> Expected:
        """The drop between two sets of queries if the distances are those of the first set."""

        def value(keeps: Keeps) -> float:
            one, other = self.at_distances(first, keeps), self.at_distances(last, keeps)
            common = set(one) & set(other)
            parts = (one[d][0] * (one[d][1] - other[d][1]) for d in common)
            return math.fsum(parts) if common else math.nan

        used = (first | last) & np.isin(self.code, list(self.bins))
        return leave_out(value, set(self.group[used].tolist()))

    def near(self, farthest: int) -> dict[int, Expected]:
        """Every bin alone, with its cells at the distances up to `farthest` that most bins have."""
        cells = {number: set(own.cells(lambda _: True)) for number, own in self.bins.items()}
        numbers = [n - k for n, own in cells.items() for k in own]
        usual = {d for d in numbers if d <= farthest and numbers.count(d) >= 0.5 * len(cells)}
        found = {}
        for number, own in self.bins.items():
            if not usual <= {number - cell for cell in cells[number]}:
                continue

            def value(keeps: Keeps, own: Bin = own, number: int = number) -> float:
                left = own.cells(keeps)
                parts = [values for cell, values in left.items() if number - cell in usual]
                if own.of_cells:
                    parts = [[float(np.mean(values))] for values in parts]
                every = [one for values in parts for one in values]
                return float(np.mean(every)) if every else math.nan

            found[number] = leave_out(value, set(own.group.tolist()))
        return found

    def of_bins(self) -> dict[int, Expected]:
        """Every bin alone."""
        return {
            number: leave_out(own.value, set(own.group.tolist()))
            for number, own in self.bins.items()
        }

    def of_cells(self) -> dict[tuple[int, int], Expected]:
        """Every cell alone."""
        found = {}
        for number, own in self.bins.items():
            for cell in set(own.cell):

                def value(keeps: Keeps, own: Bin = own, cell: int = cell) -> float:
                    values = own.cells(keeps).get(cell)
                    return float(np.mean(values)) if values else math.nan

                found[number, cell] = leave_out(value, set(own.group.tolist()))
        return found


def minus(one: Expected, other: Expected) -> Expected:
    """The difference of two quantities of the same texts."""
    influences = [a - b for a, b in zip(one.influences, other.influences, strict=True)]
    error = math.sqrt(math.fsum(u**2 for u in influences))
    return Expected(one.value - other.value, error, influences, min(one.groups, other.groups))


def reference_bins(
    root: Path, config: RunnerConfig, context: int, *, cells: bool = False
) -> Reference:
    """Everything of layer 0, key head 0; `context` are the tokens of the longest text."""
    drawn, size = drawn_by_the_package(root, config), config.bin_size
    assert isinstance(size, int)
    names = ("aligned", "pooled", *([] if drawn.attended is None else ["attended"]))
    frames = {name: Frame(root, config, drawn, name, size) for name in names}
    aligned = frames["aligned"]
    every = np.ones(len(aligned.position), bool)
    fifth = np.minimum(4, 5 * aligned.position // context)
    first, last = (aligned.mean(fifth == number) for number in (0, 4))
    metrics = {
        "ap_aligned": aligned.mean(every),
        "ap_aligned_first20": first,
        "ap_aligned_last20": last,
        "ap_aligned_drop": minus(first, last),
        "ap_aligned_counted": aligned.mean(every, counted=True),
        "ap_pooled": frames["pooled"].mean(every),
    }
    of_position = aligned.drop_at_equal_distances(fifth == 0, fifth == 4)
    of_position = of_position._replace(groups=min(first.groups, last.groups))
    metrics["ap_aligned_drop_position"] = of_position
    metrics["ap_aligned_drop_distance"] = minus(metrics["ap_aligned_drop"], of_position)
    metrics["ap_phase"] = minus(metrics["ap_pooled"], metrics["ap_aligned"])
    if "attended" in frames:
        metrics["ap_attended"] = frames["attended"].mean(every)
    farthest = max(1, math.ceil(context / 5 / size) - 1)
    return Reference(
        metrics,
        {
            "ap_bin": aligned.of_bins(),
            "ap_bin_pooled": frames["pooled"].of_bins(),
            "ap_bin_near": aligned.near(farthest),
        },
        {"plasticity": aligned.of_cells(), "pooled": frames["pooled"].of_cells()} if cells else {},
        {
            "plasticity": aligned.of_distances(every, equal=True),
            "pooled": frames["pooled"].of_distances(every, equal=True),
            "first20": aligned.of_distances(fifth == 0),
            "last20": aligned.of_distances(fifth == 4),
        },
    )
