"""Outcomes of conditions, one line each, so that a killed run continues."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from findings.eviction.plan import CHOICE, FLAT, RULE, Condition, Plan
from qk_toolkit.arrays import Array

PLAN, RESULTS, PUBLISHED = "plan.json", "results.jsonl", "results.csv.gz"
FIELDS = ("kl", "loss_change", "right")


class Results:
    """The outcomes in a folder: of a run, or those that are part of the repository."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Read what is there. A last line that was not written completely is removed."""
        self._path = folder / RESULTS
        _require_same_plan(folder / PLAN, plan)
        self._found: dict[str, Array] = {}  # (texts, 3) of every condition
        if self._path.exists():
            self._read_lines()
        elif (folder / PUBLISHED).exists():
            table = pd.read_csv(folder / PUBLISHED)
            for condition, rows in table.groupby("condition", sort=False):
                self._found[str(condition)] = rows[list(FIELDS)].to_numpy()

    def _read_lines(self) -> None:
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            self._path.write_text("".join(lines[:-1]), encoding="utf-8")
            lines.pop()
        for row in map(json.loads, lines):
            self._found[row["condition"]] = np.array(row["outcomes"])

    def __contains__(self, condition: Condition) -> bool:
        return condition.name in self._found

    def add(self, condition: Condition, outcomes: Iterable[Sequence[float]]) -> None:
        """Append the outcomes of all texts of a condition."""
        row = {"condition": condition.name, "outcomes": [list(one) for one in outcomes]}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self._found[condition.name] = np.array(row["outcomes"])

    def of(self, condition: Condition, field: str = "kl") -> Array:
        """(texts,) outcomes of a condition."""
        return self._found[condition.name][:, FIELDS.index(field)]

    def publish(self, folder: Path) -> None:
        """Write one row per condition and text, with six digits, and the sizes of the study."""
        rows = [
            (condition, text, *outcome)
            for condition, outcomes in sorted(self._found.items())
            for text, outcome in enumerate(outcomes)
        ]
        table = pd.DataFrame(rows, columns=["condition", "text", *FIELDS])
        how: Any = {"method": "gzip", "mtime": 0}
        table.to_csv(folder / PUBLISHED, index=False, float_format="%.6g", compression=how)
        shutil.copy(self._path.with_name(PLAN), folder / PLAN)


def _require_same_plan(path: Path, plan: Plan) -> None:
    """Refuse a folder whose results were made with other sizes."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(plan.settings, indent=2) + "\n", encoding="utf-8")
    elif json.loads(path.read_text(encoding="utf-8")) != plan.settings:
        raise SystemExit(f"{path}: results of other settings; give another --output_dir")


def chosen_rule(results: Results, plan: Plan, rules: tuple[str, ...]) -> str:
    """The rule with the smallest KL on the book of the choice, as a geometric mean."""
    means = {rule: log_ratios(results, plan, f"{RULE}:{rule}").mean() for rule in rules}
    return min(means, key=lambda rule: float(means[rule]))


def log_ratios(
    results: Results,
    plan: Plan,
    allocation: str,
    texts: str = CHOICE,
    context: int | None = None,
    base: str = FLAT,
) -> Array:
    """(scorers, compressions) log of KL / KL of the base, as means over texts."""
    found = np.empty((len(plan.scorers), len(plan.compressions)))
    for place in np.ndindex(*found.shape):
        setting = (plan.scorers[place[0]], plan.compressions[place[1]])
        own, other = (
            results.of(Condition(texts, context or plan.middle, *setting, name))
            for name in (allocation, base)
        )  # (texts,) each
        found[place] = np.log(own / other).mean()
    return found
