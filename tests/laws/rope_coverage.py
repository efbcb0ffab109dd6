"""Coverage of the intervals of plasticity at one position, on simulated heads with RoPE.

    make coverage      # a table of docs/coverage.md, about half an hour

The heads of a simulated dump share a part of their text effects.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from attention_plasticity.measure.result import HeadResult
from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.tables.intervals import half_width
from findings.tables import write_tables
from interval_coverage import DOCUMENT, Coverage, Influences
from simulated_rope import RopePopulation, draw_rope_head, true_values

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


def measure_rope(
    population: RopePopulation, dumps: int, heads: int, truth: dict[str, Any], **settings: Any
) -> Coverage:
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


def _record(
    result: HeadResult, truth: dict[str, float], coverage: Coverage
) -> tuple[float, np.ndarray]:
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


def main() -> None:
    """Write the table of docs/coverage.md."""
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


if __name__ == "__main__":
    main()
