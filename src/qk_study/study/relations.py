"""The means of the models and their scores, for correlations over models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.family.relations import Points, Relation, known_points, relation
from attention_plasticity.tables.intervals import LEVEL, mean_half_width, mean_over_heads
from qk_study.study.scores import StudyScores


@dataclass(frozen=True)
class StudyRelations:
    """Correlations of metrics with scores, and the points behind them."""

    relations: list[Relation]
    metrics: dict[str, Points]
    scores: dict[str, Points]

    @property
    def warnings(self) -> list[str]:
        """Scores that few models have, one sentence each."""
        found = (f"{one.score}: {one.warning}." for one in self.relations if one.warning)
        return list(dict.fromkeys(found))


def study_relations(
    runs: Sequence[ComparedRun],
    families: Sequence[str],
    scores: StudyScores,
    metrics: Sequence[str],
) -> StudyRelations:
    """Every metric against every score of the study."""
    x = {name: _metric(runs, name) for name in metrics}
    names = [str(name) for name in scores.table.columns if name != "model"]
    y = {name: _score(scores, name, [run.label for run in runs]) for name in names}
    relations = [
        relation(metric, score, x[metric].values, y[score].values, families)
        for score in names
        for metric in metrics
    ]
    return StudyRelations(relations, x, y)


def _metric(runs: Sequence[ComparedRun], name: str) -> Points:
    """The mean over heads of every model, with its interval over texts."""
    known = [
        mean_over_heads(one.run, name) if name in one.run.head_metrics else None for one in runs
    ]
    values = [math.nan if mean is None else mean.value for mean in known]
    return known_points(
        values, [math.nan if mean is None else mean_half_width(mean) for mean in known]
    )


def _score(scores: StudyScores, name: str, labels: Sequence[str]) -> Points:
    """The score of every model, with a 95 % interval if its standard error is known."""
    values = scores.of(labels)[name].to_numpy(np.float64)  # (models,)
    own = scores.sources[scores.sources["score"] == name]
    errors = dict(zip(own["model"], own["standard_error"].astype(np.float64), strict=True))
    reach = float(ndtri(0.5 + LEVEL / 2.0))
    halves = [reach * errors.get(label, math.nan) for label in labels]
    return known_points(values.tolist(), halves)
