"""Results of the conditions, one JSON line each, so that a killed run continues where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compression_conditions import Condition, Plan
from compression_eviction import Outcome

RESULTS, PLAN = "results.jsonl", "plan.json"


class Results:
    """The results in a folder."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Read what is there. A last line that was not written completely is removed."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / RESULTS
        _require_same_plan(folder / PLAN, plan)
        self._found: dict[tuple[str, str], Outcome] = {}
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
            if lines and not lines[-1].endswith("\n"):
                self._path.write_text("".join(lines[:-1]), encoding="utf-8")
                lines.pop()
            for row in map(json.loads, lines):
                outcome = Outcome(row["kl"], row["loss_change"])
                self._found[row["text"], row["condition"]] = outcome

    def add(self, text: str, condition: Condition, outcome: Outcome) -> None:
        """Append one result."""
        row = {
            "text": text,
            "condition": condition.name,
            "kl": outcome.kl,
            "loss_change": outcome.loss_change,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self._found[text, condition.name] = outcome

    def missing(self, text: str, conditions: Iterable[Condition]) -> list[Condition]:
        """Conditions without a result for a text."""
        return [one for one in conditions if (text, one.name) not in self._found]

    def complete(self, texts: Sequence[str], conditions: Iterable[Condition]) -> list[Condition]:
        """Conditions with a result for every text."""
        return [one for one in conditions if all((text, one.name) in self._found for text in texts)]

    def kl(self, texts: Sequence[str], condition: Condition) -> npt.NDArray[np.float64]:
        """(texts,) KL divergences of a condition."""
        return np.array([self._found[text, condition.name].kl for text in texts])

    def loss_change(self, texts: Sequence[str], condition: Condition) -> npt.NDArray[np.float64]:
        """(texts,) changes of the loss."""
        return np.array([self._found[text, condition.name].loss_change for text in texts])


def _require_same_plan(path: Path, plan: Plan) -> None:
    """Refuse a folder whose results were made with other sizes."""
    if not path.exists():
        path.write_text(json.dumps(plan.meaning, indent=2) + "\n", encoding="utf-8")
    elif json.loads(path.read_text(encoding="utf-8")) != plan.meaning:
        raise SystemExit(f"{path}: results of other settings; give another --output_dir")
