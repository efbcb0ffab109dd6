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
        attended = attended_pairs(own, grid, visible, 256, rng)
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
    metrics["ap_phase"] = minus(metrics["ap_pooled"], metrics["ap_aligned"])
    if "attended" in frames:
        metrics["ap_attended"] = frames["attended"].mean(every)
    return Reference(
        metrics,
        {"ap_bin": aligned.of_bins(), "ap_bin_pooled": frames["pooled"].of_bins()},
        {"plasticity": aligned.of_cells(), "pooled": frames["pooled"].of_cells()} if cells else {},
    )
