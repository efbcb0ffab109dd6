"""Means over heads of checkpoints, in the order of training, and the phases of the training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.tables.intervals import mean_numbers, mean_over_heads

CHECKPOINT_COLUMNS = (
    *("family", "run", "checkpoint", "phase", "metric"),
    *("mean", "standard_error", "low", "high", "degrees_of_freedom", "heads"),
)


@dataclass(frozen=True)
class Checkpoint:
    """A run as a checkpoint of the training of a family."""

    run: ComparedRun
    family: str
    number: float  # of steps or tokens
    phase: str  # of the training; empty if it is not given


@dataclass(frozen=True)
class PhaseBlock:
    """A phase of the training: its first and its last checkpoint."""

    name: str
    first: float
    last: float


def checkpoint_table(checkpoints: Sequence[Checkpoint], metrics: Sequence[str]) -> pd.DataFrame:
    """One row per metric and checkpoint: families in their order, checkpoints by their numbers."""
    families = list(dict.fromkeys(one.family for one in checkpoints))
    ordered = sorted(checkpoints, key=lambda one: (families.index(one.family), one.number))
    rows: list[tuple[Any, ...]] = []
    for metric in metrics:
        for one in ordered:
            if metric not in one.run.run.head_metrics:
                continue
            mean = mean_over_heads(one.run.run, metric)
            if not mean.heads:
                continue
            numbers = mean_numbers(mean)
            where = (one.family, one.run.label, one.number, one.phase, metric)
            rows.append((*where, *numbers, mean.freedom, mean.heads))
    return pd.DataFrame(rows, columns=list(CHECKPOINT_COLUMNS))


def training_phases(checkpoints: Sequence[Checkpoint]) -> list[PhaseBlock]:
    """The phases in the order of the training; empty if they cannot be shaded.

    That is the case if no phase is given, or if two phases have checkpoints among each other, such
    as phases of two families at the same numbers.
    """
    ordered = sorted((one for one in checkpoints if one.phase), key=lambda one: one.number)
    blocks: list[PhaseBlock] = []
    for one in ordered:
        if blocks and blocks[-1].name == one.phase:
            blocks[-1] = PhaseBlock(one.phase, blocks[-1].first, one.number)
            continue
        names = [block.name for block in blocks]
        if one.phase in names or (blocks and blocks[-1].last == one.number):
            return []
        blocks.append(PhaseBlock(one.phase, one.number, one.number))
    return blocks
