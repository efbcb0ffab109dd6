"""`python -m findings.eviction`: prepare, evaluate, and write tables and figures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from findings.eviction.budgets import RULES, write_orders, write_rules
from findings.eviction.plan import (
    COPIES,
    PLASTICITY,
    SMALL,
    Condition,
    Plan,
    choice_phase,
    report_phases,
)
from findings.eviction.prepare import model_folder, prepare, read_heads, read_tokens
from findings.eviction.results import Results, chosen_rule

BUDGETS, CHOSEN = "budgets", "chosen_rule.txt"
_SECONDS = 30.0  # between two lines about progress
STEPS = ("prepare", "evaluate", "tables")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the steps."""
    given = _given(arguments)
    plan = SMALL if given.small else Plan()
    folder = given.output_dir or given.demo_dir / ("eviction-small" if given.small else "eviction")
    if "prepare" in given.steps:
        prepare(given.demo_dir, folder, plan)
    if "evaluate" in given.steps:
        from findings.eviction.contexts import load_model

        model = load_model(model_folder(given.demo_dir), given.device)
        if not evaluate(model, folder, plan, given.seconds):
            raise SystemExit("out of time; run the same command again to continue")
    if "tables" in given.steps:
        from findings.eviction.tables import write_all

        write_all(folder, plan, page=not given.small)


def evaluate(model: Any, folder: Path, plan: Plan, seconds: float = float("inf")) -> bool:
    """Run every condition that has no outcome yet. Whether there was time for all of them."""
    evaluation = _Evaluation(model, folder, plan, time.monotonic() + seconds)
    heads, rules = read_heads(folder), tuple(RULES)
    write_rules(folder / BUDGETS, heads[PLASTICITY])
    if not evaluation.run(choice_phase(plan, rules)):
        return False
    rule = chosen_rule(evaluation.results, plan, rules)
    (folder / CHOSEN).write_text(rule + "\n", encoding="utf-8")
    write_orders(folder / BUDGETS, heads, rule, plan)
    phases = report_phases(plan, rules, *heads[PLASTICITY].shape)
    return all(evaluation.run(phase) for phase in phases)


@dataclass(frozen=True)
class _Evaluation:
    """Runs conditions and keeps their outcomes."""

    model: Any
    folder: Path
    plan: Plan
    end: float  # time after which nothing is begun

    @cached_property
    def results(self) -> Results:
        return Results(self.folder, self.plan)

    def run(self, phase: list[Condition]) -> bool:
        """Whether all conditions of a phase have outcomes. They have the same texts."""
        from findings.eviction.contexts import Contexts

        missing = [one for one in phase if one not in self.results]
        if not missing:
            return True
        first, began = missing[0], time.monotonic()
        length = first.context + (
            self.plan.copied if first.texts == COPIES else self.plan.following
        )
        contexts = Contexts(
            self.model, read_tokens(self.folder, first.texts)[:, :length], first.context
        )
        for scorer in dict.fromkeys(one.scorer for one in missing):
            if not self._run_scorer(contexts, [one for one in missing if one.scorer == scorer]):
                return False
        took = f"{len(missing)} conditions, {time.monotonic() - began:.0f} s"
        print(f"{first.texts}, {first.context} tokens: {took}", file=sys.stderr, flush=True)
        return True

    def _run_scorer(self, contexts: Any, conditions: list[Condition]) -> bool:
        """Whether there was time for the conditions of a scorer, whose scores are computed once."""
        from findings.eviction.presses import press_of, scorer_of

        scorer, said = conditions[0].scorer, time.monotonic()
        scores = contexts.scores(scorer_of(scorer), self.plan.seed)
        for number, condition in enumerate(conditions):
            now = time.monotonic()
            if now > self.end:
                return False
            if now - said > _SECONDS:
                said = now
                print(f"  {scorer}: {number} of {len(conditions)} conditions", file=sys.stderr)
            press = press_of(condition, scores, self.folder / BUDGETS, self.plan)
            self.results.add(condition, contexts.outcomes(press))
        return True


def _given(arguments: Sequence[str] | None) -> argparse.Namespace:
    import torch

    parser = argparse.ArgumentParser(prog="python -m findings.eviction", description=__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cuda", "cpu"], default=device)
    parser.add_argument(
        "--small", action=argparse.BooleanOptionalAction, help="a smaller table; default on a CPU"
    )
    parser.add_argument("--demo_dir", type=Path, default=Path("demo-smollm2"), help="of the model")
    parser.add_argument("--output_dir", type=Path, help="of texts, results and tables")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of the evaluation")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    given = parser.parse_args(arguments)
    if given.small is None:
        given.small = given.device == "cpu"
    return given


if __name__ == "__main__":
    main()
