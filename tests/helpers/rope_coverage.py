"""Coverage of the intervals of plasticity at one position, on simulated heads with RoPE.

    make coverage      # a table of docs/evidence.md, about half an hour

The heads of a simulated dump share a part of their text effects.
"""

import math
from dataclasses import replace

import numpy as np

from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.tables.intervals import half_width
from findings.tables import write_tables
from helpers.interval_coverage import DOCUMENT, Coverage, Influences
from helpers.simulated_rope import RopePopulation, draw_rope_head, true_parts, true_values

COLUMNS = {
    "ap_aligned": "one position",
    "ap_aligned_first20": "first fifth",
    "ap_aligned_last20": "last fifth",
    "ap_aligned_drop": "drop",
    "ap_phase": "phase",
    "ap_attended": "attended",
}
MEAN, POOLED_INSTEAD = "model mean", "pooled"
"""The mean of `ap_aligned` over heads; `ap_pooled` taken for plasticity at one position."""
CASES = {
    "4 texts, ρ = 0.3": RopePopulation(texts=4, rate=0.5),
    "6 texts, ρ = 0.3": RopePopulation(texts=6, rate=0.375),
    "12 texts, ρ = 0.3": RopePopulation(),
    "12 texts, ρ = 0.3, context pairs": RopePopulation(pairs="context"),
    "12 texts, ρ = 0.3, log-uniform sampler": RopePopulation(sampler="log_uniform"),
    "16 texts, ρ = 0.3, 60 % of full length": RopePopulation(texts=16, reach_end=0.6),
    "40 texts, ρ = 0.1": RopePopulation(texts=40, rate=0.0625, similarity=0.1),
}


def measure_rope(population, dumps, heads, truth, **settings):
    """Analyse `heads` heads of `dumps` simulated dumps and compare with counts at one position.

    `truth` are settings of `true_values`, `settings` those of the analysis.
    """
    coverage = Coverage()
    populations = [replace(population, seed=seed) for seed in range(heads)]
    truths = [true_values(one, **truth) for one in populations]
    settings = {"pair_sampling": population.pairs, **settings}
    size = (2, population.texts, population.width)
    for number in range(dumps):
        rng = np.random.default_rng([21, number])
        common = rng.standard_normal(size)
        errors, influences = [], []
        for head, (one, true) in enumerate(zip(populations, truths, strict=True)):
            effects = (common + rng.standard_normal(size)) / math.sqrt(2)
            result = draw_rope_head(one, rng, effects).analyse(head, **settings)
            error, groups = _record(result, true.values, coverage)
            errors.append(error)
            influences.append(groups)
        groups = min(population.texts, len(GROUP_COLUMNS))
        half = half_width(np.linalg.norm(np.mean(influences, axis=0)), groups)
        coverage.add(MEAN, float(np.mean(errors)), float(half))
    return coverage


PARTS = {
    "ap_aligned_drop_position": "from position",
    "ap_aligned_drop_distance": "from distance",
    "ap_aligned_drop": "drop",
}
_FIFTHS = RopePopulation(length=320, bin_size=16)  # whole bins in every fifth, three in the first
_TURNED = replace(_FIFTHS, fastest=0.005, range_of_frequencies=1.5, common=25.0)
FALLS = {
    "position alone": replace(_FIFTHS, fastest=0.0, sizes=(0.4, 0.7, 0.5)),
    "distance alone": replace(_TURNED, drift=0.0, sizes=(0.8, 0.8, 0.5)),
    "both": replace(_TURNED, drift=0.5, sizes=(0.8, 1.2, 0.5)),
    "none": replace(_FIFTHS, drift=0.0, fastest=0.0),
}
"""Heads whose plasticity falls with position, with distance, with both, or does not fall.

Without rotation, the distance of a key has no effect. Without drift, all that changes along the
context is the distance: RoPE turns a query and a key by the difference of their positions.
"""


def measure_parts(population, dumps, heads, each=128, **settings):
    """The drop and its parts of simulated heads: coverage, and the mean true values."""
    coverage = Coverage()
    populations = [replace(population, seed=seed) for seed in range(heads)]
    truths = [true_parts(one, each) for one in populations]
    size = (2, population.texts, population.width)
    for number in range(dumps):
        rng = np.random.default_rng([22, number])
        for head, (one, truth) in enumerate(zip(populations, truths, strict=True)):
            effects = rng.standard_normal(size)
            result = draw_rope_head(one, rng, effects, attended=False).analyse(head, **settings)
            found = Influences.of(result)
            for name, true in truth.items():
                coverage.add(name, found.value[name] - true, found.half[name])
    return coverage, {name: float(np.mean([one[name] for one in truths])) for name in PARTS}


def write_parts():
    """Write the table of the parts of the drop."""
    words = list(PARTS.values())
    titles = [*(f"true {one}" for one in words), *words, *(f"error {one}" for one in words)]
    lines = [f"| plasticity falls with | {' | '.join(titles)} |", "|---" + "|---:" * 9 + "|"]
    for name, population in FALLS.items():
        found, truth = measure_parts(population, dumps=100, heads=8, each=256)
        cells = [f"{truth[one]:+.3f}" for one in PARTS]
        cells += [f"{100 * found.share(one):.0f}" for one in PARTS]
        cells += [f"{found.bias(one):+.4f}" for one in PARTS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    write_tables(DOCUMENT, {"parts of the drop": "\n".join(lines)})


def _record(result, truth, coverage):
    """Record one head; return the error of `ap_aligned` and its influences.

    A quantity has the degrees of freedom of its own groups.
    """
    found = Influences.of(result)
    for name, true in truth.items():
        if name in found.value:  # a fifth can have too few texts
            coverage.add(name, found.value[name] - true, found.half[name])
    error = found.value["ap_pooled"] - truth["ap_aligned"]
    coverage.add(POOLED_INSTEAD, error, found.half["ap_pooled"])
    return found.value["ap_aligned"] - truth["ap_aligned"], found.groups["ap_aligned"]


def main():
    """Write the table of docs/evidence.md."""
    names = [*COLUMNS.values(), MEAN, POOLED_INSTEAD]
    errors = ("ap_aligned", "ap_aligned_drop", "ap_phase", "ap_attended")
    titles = ("error", "of drop", "of phase", "of attended")
    lines = [
        f"| simulated | {' | '.join(names)} | {' | '.join(titles)} |",
        "|---" + "|---:" * (len(names) + len(titles)) + "|",
    ]
    for name, population in CASES.items():
        found = measure_rope(population, dumps=100, heads=8, truth={})
        shares = (100 * found.share(one) for one in (*COLUMNS, MEAN, POOLED_INSTEAD))
        cells = [f"{share:.0f}" for share in shares] + [f"{found.bias(one):+.4f}" for one in errors]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        known = {one: found.share(f"{one} known") for one in COLUMNS}
        print(lines[-1], {one: share for one, share in known.items() if share < 1}, flush=True)
    write_tables(DOCUMENT, {"one position": "\n".join(lines)})
    write_parts()


if __name__ == "__main__":
    main()
