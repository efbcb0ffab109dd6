"""Runs with names, pairs of runs, and what two runs have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from attention_plasticity.tables.finished_run import AnyRun, FinishedRun, opened_runs
from attention_plasticity.tables.labels import labels_of
from attention_plasticity.tables.layer_types import layers_by_type
from attention_plasticity.tables.main_plasticity import (
    PlasticityColumns,
    main_plasticity,
)

_CONTEXT_RATIO = 1.1  # of the largest and the smallest context that count as equal


@dataclass(frozen=True)
class NamedRun:
    """A run and its name, and what is known of its model. Checkpoints have family and number."""

    label: str
    run: FinishedRun
    family: str = ""
    checkpoint: float | None = None  # steps or tokens
    size: float | None = None  # number of parameters
    phase: str = ""  # of the training
    source: str = "run"  # what a study made the run from: `model`, `dump` or `run`

    @cached_property
    def layers(self) -> dict[str, list[int]]:
        """The layers of each type."""
        return layers_by_type(self.run.layer_types)


class Pair(NamedTuple):
    """A run, and the run that is subtracted from it."""

    run: NamedRun
    minus: NamedRun

    @property
    def name(self) -> str:
        """`tuned minus base`."""
        return f"{self.run.label} minus {self.minus.label}"

    @property
    def paired(self) -> bool:
        """Whether both have the same texts, so that they are compared text by text."""
        return same_texts(*self)


def named_runs(
    runs: Sequence[AnyRun | NamedRun], labels: Sequence[str] | None = None
) -> list[NamedRun]:
    """The runs with names: as given, or those of their models. Folders are opened."""
    if labels is None and all(isinstance(run, NamedRun) for run in runs):
        return [run for run in runs if isinstance(run, NamedRun)]
    opened, given = opened_runs(
        [run.run if isinstance(run, NamedRun) else run for run in runs]
        if isinstance(runs, list | tuple)
        else runs,  # type: ignore[arg-type]  # refused there
        labels,
    )
    return [NamedRun(*pair) for pair in zip(labels_of(opened, given), opened, strict=True)]


def minus_first(runs: Sequence[NamedRun]) -> list[Pair]:
    """Every later run minus the first run."""
    return [Pair(run, runs[0]) for run in runs[1:]]


def family_pairs(runs: Sequence[NamedRun]) -> list[Pair]:
    """Runs of one family and architecture, each minus the first of them.

    The first has the smallest checkpoint; without checkpoints it is the first of `runs`. Runs
    without a family are paired if both have a checkpoint.
    """
    ordered = sorted(runs, key=lambda one: math.inf if one.checkpoint is None else one.checkpoint)
    found = []
    for number, run in enumerate(ordered):
        for earlier in ordered[:number]:
            known = run.family or None not in (run.checkpoint, earlier.checkpoint)
            if known and run.family == earlier.family and can_match(run, earlier):
                found.append(Pair(run, earlier))
                break
    return found


def main_of(runs: Sequence[NamedRun]) -> PlasticityColumns:
    """What figures and first tables show: RoPE-aligned, if every run has it."""
    return main_plasticity(*(one.run for one in runs))


def same_texts(one: NamedRun, other: NamedRun) -> bool:
    """Whether both runs have the same texts in the same groups, by their original ids."""
    digest = one.run.texts.get("digest")
    return digest is not None and digest == other.run.texts.get("digest")


def same_architecture(one: NamedRun, other: NamedRun) -> bool:
    """Whether the heads of two runs correspond, as far as the numbers of heads are known."""
    common = one.run.layout.keys() & other.run.layout.keys()
    return all(one.run.layout[name] == other.run.layout[name] for name in common)


def can_match(one: NamedRun, other: NamedRun) -> bool:
    """Whether both models have the same known numbers of layers and heads."""
    return bool(one.run.layout) and one.run.layout == other.run.layout


def unequal(contexts: Iterable[float]) -> bool:
    """Whether the known contexts differ by more than 10 %."""
    known = [context for context in contexts if not math.isnan(context)]
    return bool(known) and max(known) > _CONTEXT_RATIO * min(known)
