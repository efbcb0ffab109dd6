"""The labels of heads in the table of roles.

They are given when the tables are written, so that other thresholds do not need a new analysis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from attention_plasticity.head.result import Columns, HeadResult
from attention_plasticity.metrics import ROLES
from attention_plasticity.roles import default_thresholds, label

_PROBABILITY = 0.975  # of a value below the upper end of its 95 % interval


def with_label(result: HeadResult, thresholds: Mapping[str, float]) -> HeadResult:
    """The result with the label of its head; without scores it has none."""
    if not result.roles:
        return result
    values = {name: column[0] for name, column in result.roles.items()}
    half_widths = {
        metric.column: _half_width(values, metric.column)
        for metric in ROLES.columns
        if metric.error
    }
    found = label(values, half_widths, {**default_thresholds(), **thresholds})
    labels: Columns = {"role": [found.role], "likely_role": [found.likely_role]}
    return replace(result, roles={**labels, **result.roles})


def _half_width(values: Mapping[str, float], column: str) -> float:
    """Half the width of the interval of a score; NaN if its error is not known."""
    from scipy.special import stdtrit  # slow to import

    groups = values["repeated_groups" if column.startswith("repeated_") else "n_groups"]
    error = values[f"{column}_se"]
    if math.isnan(groups) or math.isnan(error) or groups < 2:
        return math.nan
    return float(error * stdtrit(groups - 1.0, _PROBABILITY))
