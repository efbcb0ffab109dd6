"""How many heads of each model have each role, their scores, and roles that differ in a pair."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import pandas as pd

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.family.matched import Pair
from attention_plasticity.family.mean_rows import MEAN_COLUMNS, mean_rows
from attention_plasticity.roles import NAMES, ROLES, UNSURE, default_thresholds, possible_roles
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_roles import SCORES, require_roles
from attention_plasticity.tables.intervals import HeadColumn, head_column, row_half_width
from attention_plasticity.tables.profiles import HEAD

ROLE_COLUMNS = (
    *("run", "role", "sure_heads", "likely_heads", "possible_heads", "all_heads"),
    *("sure_share", "likely_share"),
)
SCORE_COLUMNS = ("run", "minus", "layer_type", "role", "score", *MEAN_COLUMNS)
CHANGE_COLUMNS = (
    *("run", "minus", "role_before", "role_after"),
    *("heads", "sure_before", "sure_after", "sure_in_both"),
)


def role_counts(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    """One row per run with roles and role: how many heads surely, likely and possibly have it.

    The likely role is that by the scores alone. It is sure if no 95 % interval of a score contains
    a threshold that decides, and if repeated tokens cannot change it; `possible_heads` can have the
    role if each score is somewhere in its interval.
    """
    rows = []
    for run in runs:
        if not run.run.has("roles"):
            continue
        table = checked_roles(run.run)
        possible = Counter(role for roles in _possible(run.run) for role in roles)
        size = len(table) or math.nan
        for role in NAMES:
            sure = int((table["role"] == role).sum())
            likely = int((table["likely_role"] == role).sum())
            counts = (sure, likely, possible[role], len(table))
            rows.append((run.label, role, *counts, sure / size, likely / size))
    return pd.DataFrame(rows, columns=list(ROLE_COLUMNS))


def checked_roles(run: FinishedRun) -> pd.DataFrame:
    """The table of roles, with roles that an analysis can write."""
    table = run.table("roles")
    require_roles(table, run.path("roles"))
    return table


def _possible(run: FinishedRun) -> Iterator[list[str]]:
    """The possible roles of every head."""
    table = run.table("roles")
    thresholds = {**default_thresholds(), **(run.settings.get("role_thresholds") or {})}
    names = [metric.column for metric in SCORES if metric.column in table]
    halves = {name: row_half_width(table, name).tolist() for name in names}
    for place, values in enumerate(table[names].to_dict("records")):
        own = {name: halves[name][place] for name in names}
        yield possible_roles({str(name): values[name] for name in values}, own, thresholds)


def role_scores(runs: Sequence[ComparedRun], pairs: Sequence[Pair]) -> pd.DataFrame:
    """Means over heads of the scores on texts that decide roles, and differences of pairs.

    Scores on repeated tokens, which decide instead if they are known, are not in this table.
    """
    with_roles = [run for run in runs if run.run.has("roles")]
    both = [pair for pair in pairs if pair.run.run.has("roles") and pair.minus.run.has("roles")]
    names = {role.column: role.name for role in ROLES}
    rows = [
        (label, minus, layer_type, names[score], score, *numbers)
        for label, minus, layer_type, score, numbers in mean_rows(_scores, with_roles, both)
    ]
    return pd.DataFrame(rows, columns=list(SCORE_COLUMNS))


def _scores(run: FinishedRun) -> dict[str, HeadColumn]:
    table = run.table("roles")
    known = [role.column for role in ROLES if role.column in table]
    return {
        name: head_column(table, run.influences, name, run.eligible_heads)
        for name in known
        if table[name].notna().any()
    }


def role_changes(pairs: Sequence[Pair]) -> pd.DataFrame:
    """How many heads with one likely role in the earlier model have another in the later one.

    Of these heads, the role of some is sure before, after, or in both. Only combinations that occur
    have a row.
    """
    rows = []
    for pair in pairs:
        if not all(one.run.has("roles") for one in (pair.run, pair.minus)):
            continue
        before, after = (
            checked_roles(one.run)[[*HEAD, "role", "likely_role"]] for one in (pair.minus, pair.run)
        )
        both = before.merge(after, on=list(HEAD), suffixes=("_before", "_after"))
        for role in NAMES:
            for other in NAMES:
                chosen = both["likely_role_before"].eq(role) & both["likely_role_after"].eq(other)
                own = both[chosen]
                if own.empty:
                    continue
                sure = own["role_before"] != UNSURE, own["role_after"] != UNSURE
                counts = (len(own), *(int(one.sum()) for one in (*sure, sure[0] & sure[1])))
                rows.append((pair.run.label, pair.minus.label, role, other, *counts))
    return pd.DataFrame(rows, columns=list(CHANGE_COLUMNS))
