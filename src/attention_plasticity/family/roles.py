"""How many heads of each model have each role."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.roles import NAMES, UNSURE
from attention_plasticity.tables.head_roles import require_roles

ALL_ROLES = (*NAMES, UNSURE)
ROLE_COLUMNS = ("run", "role", "heads", "share", "likely_heads", "all_heads")


def role_counts(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    """One row per run with roles and role: heads, their share, and heads that likely have it.

    Heads whose role is unsure count as `unsure`, and in `likely_heads` with their likely role.
    """
    rows = []
    for run in runs:
        if not run.run.has_roles:
            continue
        table = run.run.roles
        require_roles(table, run.run.path("roles"))
        for role in ALL_ROLES:
            heads = int((table["role"] == role).sum())
            likely = int((table["likely_role"] == role).sum())
            share = heads / len(table) if len(table) else float("nan")
            rows.append((run.label, role, heads, share, likely, len(table)))
    return pd.DataFrame(rows, columns=list(ROLE_COLUMNS))
