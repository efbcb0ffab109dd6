"""The labels of heads in the table of roles.

They are given when the tables are written, so that other thresholds do not need a new analysis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from attention_plasticity.measure.result import Columns, HeadResult
from attention_plasticity.metrics import ROLES
from attention_plasticity.roles import default_thresholds, label

LABELS = ("role", "likely_role")
"""Columns that a record does not have."""
_PROBABILITY = 0.975  # of a value below the upper end of its 95 % interval


def with_label(result: HeadResult, thresholds: Mapping[str, float]) -> HeadResult:
    """The result with the label of its head; without scores it has none."""
    scores = result.tables.get("roles")
    if scores is None:
        return result
    values = {name: column[0] for name, column in scores.items()}
    half_widths = {name: _half_width(values, name) for name in ROLES.with_error}
    found = label(values, half_widths, {**default_thresholds(), **thresholds})
    labels: Columns = {name: [getattr(found, name)] for name in LABELS}
    return replace(result, tables={**result.tables, "roles": {**labels, **scores}})


def _half_width(values: Mapping[str, float], column: str) -> float:
    """Half the width of the interval of a score; NaN if its error is not known."""
    from scipy.special import stdtrit  # slow to import

    groups = values["repeated_groups" if column.startswith("repeated_") else "n_groups"]
    error = values[f"{column}_se"]
    if math.isnan(groups) or math.isnan(error) or groups < 2:
        return math.nan
    return float(error * stdtrit(groups - 1.0, _PROBABILITY))
