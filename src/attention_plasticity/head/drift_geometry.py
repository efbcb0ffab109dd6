"""The geometry of the drift of a head: the row of a table, with errors and reasons, and points."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from attention_plasticity.head.drift_points import HeadPoints, PointRows, head_points
from attention_plasticity.head.drift_rows import FEW_DIMENSIONS, NO_VARIANCE, DriftRows
from attention_plasticity.head.result import Columns
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.head.token_weights import TokenWeights
from attention_plasticity.head.values import FEW_GROUPS, NOT_FINITE
from attention_plasticity.metrics import BEFORE_ROPE
from attention_plasticity.numeric.drift_geometry import (
    COMPONENTS,
    GroupMoments,
    slope_along_mean,
)
from attention_plasticity.numeric.errors.text_groups import MIN_GROUPS
from attention_plasticity.numeric.errors.uncertainty import Estimate
from qk_dump.reader import HeadRows
from qk_toolkit.arrays import Ints

ONE_POSITION = "all rows are at one position"
ONE_GROUP = "the rows come from one group of texts"


@dataclass(frozen=True)
class HeadDrift:
    """The row of a head in the table of drift, its points, and why values are missing."""

    row: Columns = field(default_factory=dict)
    points: HeadPoints = field(default_factory=HeadPoints)
    influences: dict[str, list[float]] = field(default_factory=dict)  # of the correlations
    missing: dict[str, str] = field(default_factory=dict)  # column → reason


def head_drift(
    rows: HeadRows,
    weights: TokenWeights,
    keys: KeyHead,
    exponent: int,
    group: Ints | None,
    points: int,
    seeds: tuple[int, int],
) -> HeadDrift:
    """The drift of the queries `rows`, which were divided by two to the power `exponent`.

    `group` (n,) is that of the texts of the queries; None: not known, and there is no row. `points`
    is the largest number of queries and of keys in the table of points, and `seeds` are those of
    their choice.
    """
    if group is None:
        return HeadDrift()
    queries = DriftRows.of(rows.vectors, rows.position, keys.rotation, weights.weight, group)
    of_keys = keys.drift_rows
    values = _Values(keys.rotation.problem or "")
    scale = keys.logits.scale
    scale = 1.0 / math.sqrt(rows.width) if scale is None else scale
    two_to = exponent + queries.exponent + keys.exponent + of_keys.exponent
    length = _longest_text(rows, keys)
    for ending, q, k in (
        ("", queries.after, of_keys.after),
        (BEFORE_ROPE, queries.before, of_keys.before),
    ):
        for kind, own, other in (("q", q, k), ("k", k, q)):
            values.add_correlation(f"{kind}_drift_r{ending}", own)
            values.add_logits(f"{kind}_logit_drift{ending}", own, other, scale * length, two_to)
            values.add_components(kind, ending, own)
    known = [one.groups for one in (queries.after, of_keys.after) if one is not None]
    known += [one.groups for one in (queries.before, of_keys.before) if one is not None]
    row: Columns = {name: [value] for name, value in values.found.items()}
    found = HeadPoints()
    if points:
        q_scale, k_scale = exponent + queries.exponent, keys.exponent + of_keys.exponent
        turn = keys.rotation
        q_rows = PointRows("q", rows, weights, turn, queries, q_scale, seeds[0], points)
        k_rows = PointRows("k", keys.rows, keys.weights, turn, of_keys, k_scale, seeds[1], points)
        found = head_points([q_rows, k_rows], turn.problem or "")
    return HeadDrift(row | {"n_groups": [min(known)]}, found, values.influences, values.missing)


def _longest_text(rows: HeadRows, keys: KeyHead) -> float:
    """Tokens of the longest text of the run; else up to the last query."""
    bins = keys.all_texts.bins
    return float(math.floor(rows.position_max) + 1 if bins is None else bins.context)


class _Values:
    """Columns of the row of a head, by name, and the reasons of those that are NaN."""

    def __init__(self, no_rotation: str) -> None:
        self._no_rotation = no_rotation  # why a frame is not known
        self.found: dict[str, float] = {}
        self.missing: dict[str, str] = {}
        self.influences: dict[str, list[float]] = {}

    def _add(self, name: str, value: float, why: str) -> None:
        self.found[name] = value
        if math.isnan(value):
            self.missing[name] = why

    def _add_estimate(self, name: str, value: float, error: float, why: str, groups: int) -> None:
        self._add(name, value, why)
        why_no_error = FEW_GROUPS if groups < MIN_GROUPS else NOT_FINITE
        self._add(f"{name}_se", error, why if math.isnan(value) else why_no_error)

    def add_correlation(self, name: str, own: GroupMoments | None) -> None:
        """The cross-fitted correlation with position."""
        if own is None:
            self._add_estimate(name, math.nan, math.nan, self._no_rotation, 0)
            return
        found = own.correlation
        why = _why_no_correlation(own)
        self._add_estimate(name, found.value, found.standard_error, why, found.groups)
        self.influences[name] = [*found.influences.tolist()]

    def add_logits(
        self,
        name: str,
        own: GroupMoments | None,
        other: GroupMoments | None,
        factor: float,
        exponent: int,
    ) -> None:
        """What the drift of the own vectors changes in the logit with the mean of the others."""
        if own is None or other is None:
            self._add_estimate(name, math.nan, math.nan, self._no_rotation, 0)
            return
        found: Estimate = slope_along_mean(own, other)
        with np.errstate(over="ignore", under="ignore"):
            value, error = (
                float(np.ldexp(factor * one, exponent))
                for one in (found.value, found.standard_error)
            )
        self._add_estimate(name, value, error, ONE_POSITION, found.groups)

    def add_components(self, kind: str, ending: str, own: GroupMoments | None) -> None:
        """Shares of variance of two components, and their correlations with position."""
        for number in range(COMPONENTS):
            name = f"{kind}_pc{number}"
            if own is None:
                share, r, why = math.nan, math.nan, self._no_rotation
            else:
                found = own.components
                share, r = float(found.share[number]), float(found.r[number])
                why = FEW_DIMENSIONS if own.varies else NO_VARIANCE
            self._add(f"{name}_share{ending}", share, why)
            still = own is not None and own.varies and not own.moves
            self._add(f"{name}_r{ending}", r, ONE_POSITION if still else why)


def _why_no_correlation(own: GroupMoments) -> str:
    if not own.varies:
        return NO_VARIANCE
    if not own.moves:
        return ONE_POSITION
    return ONE_GROUP if own.groups < 2 else NOT_FINITE
