"""Plasticity and static error of a pair from lists of choices: no counts, no formula."""

from __future__ import annotations

from itertools import product

Choices = list[list[float]]
"""Of the queries of every head: 1 for the first key, 0 for the second key, ½ for neither."""


def listed_plasticity(heads: Choices) -> float:
    """Twice the chance that two queries disagree: two heads at random, then different queries."""
    total = 0.0
    for one, other in product(range(len(heads)), repeat=2):
        disagree = []
        for (i, a), (j, b) in product(enumerate(heads[one]), enumerate(heads[other])):
            if (one, i) != (other, j):
                disagree.append(a * (1 - b) + b * (1 - a))
        total += sum(disagree) / len(disagree)
    return 2.0 * total / len(heads) ** 2


def listed_error(heads: Choices) -> float:
    """Every query is predicted by the others; heads have equal weights."""
    errors = []
    for number, head in enumerate(heads):
        own = []
        for query, choice in enumerate(head):
            rest = [
                [c for i, c in enumerate(other) if (place, i) != (number, query)]
                for place, other in enumerate(heads)
            ]
            vote = sum(sum(other) / len(other) for other in rest) / len(heads)
            guess = 0.5 if abs(vote - 0.5) < 1e-12 else float(vote > 0.5)
            own.append(0.5 if 0.5 in (guess, choice) else abs(guess - choice))
        errors.append(sum(own) / len(own))
    return sum(errors) / len(errors)
