"""Small models of a study, written as tables by `report_runs`."""

from __future__ import annotations

from pathlib import Path

from attention_plasticity.comparison.runs import ComparedRun, labelled
from attention_plasticity.tables.finished_run import FinishedRun
from report_runs import write_run


def small_models(folder: Path, number: int) -> list[ComparedRun]:
    """Models `m0`, `m1` and so on, with plasticity at one position and errors."""
    names = [f"m{place}" for place in range(number)]
    runs = [write_run(folder / name, seed, position=True) for seed, name in enumerate(names)]
    return labelled([FinishedRun.open(run) for run in runs], names)
