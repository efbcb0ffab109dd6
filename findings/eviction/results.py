"""Outcomes of conditions, one line each, so that a killed run continues."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from findings.eviction.plan import Condition, Plan
from qk_toolkit.arrays import Array

PLAN, PARTS, PUBLISHED = "plan.json", "outcomes-*.jsonl", "outcomes.csv.gz"
FIELDS = ("kl", "loss_change", "right")


class Results:
    """The outcomes in a folder: of a run, or those that are part of the repository."""

    def __init__(self, folder: Path, plan: Plan, part: str = "0") -> None:
        """Read what is there. Several processes write, each to its own part."""
        self._folder, self._path = folder, folder / PARTS.replace("*", part)
        _require_same_plan(folder / PLAN, plan)
        self._found: dict[str, Array] = {}  # (texts, 3) of every condition
        if (folder / PUBLISHED).exists():
            self._read_published(folder / PUBLISHED)
        for path in sorted(folder.glob(PARTS)):
            self._read_part(path)

    def _read_part(self, path: Path) -> None:
        """A line that was not written completely is left out."""
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        for row in map(json.loads, whole.splitlines()):
            self._found[row["condition"]] = np.array(row["outcomes"])
        if path == self._path and whole != text:
            path.write_text(whole, encoding="utf-8")

    def _read_published(self, path: Path) -> None:
        rows: dict[str, list[list[float]]] = {}
        with gzip.open(path, "rt", encoding="utf-8") as file:
            next(file)
            for line in file:
                condition, _, *numbers = line.rstrip("\n").rsplit(",", 1 + len(FIELDS))
                rows.setdefault(condition, []).append([float(one) for one in numbers])
        self._found |= {condition: np.array(table) for condition, table in rows.items()}

    def __contains__(self, condition: Condition) -> bool:
        return condition.name in self._found

    def __iter__(self) -> Iterable[str]:
        return iter(self._found)

    def add(self, condition: Condition, outcomes: Iterable[Sequence[float]]) -> None:
        """Append the outcomes of all texts of a condition."""
        row = {"condition": condition.name, "outcomes": [list(one) for one in outcomes]}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self._found[condition.name] = np.array(row["outcomes"])

    def of(self, condition: Condition, field: str = "kl") -> Array:
        """(texts,) outcomes of a condition."""
        return self._found[condition.name][:, FIELDS.index(field)]

    def publish(self, path: Path) -> None:
        """Write one row per condition and text, with five digits."""
        lines = [f"condition,text,{','.join(FIELDS)}"]
        for condition, outcomes in sorted(self._found.items()):
            for text, outcome in enumerate(outcomes):
                numbers = ",".join(f"{one:.5g}" for one in outcome)
                lines.append(f"{condition},{text},{numbers}")
        data = ("\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(data, mtime=0))


def _require_same_plan(path: Path, plan: Plan) -> None:
    """Refuse a folder whose results were made with other sizes."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(plan.settings, indent=2) + "\n", encoding="utf-8")
    elif json.loads(path.read_text(encoding="utf-8")) != plan.settings:
        raise SystemExit(f"{path}: results of other settings; give another folder")
