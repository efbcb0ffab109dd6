"""Coverage of the intervals on simulated heads with a known plasticity.

    make coverage      # the table of docs/coverage.md, about ten minutes

The heads of a simulated dump share a part of their text effects, as the heads of a model share
their texts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from attention_plasticity.head.result import HeadResult
from attention_plasticity.head.texts import DumpTexts
from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.numeric.bins import Bins
from attention_plasticity.run.head_means import gap_is_large
from attention_plasticity.tables.intervals import HeadColumn, mean_half_width
from simulated_heads import BUCKET_SIZE, Population, analyse, draw_rows, key_head, with_attention

DOCUMENT = Path(__file__).parents[1] / "docs" / "coverage.md"
BEGIN, END = "<!-- coverage -->", "<!-- end of coverage -->"
QUANTITIES = ("cell", "AP_j", "overall", "drop", "attended", "model mean", "paired")
QUANTITIES += ("mean, not corrected",)
ATTENDED_HEADS = 4  # of a dump
SAMPLED_BEGIN, SAMPLED_END = "<!-- sampled heads -->", "<!-- end of sampled heads -->"
SAMPLED_QUANTITIES = ("sampled", "texts alone", "same heads")


@dataclass
class Coverage:
    """How often 95 % intervals contain the truth, and the mean errors of head estimates."""

    hits: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    errors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def share(self, name: str) -> float:
        """The share of intervals that have the true value."""
        return float(np.mean(self.hits[name])) if self.hits[name] else math.nan

    def bias(self, name: str) -> float:
        """The mean error of a value."""
        return float(np.mean(self.errors[name]))


def measure(
    population: Population,
    dumps: int,
    heads: int,
    attended_heads: int = ATTENDED_HEADS,
    true_pairs: int = 200_000,
    **settings: Any,
) -> Coverage:
    """Analyse `heads` heads of `dumps` simulated dumps and compare with the truth.

    The truth of a head comes from `true_pairs` pairs; the first heads of a dump have attention.
    """
    coverage = Coverage()
    populations = [replace(population, seed=seed) for seed in range(heads)]
    truths = [one.true_profile(true_pairs) for one in populations]
    groups = min(population.texts, 16)
    reach = float(student.ppf(0.975, groups - 1))
    attended: dict[int, list[dict[str, float]]] = defaultdict(list)
    for number in range(dumps):
        rng = np.random.default_rng([11, number])
        errors, influences, plain = [], [], []
        for head, (one, truth) in enumerate(zip(populations, truths, strict=True)):
            result = _draw(one, rng, number, head, head < attended_heads, settings)
            error, influence = _head(result, truth, reach, coverage)
            errors.append(error)
            influences.append(influence)
            plain.append(error + result.metrics["ap_overall_bias"])
            if head < attended_heads:
                attended[head].append(result.metrics)
        _means(np.array(errors), np.array(influences), np.array(plain), reach, coverage)
    for metrics in attended.values():
        _attended(metrics, reach, coverage)
    return coverage


def measure_sampled(
    population: Population,
    dumps: int,
    heads: int,
    eligible: int,
    true_pairs: int = 50_000,
    **settings: Any,
) -> Coverage:
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
                _draw(sides[side][head], rng, 2 * number + side, head, False, settings)
                for head in chosen
            ]
            columns.append(_column(results, eligible))
        truth = float(np.mean(truths[0]))
        for name, column in (
            ("sampled", columns[0]),
            ("texts alone", replace(columns[0], eligible=None)),
        ):
            mean = column.mean
            coverage.hits[name].append(abs(mean.value - truth) <= mean_half_width(mean))
        difference = columns[0].minus(columns[1], paired=False)
        error = abs(difference.value - (truth - float(np.mean(truths[1]))))
        coverage.hits["same heads"].append(error <= mean_half_width(difference))
    return coverage


def _column(results: list[HeadResult], eligible: int) -> HeadColumn:
    """`ap_overall` of some heads."""
    rows = [
        next(row for row in _influence_rows(result) if row[0] == "ap_overall") for result in results
    ]
    groups = [result.metrics["n_text_groups"] for result in results]
    return HeadColumn(
        tuple((0, head) for head in range(len(results))),
        np.array([row[2] for row in rows]),
        np.array([row[3] for row in rows]),
        np.array([row[4] for row in rows]),
        np.array(groups, np.float64),
        eligible,
    )


def _attended(metrics: list[dict[str, float]], reach: float, found: Coverage) -> None:
    """Record the attended plasticity of one head; the truth is the mean count over all dumps."""
    names = ("ap_attended", "ap_attended_bias", "ap_attended_se", "ap_attended_counted")
    value, bias, error, counted = (np.array([row[name] for row in metrics]) for name in names)
    hits = np.abs(value - bias - counted.mean()) <= reach * error
    found.hits["attended"] += hits.tolist()
    found.errors["attended"] += (value - bias - counted.mean()).tolist()


def _draw(
    population: Population,
    rng: np.random.Generator,
    dump: int,
    head: int,
    attends: bool,
    settings: Any,
) -> HeadResult:
    """A head whose text effects are half those of the dump, half its own."""
    size = (population.texts, population.width)
    common = np.random.default_rng([12, dump])
    effects = [
        (common.standard_normal(size) + rng.standard_normal(size)) / math.sqrt(2) for _ in range(2)
    ]
    queries = draw_rows(population, "q", rng, effects[0])
    keys = key_head(draw_rows(population, "k", rng, effects[1]))
    if attends:
        bins = Bins(BUCKET_SIZE, population.buckets * BUCKET_SIZE)
        keys = replace(keys, all_texts=DumpTexts(bins=bins))
        queries = with_attention(queries, keys)
    return analyse(queries, keys, head, **settings)


def _head(
    result: HeadResult, truth: dict[int, float], reach: float, coverage: Coverage
) -> tuple[float, np.ndarray]:
    """Record one head; return the error of its corrected mean and its influences."""
    cells, metrics = result.buckets, result.metrics
    for bucket, value, error, bias in zip(
        *(cells[name] for name in ("q_bucket", "plasticity", "plasticity_se", "plasticity_bias")),
        strict=True,
    ):
        coverage.hits["cell"].append(abs(value - bias - truth[bucket]) <= reach * error)
    overall = np.zeros(len(GROUP_COLUMNS))
    for name, bucket, value, bias, groups in _influence_rows(result):
        if name == "ap_bucket":
            error = reach * float(np.linalg.norm(groups))
            coverage.hits["AP_j"].append(abs(value - bias - truth[int(bucket)]) <= error)
        elif name == "ap_overall":
            overall = groups
    counts = dict(zip(cells["q_bucket"], cells["n_queries"], strict=True))
    places = dict(zip(cells["q_bucket"], cells["q_position"], strict=True))
    true_mean = _mean(truth, counts, list(counts))
    fifth = [
        [j for j in counts if min(4, int(5 * places[j] / metrics["q_position_max"])) == part]
        for part in (0, 4)
    ]
    true_drop = _mean(truth, counts, fifth[0]) - _mean(truth, counts, fifth[1])
    for name, column, true in (
        ("overall", "ap_overall", true_mean),
        ("drop", "ap_drop", true_drop),
    ):
        value = metrics[column] - metrics[f"{column}_bias"]
        coverage.hits[name].append(abs(value - true) <= reach * metrics[f"{column}_se"])
    error = metrics["ap_overall"] - metrics["ap_overall_bias"] - true_mean
    coverage.errors["plug-in"].append(metrics["ap_overall"] - true_mean)
    coverage.errors["corrected"].append(error)
    coverage.errors["counted"].append(metrics["ap_counted"] - true_mean)
    coverage.hits["flagged"].append(gap_is_large(metrics))
    return error, overall


def _means(
    errors: np.ndarray, influences: np.ndarray, plain: np.ndarray, reach: float, found: Coverage
) -> None:
    """Record the mean over heads, and the difference of two halves of the heads."""
    mean = float(np.linalg.norm(influences.mean(axis=0)))
    found.hits["model mean"].append(abs(errors.mean()) <= reach * mean)
    found.hits["mean, not corrected"].append(abs(plain.mean()) <= reach * mean)
    half = len(errors) // 2
    difference = errors[:half].mean() - errors[half:].mean()
    groups = influences[:half].mean(axis=0) - influences[half:].mean(axis=0)
    found.hits["paired"].append(abs(difference) <= reach * float(np.linalg.norm(groups)))


def _influence_rows(result: HeadResult) -> Iterator[tuple[str, float, float, float, np.ndarray]]:
    table = result.influences
    groups = np.array([table[name] for name in GROUP_COLUMNS]).T
    columns = (table[name] for name in ("quantity", "q_bucket", "value", "bias"))
    yield from zip(*columns, groups, strict=True)


def _mean(truth: dict[int, float], counts: dict[int, int], chosen: list[int]) -> float:
    return sum(counts[j] * truth[j] for j in chosen) / sum(counts[j] for j in chosen)


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


def main() -> None:
    """Write the table of docs/coverage.md."""
    lines = [
        f"| simulated | n_j | {' | '.join(QUANTITIES)} | value | corrected | counted |",
        "|---" + "|---:" * (len(QUANTITIES) + 4) + "|",
    ]
    for name, population in CASES.items():
        found = measure(population, dumps=100, heads=24)
        shares = " | ".join(f"{100 * found.share(quantity):.0f}" for quantity in QUANTITIES)
        biases = " | ".join(
            f"{found.bias(kind):+.4f}" for kind in ("plug-in", "corrected", "counted")
        )
        size = population.texts * population.queries
        lines.append(f"| {name} | {size} | {shares} | {biases} |")
        print(lines[-1], flush=True)
    write_table(lines, BEGIN, END)
    write_sampled()


def write_sampled() -> None:
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
    write_table(lines, SAMPLED_BEGIN, SAMPLED_END)


def write_table(lines: list[str], begin: str, end: str) -> None:
    """Put a table between two marks of the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    head, rest = text.split(begin, 1)
    table = "\n".join(lines)
    text = f"{head}{begin}\n\n{table}\n\n{end}{rest.split(end, 1)[1]}"
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
