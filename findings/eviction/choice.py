"""The choice of the rule of division, from outcomes on the book of the capture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from findings.eviction.budgets import BASELINES, RULES
from findings.eviction.plan import (
    CHOICE,
    FLAT,
    RULE,
    Condition,
    Plan,
    full,
    needles_in,
)
from findings.eviction.results import Results

NEEDLE_WEIGHT = 1.0
"""One more share of found numbers counts as much as a KL that is smaller by a factor of e."""


class Mark(NamedTuple):
    """How good a rule is in some settings."""

    log_kl: float  # mean log of KL / KL of equal budgets
    needles: float  # mean share of numbers that are found; NaN if a model answers none

    @property
    def loss(self) -> float:
        """Smaller is better."""
        return self.log_kl - (0.0 if np.isnan(self.needles) else NEEDLE_WEIGHT * self.needles)


def mark(
    results: Iterable[Results],
    plan: Plan,
    rule: str,
    *,
    book: str = CHOICE,
    contexts: Sequence[int] | None = None,
) -> Mark:
    """The mean over models, contexts, scorers and compressions; missing outcomes are left out."""
    logs, found = [], []
    where = product(contexts or plan.contexts, plan.choice_scorers, plan.choice_compressions)
    for (context, scorer, compression), one in product(list(where), list(results)):
        own, equal = (
            Condition(book, context, scorer, compression, name) for name in (f"{RULE}:{rule}", FLAT)
        )
        if own in one and equal in one:
            logs.append(np.log(one.of(own) / one.of(equal)).mean())
        task = needles_in(book)
        own = own._replace(texts=task)
        if own in one and answers(one, plan, task, context):
            found.append(one.of(own, "right").mean())
    return Mark(float(np.mean(logs)), float(np.mean(found)) if found else float("nan"))


def answers(results: Results, plan: Plan, task: str, context: int) -> bool:
    """Whether a model finds enough of the numbers with a full cache."""
    condition = full(task, context)
    return condition in results and bool(results.of(condition, "right").mean() >= plan.answered)


def best_rule(results: Sequence[Results], plan: Plan, contexts: Sequence[int] | None = None) -> str:
    """The rule with the smallest loss."""
    rules = [rule for rule in RULES if rule not in BASELINES]
    losses = {rule: mark(results, plan, rule, contexts=contexts).loss for rule in rules}
    return min(rules, key=lambda rule: losses[rule])


def preferred(results: Sequence[Results], plan: Plan) -> dict[str, str]:
    """The rule that each part of the choice prefers: one model, or all contexts but one."""
    found = {"all": best_rule(results, plan)}
    if len(results) > 1:
        for number, one in enumerate(results):
            found[f"model {number}"] = best_rule([one], plan)
    if len(plan.contexts) > 1:
        for left in plan.contexts:
            rest = tuple(one for one in plan.contexts if one != left)
            found[f"without {left}"] = best_rule(results, plan, contexts=rest)
    return found
