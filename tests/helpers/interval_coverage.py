"""Coverage of the intervals on simulated heads with a known plasticity.

    make coverage      # the tables of docs/evidence.md, about ten minutes

The heads have no RoPE. The heads of a simulated dump share a part of their text effects, as the
heads of a model share their texts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.tables.intervals import HeadColumn, half_width, mean_half_width
from findings.tables import write_tables
from helpers.simulated_heads import Population, analyse, draw_rows, key_head

DOCUMENT = Path(__file__).parents[2] / "docs" / "evidence.md"
COLUMNS = {
    "ap_aligned": "one position",
    "ap_aligned_first20": "first fifth",
    "ap_aligned_last20": "last fifth",
    "ap_aligned_drop": "drop",
    "ap_pooled": "pooled",
    "ap_aligned_counted": "counted",
}
BIN, MEAN, PAIRED = "bin", "model mean", "paired"
QUANTITIES = (BIN, *COLUMNS.values(), MEAN, PAIRED)
SAMPLED_QUANTITIES = ("sampled", "texts alone", "same heads")


@dataclass
class Coverage:
    """How often 95 % intervals contain the truth, and the mean errors of head estimates."""

    hits: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    errors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def share(self, name):
        """The share of intervals that have the true value."""
        return float(np.mean(self.hits[name])) if self.hits[name] else math.nan

    def bias(self, name):
        """The mean error of a value."""
        return float(np.mean(self.errors[name]))

    def add(self, name, error, half):
        """Record an interval. Without one (too few groups), the value is left out."""
        self.hits[f"{name} known"].append(not math.isnan(half))
        if not math.isnan(half):
            self.hits[name].append(bool(abs(error) <= half))
            self.errors[name].append(error)


@dataclass(frozen=True)
class Influences:
    """The table of influences of a head, by quantity."""

    value: dict[str, float]
    half: dict[str, float]  # half of the 95 % interval
    groups: dict[str, np.ndarray]  # (g,)
    bins: list[tuple[int, float, float]]  # bin, value, half of its interval

    @classmethod
    def of(cls, result):
        """From the result of a head."""
        table = result.tables["influences"]
        groups = np.array([table[name] for name in GROUP_COLUMNS]).T  # (rows, g)
        half = half_width(np.linalg.norm(groups, axis=1), table["n_groups"])  # (rows,)
        whole = {
            name: row
            for row, (name, number) in enumerate(zip(table["quantity"], table["bin"], strict=True))
            if math.isnan(number)
        }
        return cls(
            {name: table["value"][row] for name, row in whole.items()},
            {name: float(half[row]) for name, row in whole.items()},
            {name: groups[row] for name, row in whole.items()},
            [
                (int(table["bin"][row]), table["value"][row], float(half[row]))
                for row, name in enumerate(table["quantity"])
                if name == "ap_bin"
            ],
        )


def measure(population, dumps, heads, true_pairs=200_000, **settings):
    """Analyse `heads` heads of `dumps` simulated dumps and compare with the truth.

    The truth of a head comes from `true_pairs` pairs.
    """
    coverage = Coverage()
    populations = [replace(population, seed=seed) for seed in range(heads)]
    truths = [one.true_profile(true_pairs) for one in populations]
    for number in range(dumps):
        rng = np.random.default_rng([11, number])
        errors, influences = [], []
        for head, (one, truth) in enumerate(zip(populations, truths, strict=True)):
            result = _draw(one, rng, number, head, settings)
            error, groups = _head(result, truth, one.buckets, coverage)
            errors.append(error)
            influences.append(groups)
        _means(np.array(errors), np.array(influences), min(population.texts, 16), coverage)
    return coverage


def measure_sampled(population, dumps, heads, eligible, true_pairs=50_000, **settings):
    """Intervals of the mean over `eligible` heads, of which every dump has `heads` random ones.

    `sampled` has the part of the choice of heads, `texts alone` has not. `same heads` is the
    difference of two runs with the same random heads: the second one has other texts and other
    populations.
    """
    coverage = Coverage()
    sides = [[replace(population, seed=eligible * k + i) for i in range(eligible)] for k in (0, 1)]
    profiles = [[one.true_profile(true_pairs) for one in side] for side in sides]
    truths = [[float(np.mean(list(one.values()))) for one in side] for side in profiles]
    for number in range(dumps):
        rng = np.random.default_rng([13, number])
        chosen = np.sort(rng.choice(eligible, heads, replace=False))
        columns = []
        for side in range(2):
            results = [
                _draw(sides[side][head], rng, 2 * number + side, head, settings) for head in chosen
            ]
            columns.append(_column(results, eligible))
        truth = float(np.mean(truths[0]))
        for name, column in (
            ("sampled", columns[0]),
            ("texts alone", replace(columns[0], eligible=None)),
        ):
            mean = column.mean
            coverage.hits[name].append(abs(mean.value - truth) <= mean_half_width(mean))
        difference = columns[0].difference(columns[1], paired=False).mean
        error = abs(difference.value - (truth - float(np.mean(truths[1]))))
        coverage.hits["same heads"].append(error <= mean_half_width(difference))
    return coverage


def _column(results, eligible):
    """`ap_aligned` of some heads."""
    found = [Influences.of(result) for result in results]
    groups = [result.metrics["n_text_groups"] for result in results]
    return HeadColumn(
        tuple((0, head) for head in range(len(results))),
        np.array([one.value["ap_aligned"] for one in found]),
        np.array([one.groups["ap_aligned"] for one in found]),
        np.array(groups, np.float64),
        eligible,
    )


def _draw(population, rng, dump, head, settings):
    """A head whose text effects are half those of the dump, half its own."""
    size = (population.texts, population.width)
    common = np.random.default_rng([12, dump])
    effects = [
        (common.standard_normal(size) + rng.standard_normal(size)) / math.sqrt(2) for _ in range(2)
    ]
    queries = draw_rows(population, "q", rng, effects[0])
    keys = key_head(draw_rows(population, "k", rng, effects[1]))
    return analyse(queries, keys, head, **settings)


def _head(result, truth, buckets, coverage):
    """Record one head; return the error of `ap_aligned` and its influences.

    Bins are as wide as the buckets of the population. Every fifth has whole bins.
    """
    found, cells = Influences.of(result), result.tables["bins"]
    for number, value, half in found.bins:
        coverage.add(BIN, value - truth[number], half)
    tokens = dict(zip(cells["q_bin"], cells["q_weight"], strict=True))
    fifths = [[j for j in tokens if 5 * j // buckets == part] for part in (0, 4)]
    whole = _mean(truth, tokens, list(tokens))
    first, last = (_mean(truth, tokens, chosen) for chosen in fifths)
    true = dict.fromkeys(("ap_aligned", "ap_pooled", "ap_aligned_counted"), whole)
    true |= {"ap_aligned_first20": first, "ap_aligned_last20": last}
    true["ap_aligned_drop"] = first - last
    for name, words in COLUMNS.items():
        coverage.add(words, found.value[name] - true[name], found.half[name])
    return found.value["ap_aligned"] - whole, found.groups["ap_aligned"]


def _means(errors, influences, groups, found):
    """Record the mean over heads, and the difference of two halves of the heads."""
    half = len(errors) // 2
    difference = influences[:half].mean(axis=0) - influences[half:].mean(axis=0)  # (g,)
    for name, error, shares in (
        (MEAN, errors.mean(), influences.mean(axis=0)),
        (PAIRED, errors[:half].mean() - errors[half:].mean(), difference),
    ):
        found.add(name, float(error), float(half_width(np.linalg.norm(shares), groups)))


def _mean(truth, tokens, chosen):
    return sum(tokens[j] * truth[j] for j in chosen) / sum(tokens[j] for j in chosen)


CASES = {
    "4 texts, ρ = 0.3": Population(texts=4, queries=12, keys=12, buckets=10),
    "6 texts, ρ = 0.3": Population(texts=6, queries=8, keys=8, buckets=10),
    "12 texts, ρ = 0.3": Population(buckets=10),
    "12 texts, ρ = 0.3, 40 % reach the end": Population(buckets=10, reach_end=0.4),
    "12 texts, 1 query per text and bucket": Population(buckets=10, queries=1, width=16),
    "40 texts, ρ = 0.1": Population(texts=40, queries=2, similarity=0.1, buckets=10),
    "200 texts, ρ = 0.1": Population(texts=200, queries=1, keys=2, similarity=0.1, buckets=10),
}


SAMPLED_CASES = {
    "12 texts, ρ = 0.3": (Population(), 8, 60),
    "12 texts, ρ = 0.3, most heads": (Population(), 12, 16),
    "40 texts, ρ = 0.1": (Population(texts=40, queries=2, keys=4, similarity=0.1), 6, 60),
}
"""Populations, heads of a dump, and heads from which they are drawn."""


def main():
    """Write the table of docs/evidence.md."""
    errors = {"one position": "error", "drop": "of drop", "counted": "of count"}
    lines = [
        f"| simulated | n_j | {' | '.join((*QUANTITIES, *errors.values()))} |",
        "|---" + "|---:" * (len(QUANTITIES) + len(errors) + 1) + "|",
    ]
    for name, population in CASES.items():
        found = measure(population, dumps=100, heads=24)
        shares = " | ".join(f"{100 * found.share(quantity):.0f}" for quantity in QUANTITIES)
        biases = " | ".join(f"{found.bias(quantity):+.4f}" for quantity in errors)
        size = population.texts * population.queries
        lines.append(f"| {name} | {size} | {shares} | {biases} |")
        print(lines[-1], flush=True)
    write_tables(DOCUMENT, {"coverage": "\n".join(lines)})
    write_sampled()


def write_sampled():
    """Write the table of means over sampled heads."""
    lines = [
        f"| simulated | heads | {' | '.join(SAMPLED_QUANTITIES)} |",
        "|---" + "|---:" * (len(SAMPLED_QUANTITIES) + 1) + "|",
    ]
    for name, (population, heads, eligible) in SAMPLED_CASES.items():
        found = measure_sampled(population, 300, heads, eligible)
        shares = " | ".join(f"{100 * found.share(quantity):.0f}" for quantity in SAMPLED_QUANTITIES)
        lines.append(f"| {name} | {heads} of {eligible} | {shares} |")
        print(lines[-1], flush=True)
    write_tables(DOCUMENT, {"sampled heads": "\n".join(lines)})


if __name__ == "__main__":
    main()
