"""Roles of heads: which score and which threshold make a head an induction head, and so on.

A head has the first role of `ROLES` whose score reaches its threshold. Scores on repeated tokens
come before those on texts, if they are known. Sources of the thresholds are in docs/method.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

UNSURE, MIXED = "unsure", "mixed"


@dataclass(frozen=True)
class Role:
    """A role, the column that decides it, and the threshold that this column must reach."""

    name: str
    meaning: str  # after "the head attends to"
    column: str
    threshold: float
    repeated_column: str | None = None  # decides instead, if it is known
    repeated_threshold: float = math.nan


ROLES = (
    Role(
        "induction",
        "the token after an earlier occurrence of the query's token",
        "induction_excess",
        0.2,
        "repeated_induction",
        0.4,
    ),
    Role(
        "duplicate",
        "earlier occurrences of the query's token",
        "duplicate_excess",
        0.2,
        "repeated_duplicate",
        0.4,
    ),
    Role("previous", "the previous token", "previous_mass", 0.4),
    Role("self", "its own token", "self_mass", 0.4),
    Role("local", "tokens 2 to 7 before the query", "local_mass", 0.4),
    Role("far", "distant tokens that are no sinks", "far_mass", 0.4),
    Role("sink", "the first token, on which most queries rest", "sink_rate", 0.5),
)
RESTING = ("far", "sink", MIXED)
"""Roles of a head whose attention rests somewhere while no token repeats. An induction head can
look like one of these on texts; only its score on repeated tokens tells them apart."""
OPEN = "unsure: an interval contains a threshold"
REPEATED_DECIDE = "unsure: repeated tokens decide"
NO_ERRORS = "unsure: too few texts for errors"
"""Why a role is unsure. The second is said of a head with a resting role if repeated tokens are not
known, the third if the scores of a head have no errors."""
NAMES = (*(role.name for role in ROLES), MIXED)
"""The labels of heads in the order of legends; also `unsure`."""


def default_thresholds() -> dict[str, float]:
    """Thresholds by their names: those of roles, and of `repeated_induction` and the like."""
    found: dict[str, float] = {}
    for role in ROLES:
        found[role.name] = role.threshold
        if role.repeated_column is not None:
            found[role.repeated_column] = role.repeated_threshold
    return found


def check_thresholds(given: Mapping[str, float]) -> None:
    """Raise a `ValueError` for an unknown name, and for a value that is not from 0 to 1."""
    known = default_thresholds()
    for name, value in given.items():
        if name not in known:
            raise ValueError(
                f"role_thresholds: {name[:40]!r} is no role; choose from {', '.join(known)}"
            )
        if not 0 <= value <= 1:
            raise ValueError(
                f"role_thresholds: {name}: expected a number from 0 to 1, got {value:g}"
            )


@dataclass(frozen=True)
class Label:
    """The role of a head, `unsure` if the intervals allow others, and the likely role."""

    role: str
    likely_role: str


def label(
    values: Mapping[str, float], half_widths: Mapping[str, float], thresholds: Mapping[str, float]
) -> Label:
    """The label of a head from its scores by column, and half the widths of their intervals."""
    possible = possible_roles(values, half_widths, thresholds)
    likely = _roles_in_intervals(values, dict.fromkeys(values, 0.0), thresholds)[0]
    return Label(likely if len(possible) == 1 else UNSURE, likely)


def possible_roles(
    values: Mapping[str, float], half_widths: Mapping[str, float], thresholds: Mapping[str, float]
) -> list[str]:
    """The roles that a head can have if each score is somewhere in its interval.

    A score that is NaN does not give a role. A score whose half width is NaN can be anywhere: its
    role is possible, but not sure. Without scores on repeated tokens, a head with a resting role
    can also be an induction head.
    """
    found = _roles_in_intervals(values, half_widths, thresholds)
    induction = ROLES[0].name
    if induction not in found and repeated_decide(values, found):
        return [induction, *found]
    return found


def repeated_decide(values: Mapping[str, float], roles: Iterable[str]) -> bool:
    """Whether scores on repeated tokens are missing that could change one of the roles."""
    known = not math.isnan(values.get(ROLES[0].repeated_column or "", math.nan))
    return not known and any(role in RESTING for role in roles)


def _roles_in_intervals(
    values: Mapping[str, float], half_widths: Mapping[str, float], thresholds: Mapping[str, float]
) -> list[str]:
    """The roles that the known scores allow, each somewhere in its interval."""
    found = []
    for role in ROLES:
        column, limit = role.column, thresholds[role.name]
        if role.repeated_column and not math.isnan(values.get(role.repeated_column, math.nan)):
            column, limit = role.repeated_column, thresholds[role.repeated_column]
        value, half = values.get(column, math.nan), half_widths.get(column, math.nan)
        if math.isnan(value):
            continue
        open_ = math.isnan(half) or (half > 0 and abs(value - limit) <= half)
        if value >= limit or open_:
            found.append(role.name)
        if value >= limit and not open_:
            return found
    return [*found, MIXED]
