"""Means over heads of the table of drift, with standard errors over texts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attention_plasticity.head.result import HeadResult
from attention_plasticity.metrics import DRIFT, GROUP_COLUMNS
from attention_plasticity.run.head_means import MeanEstimate, mean_estimate

AVERAGED_DRIFT = tuple(metric.column for metric in DRIFT.columns if metric.averaged)
"""Columns of the table of drift whose mean over heads is in run.json."""


class DriftMeans:
    """Collects the rows of heads in the table of drift."""

    def __init__(self, eligible: int | None = None) -> None:
        """`eligible`: heads from which the heads were sampled at random; None: heads are fixed."""
        self._eligible = eligible
        self._heads: list[HeadResult] = []

    def add(self, result: HeadResult) -> None:
        """Add a head, if it has a row."""
        if result.drift:
            self._heads.append(result)

    @property
    def estimates(self) -> dict[str, MeanEstimate]:
        """The means over the heads with a value."""
        return {name: self._mean(name) for name in AVERAGED_DRIFT} if self._heads else {}

    def _mean(self, name: str) -> MeanEstimate:
        unknown: Sequence[float] = (math.nan,) * len(GROUP_COLUMNS)
        return mean_estimate(
            [head.drift[name][0] for head in self._heads],
            [math.nan] * len(self._heads),  # no bias is subtracted
            [head.drift_influences.get(name, unknown) for head in self._heads],
            [head.drift["n_groups"][0] for head in self._heads],
            self._eligible,
        )
