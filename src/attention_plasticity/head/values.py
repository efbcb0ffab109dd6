"""The values of a head for the table of heads, and why values are missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attention_plasticity.metrics import METRICS
from attention_plasticity.numeric.errors.text_groups import MIN_GROUPS
from attention_plasticity.numeric.errors.uncertainty import Estimate

FEW_GROUPS = f"its queries are of fewer than {MIN_GROUPS} groups of texts"


class HeadValues:
    """Columns of the table of heads, by name. A missing value is NaN and has a reason."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.missing: dict[str, str] = {}  # column → reason

    def add(self, values: Mapping[str, Any], why: str = "") -> None:
        """Add values; `why` is the reason of those that are NaN."""
        for name, value in values.items():
            self.values[name] = value
            if METRICS[name].is_missing(value):
                assert why, f"{name} is NaN without a reason"
                self.missing[name] = why

    def add_estimate(
        self, name: str, value: float, estimate: Estimate | None, why: str, why_no_errors: str
    ) -> None:
        """Add a value with its standard error and its bias, as far as it has these columns.

        `why` is the reason if there is no value, `why_no_errors` if there is no estimate.
        """
        self.add({name: value}, why)
        for metric in METRICS[name].errors:
            if estimate is None:
                known = math.nan
            elif metric.column.endswith("_se"):
                known = estimate.standard_error
            else:
                known = estimate.bias
            self.add({metric.column: known}, self._why_no_error(name, estimate, why_no_errors))

    def _why_no_error(self, name: str, estimate: Estimate | None, why_no_errors: str) -> str:
        if name in self.missing:
            return self.missing[name]
        if estimate is None or estimate.groups == 0:
            return why_no_errors
        return FEW_GROUPS
