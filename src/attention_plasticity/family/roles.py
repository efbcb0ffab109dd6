"""How many heads of each model have each role, their scores, and roles that differ in a pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pandas as pd

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.family.matched import Pair
from attention_plasticity.family.mean_rows import MEAN_COLUMNS, mean_rows
from attention_plasticity.roles import NAMES, ROLES, UNSURE, default_thresholds, possible_roles
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_roles import SCORES, require_roles, score_half_width
from attention_plasticity.tables.intervals import HeadColumn, head_column
from attention_plasticity.tables.profiles import HEAD

ALL_ROLES = (*NAMES, UNSURE)
ROLE_COLUMNS = ("run", "role", "heads", "share", "likely_heads", "all_heads", "possible_heads")
SCORE_COLUMNS = ("run", "minus", "role", "score", *MEAN_COLUMNS)
CHANGE_COLUMNS = ("run", "minus", "role_before", "role_after", "heads", "sure_heads")


def role_counts(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    """One row per run with roles and role: heads, their share, and heads that likely have it.

    Heads whose role is unsure count as `unsure`, and in `likely_heads` with their likely role.
    `possible_heads` can have the role if each score is somewhere in its 95 % interval.
    """
    rows = []
    for run in runs:
        if not run.run.has_roles:
            continue
        table = checked_roles(run.run)
        possible = Counter(role for roles in _possible(run.run) for role in roles)
        possible[UNSURE] = int((table["role"] == UNSURE).sum())
        for role in ALL_ROLES:
            heads = int((table["role"] == role).sum())
            likely = int((table["likely_role"] == role).sum())
            share = heads / len(table) if len(table) else float("nan")
            rows.append((run.label, role, heads, share, likely, len(table), possible[role]))
    return pd.DataFrame(rows, columns=list(ROLE_COLUMNS))


def checked_roles(run: FinishedRun) -> pd.DataFrame:
    """The table of roles, with roles that an analysis can write."""
    table = run.roles
    require_roles(table, run.path("roles"))
    return table


def _possible(run: FinishedRun) -> Iterator[list[str]]:
    """The possible roles of every head."""
    table = run.roles
    thresholds = {**default_thresholds(), **(run.settings.get("role_thresholds") or {})}
    names = [metric.column for metric in SCORES if metric.column in table]
    halves = {name: score_half_width(table, name).tolist() for name in names}
    for place, values in enumerate(table[names].to_dict("records")):
        own = {name: halves[name][place] for name in names}
        yield possible_roles({str(name): values[name] for name in values}, own, thresholds)


def role_scores(runs: Sequence[ComparedRun], pairs: Sequence[Pair]) -> pd.DataFrame:
    """Means over heads of the scores that decide roles on texts, and differences of pairs."""
    columns = {run.label: _scores(run.run) for run in runs if run.run.has_roles}
    names = {role.column: role.name for role in ROLES}
    rows = [
        (label, minus, names[score], score, *numbers)
        for label, minus, score, numbers in mean_rows(columns, runs, pairs)
    ]
    return pd.DataFrame(rows, columns=list(SCORE_COLUMNS))


def _scores(run: FinishedRun) -> dict[str, HeadColumn]:
    table = run.roles
    known = [role.column for role in ROLES if role.column in table]
    return {
        name: head_column(table, run.influences, name, run.eligible_heads)
        for name in known
        if table[name].notna().any()
    }


def role_changes(pairs: Sequence[Pair]) -> pd.DataFrame:
    """How many heads with one likely role in the earlier model have another in the later one.

    `sure_heads` are those whose role is sure in both. Only combinations that occur have a row.
    """
    rows = []
    for pair in pairs:
        if not all(one.run.has_roles for one in (pair.run, pair.minus)):
            continue
        before, after = (
            checked_roles(one.run)[[*HEAD, "role", "likely_role"]] for one in (pair.minus, pair.run)
        )
        both = before.merge(after, on=list(HEAD), suffixes=("_before", "_after"))
        both["sure"] = (both[["role_before", "role_after"]] != UNSURE).all(axis=1)
        counts = both.groupby(["likely_role_before", "likely_role_after"])["sure"]
        sizes = counts.agg(["size", "sum"]).astype(int)
        found = {key: values for key, *values in sizes.itertuples(name=None)}
        for role in NAMES:
            for other in NAMES:
                if (role, other) in found:
                    numbers = found[role, other]
                    rows.append((pair.run.label, pair.minus.label, role, other, *numbers))
    return pd.DataFrame(rows, columns=list(CHANGE_COLUMNS))
