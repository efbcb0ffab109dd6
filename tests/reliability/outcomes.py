"""What can become of an attack, and counting it."""

from __future__ import annotations

import io
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from attention_plasticity.cli import main
from lasting_workers import lasting_workers


class Outcome(Enum):
    """How a case ended."""

    REFUSED = "refused in one line"
    UNHARMED = "same result as without the attack"
    TRACEBACK = "traceback"
    WRONG = "wrong result without a word"
    LOST = "lost data"


BAD = (Outcome.TRACEBACK, Outcome.WRONG, Outcome.LOST)

Cases = Iterator[tuple[str, Outcome]]
"""Name and outcome of every case."""


@dataclass(frozen=True)
class Attack:
    """A kind of attack: `cases(folder, step)` runs every step-th case in an empty folder."""

    name: str
    cases: Callable[[Path, int], Cases]
    step: int | None  # of the part that runs with the tests; None where other tests do the same


@dataclass(frozen=True)
class Tally:
    """How the cases of an attack ended."""

    attack: Attack
    counts: Counter[Outcome]
    bad: list[str]

    @property
    def cases(self):
        """All cases."""
        return self.counts.total()


def tally(attack, folder, step):
    """Run an attack and count."""
    counts = Counter()
    bad = []
    with lasting_workers():
        for name, outcome in attack.cases(folder, step):
            counts[outcome] += 1
            if outcome in BAD:
                bad.append(f"{attack.name}: {name}: {outcome.value}")
    return Tally(attack, counts, bad)


@dataclass(frozen=True)
class Ended:
    """A command's end."""

    code: int
    told: str  # on standard error

    @property
    def traceback(self):
        """Whether a person would see a traceback."""
        return "Traceback" in self.told or "internal error" in self.told


def command(*words):
    """Run `attention-plasticity` in this process."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main([str(word) for word in words])
    except BaseException:
        return Ended(-1, traceback.format_exc())
    return Ended(code, err.getvalue() + out.getvalue())
