"""The same heads in two models of one architecture: which of them changed, and roles that changed.

A head changed if a two-sided test of no difference (Student's t over groups of texts) is
significant. The tests of one pair and one metric are corrected together by Benjamini and Hochberg.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from attention_plasticity.compare.runs import NamedRun, Pair
from attention_plasticity.compare.summary import summary
from attention_plasticity.metrics import HEAD
from attention_plasticity.roles import NAMES, default_thresholds, possible_roles
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_roles import SCORES
from attention_plasticity.tables.intervals import benjamini_hochberg, row_half_width, two_sided
from attention_plasticity.tables.names import head_name

RATE = 0.05  # expected share of heads without a change among those that are called changed
MATCHED_COLUMNS = (
    *("run", "minus", "metric", "layer", "q_head", "value", "minus_value"),
    *("difference", "se", "low", "high", "df", "p_value", "changed"),
)
COUNT_COLUMNS = (
    *("run", "minus", "metric", "heads", "tested", "changed", "risen", "fallen"),
    "mean_difference",
)
ROLE_COLUMNS = ("run", "role", "sure", "likely", "possible", "heads")


def matched_heads(pairs: Sequence[Pair], metrics: Sequence[str]) -> pd.DataFrame:
    """One row per pair, metric and head with a value in both models.

    The rows are those of the summary by heads, with both values, `p_value` and `changed`: the head
    changed, at a false discovery rate of 5 % over the heads of this pair and metric.
    """
    runs = list({run.label: run for pair in pairs for run in pair}.values())
    if not runs:
        return pd.DataFrame(columns=list(MATCHED_COLUMNS))
    table = summary(runs, "head", metrics, pairs)
    means = table[table["minus"] == ""].set_index(["run", "metric", "group"])["mean"]
    found = table[table["minus"] != ""].rename(columns={"mean": "difference"})
    heads = {
        head_name(*head): head
        for one in runs
        for head in one.run.head_metrics[HEAD].itertuples(index=False, name=None)
    }
    places = np.array([heads[name] for name in found["group"]], np.int64).reshape(-1, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (found["difference"] / found["se"]).to_numpy(np.float64)
    own, other = (
        means.reindex(pd.MultiIndex.from_frame(found[[label, "metric", "group"]])).to_numpy()
        for label in ("run", "minus")
    )
    found = found.assign(
        layer=places[:, 0],
        q_head=places[:, 1],
        value=own,
        minus_value=other,
        p_value=two_sided(t, found["df"].to_numpy(np.float64)),
        changed=False,
    )
    for _, rows in found.groupby(["run", "minus", "metric"], sort=False):
        changed = benjamini_hochberg(rows["p_value"].to_numpy(np.float64), RATE)
        found.loc[rows.index, "changed"] = changed
    return found[list(MATCHED_COLUMNS)].reset_index(drop=True)


def changed_counts(matched: pd.DataFrame) -> pd.DataFrame:
    """One row per pair and metric: heads, tested heads, and how many rose or fell."""
    rows = []
    for (run, minus, metric), own in matched.groupby(["run", "minus", "metric"], sort=False):
        changed = own[own["changed"].astype(bool)]
        risen = int((changed["difference"] > 0).sum())
        tested = int(own["p_value"].notna().sum())
        counts = (len(own), tested, len(changed), risen, len(changed) - risen)
        rows.append((run, minus, metric, *counts, float(own["difference"].mean())))
    return pd.DataFrame(rows, columns=list(COUNT_COLUMNS))


def role_counts(runs: Sequence[NamedRun]) -> pd.DataFrame:
    """One row per run with roles and role: how many heads surely, likely and possibly have it.

    The likely role is that by the scores alone. It is sure if no 95 % interval of a score contains
    a threshold that decides, and if repeated tokens cannot change it; a role is possible if each
    score is somewhere in its interval. `heads` are all heads of the run.
    """
    rows = []
    for one in runs:
        if not one.run.has("roles"):
            continue
        table = one.run.table("roles")
        possible = Counter(role for roles in _possible(one.run) for role in roles)
        sure, likely = (Counter(table[name]) for name in ("role", "likely_role"))
        for role in NAMES:
            counts = (sure[role], likely[role], possible[role], len(table))
            rows.append((one.label, role, *counts))
    return pd.DataFrame(rows, columns=list(ROLE_COLUMNS))


def _possible(run: FinishedRun) -> Iterator[list[str]]:
    """The possible roles of every head."""
    table = run.table("roles")
    thresholds = {**default_thresholds(), **(run.settings.get("role_thresholds") or {})}
    names = [metric.column for metric in SCORES if metric.column in table]
    halves = {name: row_half_width(table, name).tolist() for name in names}
    for place, values in enumerate(table[names].to_dict("records")):
        own = {name: halves[name][place] for name in names}
        yield possible_roles({str(name): values[name] for name in values}, own, thresholds)
