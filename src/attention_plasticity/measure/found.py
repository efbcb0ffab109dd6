"""What one file of `measure/` finds of a head: values, quantities with errors, reasons, rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attention_plasticity.estimate.quantity import MIN_GROUPS, Quantity, Unknown
from attention_plasticity.estimate.sizes import GROUPS
from attention_plasticity.measure.result import Columns
from attention_plasticity.metrics import GROUP_COLUMNS, TABLES, TableKind

FEW_GROUPS = f"the rows come from fewer than {MIN_GROUPS} groups of texts"
ONE_GROUP_NEEDED = "without one group of texts there is no value"

Named = tuple[str, float, Quantity]
"""A quantity with its name and its bin; NaN: it is of the whole head."""


@dataclass
class Found:
    """Values of one row of a table, by column, and rows of other tables."""

    kind: TableKind = "head_metrics"
    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # column → why it is NaN
    quantities: list[Named] = field(default_factory=list)
    tables: dict[str, Columns] = field(default_factory=dict)

    def add(self, values: Mapping[str, Any], why: str = "") -> None:
        """Add values; `why` is the reason of those that are NaN."""
        metrics = TABLES[self.kind].by_name
        for name, value in values.items():
            self.values[name] = value
            if metrics[name].is_missing(value):
                assert why, f"{name} is NaN without a reason"
                self.reasons[name] = why

    def add_quantity(
        self, name: str, found: Quantity | Unknown, why: str = "", no_errors: str = ""
    ) -> None:
        """Add a value with its standard error and its influences.

        `why` is the reason if the value is NaN, `no_errors` if texts are not known.
        """
        if isinstance(found, Unknown):
            self.add({name: math.nan, f"{name}_se": math.nan}, found.reason)
            return
        self.add({name: found.value}, why)
        self.add({f"{name}_se": found.standard_error}, why_no_error(found, why, no_errors))
        if found.groups > 0 and not math.isnan(found.value):
            self.quantities.append((name, math.nan, found))

    def add_unknown(self, names: Iterable[str], why: str) -> None:
        """Add quantities that are not known."""
        for name in names:
            self.add_quantity(name, Unknown(why))


def why_no_error(found: Quantity, why: str, no_errors: str) -> str:
    """Why a value has no standard error."""
    if math.isnan(found.value):
        return why
    if found.groups == 0:
        return no_errors
    return FEW_GROUPS if found.groups < MIN_GROUPS else ONE_GROUP_NEEDED


def influence_columns(quantities: Iterable[Named]) -> Columns:
    """Columns of the table of influences."""
    rows = list(quantities)
    columns: Columns = {
        "quantity": [name for name, _, _ in rows],
        "bin": [number for _, number, _ in rows],
        "value": [one.value for _, _, one in rows],
        "n_groups": [int(one.groups) for _, _, one in rows],
    }
    influences = np.array([one.influences for _, _, one in rows]).reshape(-1, GROUPS).T
    return columns | dict(zip(GROUP_COLUMNS, influences.tolist(), strict=True))


def head_row(parts: Iterable[Found], names: Iterable[str]) -> dict[str, Any]:
    """The row of the table of heads with these columns, in their order."""
    values: dict[str, Any] = {}
    for part in parts:
        if part.kind == "head_metrics":
            values |= part.values
    return {name: values[name] for name in names}
