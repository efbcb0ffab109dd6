"""Evict keys of SmolLM2-135M and measure the damage: `make evidence`.

The page is docs/findings-compression.md. Which keys go is decided by scores that need no query, and
how many each key head keeps by values of the toolkit's tables. The outcome is the KL divergence
between the predictions of the full and of the evicted model. Results are appended to one file, so
that a killed run continues and gives the same tables. On a CPU the default is `--small`: a smaller
table, whose numbers do not go into the page.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from compression_conditions import SMALL, Plan, eviction, phases
from compression_eviction import EvaluatedText, load_model
from compression_inputs import Inputs
from compression_results import Results

PAGE = Path("docs/findings-compression.md")
STEPS = ("prepare", "evaluate", "tables")


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare, evaluate, and write tables and figures."""
    given = _given(arguments)
    plan = SMALL if given.small else Plan()
    default = given.demo_dir / ("compression-small" if given.small else "compression")
    folder = given.output_dir or default
    if "prepare" in given.steps:
        from compression_preparation import prepare  # needs the toolkit; the next step does not

        prepare(given.demo_dir, Inputs(folder), plan, given.device)
    if "evaluate" in given.steps:
        model = load_model(next((given.demo_dir / "model").iterdir()), given.device)
        evaluate(model, folder, plan)
    if "tables" in given.steps:
        from compression_tables import write_all

        write_all(folder, plan, None if given.small else PAGE)


def evaluate(model: Any, folder: Path, plan: Plan) -> None:
    """Run every condition on every text that has no result yet."""
    results, inputs = Results(folder, plan), Inputs(folder)
    heads, texts = inputs.heads(), inputs.tokens("evaluation")
    for phase in phases(plan, heads["static_error"].shape):
        for number, (text, tokens) in enumerate(texts.items()):
            missing = results.missing(text, phase)
            if not missing:
                continue
            began = time.monotonic()
            ranks = inputs.ranks(text)
            evaluated = EvaluatedText(model, tokens, plan.first)
            for condition in missing:
                kept = eviction(condition, plan, ranks, heads, number)
                results.add(text, condition, evaluated.outcome(kept))
            seconds = f"{time.monotonic() - began:.0f} s"
            print(f"{text}: {len(missing)} conditions, {seconds}", file=sys.stderr, flush=True)


def _given(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cuda", "cpu"], default=device)
    parser.add_argument(
        "--small", action=argparse.BooleanOptionalAction, help="a smaller table; default on a CPU"
    )
    parser.add_argument("--demo_dir", type=Path, default=Path("demo-smollm2"), help="of the model")
    parser.add_argument("--output_dir", type=Path, help="of results and tables")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    given = parser.parse_args(arguments)
    if given.small is None:
        given.small = given.device == "cpu"
    return given


if __name__ == "__main__":
    main()
