"""Differences between runs, with standard errors.

Two runs on the same texts are compared text by text: the influences of each group of texts are
subtracted. What the texts change in both runs then cancels. For other runs, the errors are added as
those of independent samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from attention_plasticity.columns import MEAN_COLUMNS
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import groups_of, half_width, mean_over_heads


@dataclass(frozen=True)
class Difference:
    """The difference of a mean over heads between a run and the first run."""

    run: str
    minus: str
    quantity: str
    difference: float
    standard_error: float
    low: float  # of the 95 % interval
    high: float
    paired: bool


def same_texts(one: FinishedRun, other: FinishedRun) -> bool:
    """Whether both runs have the same texts in the same groups, by their original ids."""
    digests = [(_texts(run) or {}).get("digest") for run in (one, other)]
    return digests[0] is not None and digests[0] == digests[1]


def run_differences(runs: Sequence[FinishedRun], labels: Sequence[str]) -> pd.DataFrame:
    """Every run minus the first run, for each mean of `MEAN_COLUMNS`."""
    rows: list[Difference] = []
    for run, label in zip(runs[1:], labels[1:], strict=True):
        paired = same_texts(run, runs[0])
        rows += [_difference(run, runs[0], label, labels[0], name, paired) for name in MEAN_COLUMNS]
    return pd.DataFrame(rows, columns=list(Difference.__dataclass_fields__))


def pairing_notes(runs: Sequence[FinishedRun], labels: Sequence[str]) -> list[str]:
    """Notes about runs that cannot be compared text by text with the first run."""
    found = []
    for run, label in zip(runs[1:], labels[1:], strict=True):
        if same_texts(run, runs[0]) or math.isnan(groups_of(run)) or math.isnan(groups_of(runs[0])):
            continue
        unknown = [
            name
            for name, one in ((labels[0], runs[0]), (label, run))
            if (_texts(one) or {}).get("digest") is None
        ]
        reason = "the texts differ"
        if unknown:
            reason = f"the original ids of the texts are not known in {' and '.join(unknown)}"
        found.append(
            f"{label} and {labels[0]} are not compared text by text: {reason}. The error of their "
            "difference is that of independent samples"
        )
    return found


def _texts(run: FinishedRun) -> dict[str, object] | None:
    return (run.info.get("input") or {}).get("texts")


def _difference(
    run: FinishedRun, first: FinishedRun, label: str, first_label: str, name: str, paired: bool
) -> Difference:
    if not (name in run.head_metrics and name in first.head_metrics):
        nan = math.nan
        return Difference(label, first_label, name, nan, nan, nan, nan, paired)
    one, other = mean_over_heads(run, name), mean_over_heads(first, name)
    value = one.value - other.value
    if paired:
        groups = np.subtract(one.influences, other.influences)
        error = float(np.sqrt(groups @ groups))
    else:
        error = math.hypot(one.standard_error, other.standard_error)
    reach = float(half_width(error, min(groups_of(run), groups_of(first))))
    return Difference(label, first_label, name, value, error, value - reach, value + reach, paired)
