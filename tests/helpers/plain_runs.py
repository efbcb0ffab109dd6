"""Small runs for comparisons, and means over their CSV files by plain loops."""

import csv
import json
import math

import numpy as np
import pandas as pd

from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.tables.finished_run import FinishedRun
from helpers.report_runs import write_run

STUDENT_11 = 2.2009851600  # 97.5 % point of Student's t with 11 degrees of freedom, from a table
GROUPS = [f"group_{number:02d}" for number in range(16)]


def small_models(folder, number, digests=""):
    """Models `m0`, `m1` and so on, with RoPE-aligned plasticity and errors.

    `digests` has a letter per model; models with the same letter have the same texts.
    """
    names = [f"m{place}" for place in range(number)]
    for seed, name in enumerate(names):
        write_run(folder / name, seed, f"owner/{name}", position=True)
        if digests:
            edit_info(folder / name, input__texts={"count": 12, "digest": digests[seed]})
    return [opened(folder / name, name) for name in names]


def opened(folder, label, **about):
    return NamedRun(label, FinishedRun.open(folder), **about)


def edit_info(folder, **changes):
    """Change entries of run.json: `input__texts` is `texts` in `input`."""
    info = json.loads((folder / "run.json").read_text())
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = info
        for parent in parents:
            place = place[parent]
        place[name] = value
    (folder / "run.json").write_text(json.dumps(info))
    return folder


def edit_table(folder, table, change):
    """Change a table of a run, such as `metrics` or `influences`."""
    path = folder / f"head_{table}.csv"
    change(pd.read_csv(path)).to_csv(path, index=False, na_rep="nan")


def rows_of(folder, table):
    with (folder / f"head_{table}.csv").open() as file:
        return list(csv.DictReader(file))


def head_of(row):
    return int(row["layer"]), int(row["q_head"])


def values_of(folder, column):
    """The values of a column that are known, by head."""
    found = {head_of(row): float(row[column] or "nan") for row in rows_of(folder, "metrics")}
    return {head: value for head, value in found.items() if not math.isnan(value)}


def vectors_of(folder, quantity, bins=None):
    """By head (17,): value and influences of a quantity, as means over its bins if it has bins."""
    found = {}
    wanted = None if bins is None else set(bins)
    for row in rows_of(folder, "influences"):
        known = row["quantity"] == quantity and row["value"] != "nan"
        if known and (wanted is None or float(row["bin"]) in wanted):
            vector = [float(row[name]) for name in ("value", *GROUPS)]
            found.setdefault(head_of(row), []).append(vector)
    return {head: np.mean(own, axis=0) for head, own in found.items()}


def mean_vector(folder, quantity, bins=None):
    """(17,) means over all heads of value and influences."""
    return np.asarray(np.mean([*vectors_of(folder, quantity, bins).values()], axis=0))


def mean(values):
    listed = list(values)
    return sum(listed) / len(listed)


def length(shares):
    return math.sqrt(sum(share * share for share in shares))


def plain_mean(folder, column, keep=lambda head: True):
    """Mean over some heads, its standard error, and the number of heads."""
    values = {head: value for head, value in values_of(folder, column).items() if keep(head)}
    vectors = vectors_of(folder, column)
    influences = np.mean([vectors[head][1:] for head in values], axis=0)
    return mean(values.values()), length(influences), len(values)
