"""Plasticity and static error of a pair from lists of choices: no counts, no formula."""

import math
from itertools import product

Choices = list[list[tuple[int, float]]]
"""Of the queries of every head: group of texts, and 1 for the first key, 0 for the second key, ½
for neither."""


def listed_plasticity(heads):
    """Twice the chance that queries of different groups disagree, as a mean over two heads."""
    found = []
    for one, other in product(heads, repeat=2):
        disagree = [a * (1 - b) + b * (1 - a) for (g, a), (h, b) in product(one, other) if g != h]
        found.append(_mean(disagree))
    return 2.0 * _mean(found)


def listed_error(heads):
    """Every query is predicted by those of other groups; heads have equal weights."""
    return _mean([_mean([_error(heads, *query) for query in head]) for head in heads])


def _error(heads, group, choice):
    vote = _mean([_mean([c for g, c in other if g != group]) for other in heads])
    if math.isnan(vote):
        return math.nan
    guess = 0.5 if abs(vote - 0.5) < 1e-12 else float(vote > 0.5)
    return 0.5 if 0.5 in (guess, choice) else abs(guess - choice)


def _mean(values):
    return sum(values) / len(values) if values else math.nan
