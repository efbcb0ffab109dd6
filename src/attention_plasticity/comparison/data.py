"""The data of a comparison: what tables, figures and captions are made from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from attention_plasticity.comparison.cautions import (
    Caution,
    cautions_table,
    correlation_cautions,
    head_cautions,
    joined,
    obstacles,
    pairing_cautions,
    run_cautions,
    score_obstacles,
)
from attention_plasticity.comparison.differences import run_differences
from attention_plasticity.comparison.runs import ComparedRun, compare_runs, labelled
from attention_plasticity.comparison.scores import Correlation, correlations, read_scores
from attention_plasticity.tables.run_list import AnyRun, opened_runs
from qk_toolkit.errors import ConfigError

AnyScores = pd.DataFrame | str | os.PathLike[str]

_CORRELATION_COLUMNS = (
    *(name for name in Correlation.__dataclass_fields__ if name != "obstacle"),
    "cautions",
)


@dataclass(frozen=True, repr=False, eq=False)
class ComparisonData:
    """The tables of a comparison, and the runs, correlations and cautions behind them."""

    table: pd.DataFrame
    differences: pd.DataFrame
    correlations: pd.DataFrame
    notes: pd.DataFrame
    scores: pd.DataFrame | None
    runs: tuple[ComparedRun, ...]
    relations: tuple[Correlation, ...]
    cautions: tuple[Caution, ...]


def comparison_data(
    runs: Sequence[AnyRun],
    labels: Sequence[str] | None,
    scores: AnyScores | None,
    remedy: str | None,
) -> ComparisonData:
    """Compare runs. `remedy` is how a caller forces a comparison; None: it is forced."""
    opened, names = opened_runs(runs, labels)
    if len(opened) < 2:
        raise ConfigError(f"runs: expected two runs or more, got {len(opened)}")
    named = labelled(opened, names)
    read = None if scores is None else read_scores(scores, [run.label for run in named])
    found = obstacles(named)
    if read is not None:
        found += score_obstacles(named, forced=remedy is None)
    if found and remedy is not None:
        reasons = "; ".join(caution.text for caution in found)
        raise ConfigError(f"these runs cannot be compared: {reasons}. {remedy} shows them anyway")
    table = compare_runs(named)
    relations = () if read is None else tuple(correlations(table, read))
    cautions = [*found, *run_cautions(named, table), *pairing_cautions(named)]
    cautions += head_cautions(named)
    cautions += correlation_cautions(named, relations)
    return ComparisonData(
        _with_cautions(table, cautions),
        _cautious_differences(named, table),
        _correlation_table(relations, cautions),
        cautions_table(cautions),
        read,
        tuple(named),
        relations,
        tuple(cautions),
    )


def _with_cautions(table: pd.DataFrame, cautions: Sequence[Caution]) -> pd.DataFrame:
    means = [caution for caution in cautions if caution.concerns == "means"]
    cells = [joined(one for one in means if label in one.runs) for label in table["run"]]
    return table.assign(cautions=cells)


def _cautious_differences(runs: Sequence[ComparedRun], table: pd.DataFrame) -> pd.DataFrame:
    """The differences, each with the cautions about its two runs."""
    differences = run_differences(runs)
    cells = {}
    for run in runs[1:]:
        pair = [runs[0], run]
        found = [*obstacles(pair), *run_cautions(pair, table), *pairing_cautions(pair)]
        cells[run.label] = joined([*found, *head_cautions(pair)])
    return differences.assign(cautions=[cells[label] for label in differences["run"]])


def _correlation_table(
    relations: Sequence[Correlation], cautions: Sequence[Caution]
) -> pd.DataFrame:
    cells = [
        joined(one for one in cautions if one.concerns != "differences" and _is_of(one, found))
        for found in relations
    ]
    return (
        pd.DataFrame(relations).assign(cautions=cells).reindex(columns=list(_CORRELATION_COLUMNS))
    )


def _is_of(caution: Caution, found: Correlation) -> bool:
    return caution.score is None or caution.score == found.score
