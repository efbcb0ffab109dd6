"""The data of a comparison: what tables, figures and captions are made from.

Differences between runs, with standard errors. Two runs on the same texts are compared text by
text: the influences of each group of texts are subtracted. What the texts change in both runs then
cancels. For other runs, the errors are added as those of independent samples. If heads were sampled
at random, their choice adds to the error: that of the differences of heads if both runs have the
same heads of one architecture, otherwise that of each run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

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
    same_texts,
    score_obstacles,
)
from attention_plasticity.comparison.key_heads import key_head_means
from attention_plasticity.comparison.profiles import profile_table
from attention_plasticity.comparison.runs import (
    ALL_LAYERS,
    COMPARED,
    ComparedRun,
    compare_runs,
    labelled,
    main_of,
    same_architecture,
    unequal,
)
from attention_plasticity.comparison.scores import Correlation, correlations, read_scores
from attention_plasticity.tables.finished_run import AnyRun, opened_runs
from attention_plasticity.tables.intervals import HeadColumn, mean_difference, mean_numbers
from attention_plasticity.tables.main_plasticity import PlasticityColumns
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

    @property
    def shown(self) -> PlasticityColumns:
        """The plasticity of figures and first tables: at one position, if every run has it."""
        return main_of(self.table)

    @cached_property
    def profiles(self) -> pd.DataFrame:
        """Mean profiles over the context, of every run and type of layers."""
        return profile_table(self.runs, self.shown)

    @property
    def key_heads(self) -> pd.DataFrame:
        """Means over the key heads of every run that has their table."""
        return key_head_means(self.runs)


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
    cautions = [*found, *run_cautions(named), *pairing_cautions(named)]
    cautions += head_cautions(named)
    cautions += correlation_cautions(named, relations)
    return ComparisonData(
        _with_cautions(table, cautions),
        _cautious_differences(named),
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


def _cautious_differences(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    """The differences, each with the cautions about its two runs."""
    differences = run_differences(runs)
    cells = {}
    for run in runs[1:]:
        pair = [runs[0], run]
        found = [*obstacles(pair), *run_cautions(pair), *pairing_cautions(pair)]
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


@dataclass(frozen=True)
class Difference:
    """The difference of a mean over heads between a run and the first run."""

    run: str
    minus: str
    layer_type: str  # of the heads in both runs, or `all`
    quantity: str
    difference: float
    standard_error: float
    low: float  # of the 95 % interval
    high: float
    paired: bool
    equal_contexts: bool
    same_heads: bool
    heads: int  # with a value in the run
    minus_heads: int  # in the first run


def run_differences(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    """Every run minus the first run, for each mean of `COMPARED`.

    Plasticity at one position comes first. A mean that neither run has is left out.
    If one of two runs has several types of layers, there are also rows for each type that both
    have. Only means are subtracted, so the runs can have different numbers of layers and heads.
    """
    rows = [row for run in runs[1:] for row in _differences(run, runs[0])]
    return pd.DataFrame(rows, columns=list(Difference.__dataclass_fields__))


def _differences(run: ComparedRun, first: ComparedRun) -> Iterator[Difference]:
    paired = same_texts(run, first)
    same_contexts = not unequal([run.run.context, first.run.context])
    types = [name for name in run.layers if name in first.layers]
    if len(run.layers) == len(first.layers) == 1:
        types = []
    for layer_type in (ALL_LAYERS, *types):
        one, other = run.means_of(layer_type), first.means_of(layer_type)
        if one is None or other is None:
            continue
        for name in COMPARED:
            columns = one.columns.get(name), other.columns.get(name)
            if not any(map(_has_values, columns)):
                continue
            same_heads = same_architecture(run, first) and _have_same_heads(*columns)
            numbers = difference(*columns, paired=paired, same_heads=same_heads)
            heads = [0 if column is None else len(column.heads) for column in columns]
            labels = (run.label, first.label, layer_type, name)
            yield Difference(*labels, *numbers, paired, same_contexts, same_heads, *heads)


def _has_values(column: HeadColumn | None) -> bool:
    return column is not None and len(column.heads) > 0


def _have_same_heads(one: HeadColumn | None, other: HeadColumn | None) -> bool:
    return one is not None and other is not None and one.heads == other.heads


def difference(
    run: HeadColumn | None, first: HeadColumn | None, *, paired: bool, same_heads: bool
) -> tuple[float, float, float, float]:
    """Difference, standard error, and both ends of the interval."""
    if run is None or first is None:
        return (math.nan,) * 4
    if same_heads:
        return mean_numbers(run.minus(first, paired=paired))
    return mean_numbers(mean_difference(run.mean, first.mean, paired=paired))
