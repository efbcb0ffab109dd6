"""The means of the models and their scores, for correlations over models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import ndtri

from attention_plasticity.family.relations import Points, Relation, known_points, relation
from attention_plasticity.tables.intervals import LEVEL, mean_half_width, mean_over_heads
from qk_study.study.results import StudyResults
from qk_study.study.scores import StudyScores


@dataclass(frozen=True)
class StudyRelations:
    """Correlations of metrics with scores, and the points behind them."""

    relations: list[Relation]
    metrics: dict[str, Points]
    scores: dict[str, Points]


def study_relations(results: StudyResults) -> StudyRelations:
    """Plasticity, its drop and phase against every score of the study."""
    assert results.scores is not None
    metrics = {name: _metric(results, name) for name in results.map_metrics}
    names = [str(name) for name in results.scores.table.columns if name != "model"]
    scores = {name: _score(results.scores, name, results.labels) for name in names}
    relations = [
        _relation(metric, score, metrics[metric], scores[score], tuple(results.families))
        for score in scores
        for metric in metrics
    ]
    return StudyRelations(relations, metrics, scores)


def _relation(metric: str, score: str, x: Points, y: Points, families: tuple[str, ...]) -> Relation:
    return _cached(metric, score, tuple(x.values.tolist()), tuple(y.values.tolist()), families)


@cache
def _cached(
    metric: str,
    score: str,
    x: tuple[float, ...],
    y: tuple[float, ...],
    families: tuple[str, ...],
) -> Relation:
    """Table and figure need the same relation, which takes a second."""
    return relation(metric, score, np.array(x), np.array(y), families)


def _metric(results: StudyResults, name: str) -> Points:
    """The mean over heads of every model, with its interval over texts."""
    known = [
        mean_over_heads(run, name) if name in run.head_metrics else None
        for _, run in results.finished
    ]
    values = [math.nan if mean is None else mean.value for mean in known]
    return known_points(
        values, [math.nan if mean is None else mean_half_width(mean) for mean in known]
    )


def _score(scores: StudyScores, name: str, labels: list[str]) -> Points:
    """The score of every model, with a 95 % interval if its standard error is known."""
    values = scores.of(labels)[name].to_numpy(np.float64)  # (models,)
    own = scores.sources[scores.sources["score"] == name]
    errors = dict(zip(own["model"], own["standard_error"].astype(np.float64), strict=True))
    reach = float(ndtri(0.5 + LEVEL / 2.0))
    halves = [reach * errors.get(label, math.nan) for label in labels]
    return known_points(values.tolist(), halves)
