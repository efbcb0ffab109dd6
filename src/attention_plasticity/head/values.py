"""The values of a head for the table of heads, and why values are missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attention_plasticity.metrics import CORRECTED, METRICS
from attention_plasticity.numeric.errors.text_groups import MIN_GROUPS
from attention_plasticity.numeric.errors.uncertainty import Estimate

FEW_GROUPS = f"the rows come from fewer than {MIN_GROUPS} groups of texts"
NOT_FINITE = "sums of very large or very small numbers are not finite"


class HeadValues:
    """Columns of the table of heads, by name. A missing value is NaN and has a reason."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.missing: dict[str, str] = {}  # column → reason
        self.estimates: dict[str, Estimate] = {}  # values with errors, in the order of addition

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
        """Add a value with its error, its bias and its corrected value, if it has these columns.

        `why` is the reason if there is no value, `why_no_errors` if there is no estimate. The
        influences of the estimate become rows of the table of influences.
        """
        self.add({name: value}, why)
        if estimate is not None:
            self.estimates[name] = estimate
        for metric in METRICS[name].errors:
            is_error = metric.column.endswith("_se")
            known = math.nan
            if estimate is not None and metric.column.endswith(CORRECTED):
                known = value - estimate.bias
            elif estimate is not None:
                known = estimate.standard_error if is_error else estimate.bias
            reason = self.missing.get(name)
            if reason is None and estimate is None:
                reason = why_no_errors
            elif reason is None and estimate is not None:
                reason = FEW_GROUPS if estimate.groups < MIN_GROUPS else NOT_FINITE
            self.add({metric.column: known}, reason or NOT_FINITE)
