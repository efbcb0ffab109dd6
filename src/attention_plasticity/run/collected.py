"""The recorded heads of a run: values of heads, rows of roles, and means over heads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attention_plasticity.estimate.sizes import GROUPS
from attention_plasticity.measure.result import Failure
from attention_plasticity.metrics import IDS, ROLES, TABLES, TableKind
from attention_plasticity.roles import default_thresholds, label
from attention_plasticity.run.preparation import PlannedRun
from attention_plasticity.run.record import Record
from attention_plasticity.run.records import Unit
from attention_plasticity.run.warnings import SampleSizes
from attention_plasticity.tables.head_means import EligibleHeads, MeanEstimate, mean_estimate
from attention_plasticity.tables.intervals import groups_column, half_width
from qk_toolkit.arrays import Array

Triple = tuple[int, int, int]  # layer, query head and key head


class Collected:
    """What the records of a run have, in the order of its heads. `records` reads them."""

    def __init__(self, run: PlannedRun) -> None:
        self._run = run
        config = run.config
        self.heads: list[Triple] = []  # finished
        self.failures: list[Failure] = []
        self.not_analysed: list[Triple] = []
        self.roles: list[dict[str, Any]] = []  # rows of the table
        self.values: dict[TableKind, list[dict[str, Any]]] = {"head_metrics": [], "key_heads": []}
        self.missing: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
        self.sizes = SampleSizes(single_example=config.single_example)
        self.unknown_tokens: list[int] = []
        self._thresholds = {**default_thresholds(), **config.role_thresholds}
        self._numbers: dict[tuple[TableKind, str], dict[int, Array]] = {}  # by row of the table

    def records(self) -> Iterator[Record]:
        """Every record, after it was added. Damaged ones are left out."""
        groups = {(one.layer, one.k_head): one.q_heads for one in self._run.whole.groups}
        units = dict(self._run.units)
        if self._run.is_part:  # heads that other commands fetched
            for unit in self._run.records.units():
                if unit.layer < self._run.plan.layout.num_layers:
                    units.setdefault((unit.layer, unit.k_head), unit)
        for key, unit in sorted(units.items()):
            record = self._run.records.read(unit)
            known: set[int] = set()
            if record is not None:
                self._add(unit, record)
                known = {*record.q_heads, *(one.q_head for one in record.failures)}
                yield record
            left = [q_head for q_head in groups.get(key, ()) if q_head not in known]
            self.not_analysed += [(unit.layer, q_head, unit.k_head) for q_head in left]

    def _add(self, unit: Unit, record: Record) -> None:
        self.failures += record.failures
        places: dict[int | None, int] = {None: len(self.values["key_heads"])}
        for head in record.heads:
            q_head = head["q_head"]
            ids = dict(zip(IDS, (unit.layer, q_head, unit.k_head), strict=True))
            self.heads.append((unit.layer, q_head, unit.k_head))
            places[q_head] = len(self.values["head_metrics"])
            self.values["head_metrics"].append({"layer": unit.layer, **head["values"]})
            if head["roles"] is not None:
                self.roles.append(ids | self._with_label(head["roles"]))
            for table, reasons in head["missing"].items():
                self._add_missing(table, reasons, (unit.layer, q_head))
            reasons = head["missing"].get("head_metrics", {})
            self.sizes.add(head["values"], reasons, head["sizes"])
            self.unknown_tokens.append(head["unknown_tokens"])
        if record.key_head is not None:
            self.values["key_heads"].append(record.key_head["values"])
            self._add_missing("key_heads", record.key_head["missing"], (unit.layer, unit.k_head))
        for (of_head, name), numbers in zip(record.quantities, record.numbers, strict=True):
            own: TableKind = "key_heads" if of_head is None else "head_metrics"
            self._numbers.setdefault((own, name), {})[places[of_head]] = numbers

    def _add_missing(self, table: str, reasons: Mapping[str, str], head: tuple[int, int]) -> None:
        for column, reason in reasons.items():
            self.missing.setdefault((table, column, reason), []).append(head)

    def _with_label(self, row: dict[str, Any]) -> dict[str, Any]:
        """Scores with the role of their head: other thresholds need no new analysis."""
        names = ROLES.with_error
        errors = [row[f"{name}_se"] for name in names]
        groups = [row[groups_column(name)] for name in names]
        halves = dict(zip(names, half_width(errors, groups).tolist(), strict=True))
        found = label(row, halves, self._thresholds)
        return {"role": found.role, "likely_role": found.likely_role, **row}

    def means(self, eligible: EligibleHeads | None) -> dict[str, Any]:
        """The means over heads, as run.json has them."""
        total = None if eligible is None else eligible.total
        by_type: dict[str, list[int]] = {}
        for place, row in enumerate(self.values["head_metrics"]):
            by_type.setdefault(row["layer_type"], []).append(place)
        of_types = {}
        for name, rows in by_type.items():
            of_type = None if eligible is None else eligible.of_types([name])
            of_types[name] = self._means("head_metrics", rows, of_type)
        return {
            "means": self._means("head_metrics", None, total),
            "means_by_layer_type": of_types,
            "key_head_means": self._means("key_heads", None, None),
        }

    def _means(
        self, kind: TableKind, rows: Sequence[int] | None, eligible: int | None
    ) -> dict[str, Any]:
        """Means of the columns of a table over all rows, or some."""
        used = list(range(len(self.values[kind]))) if rows is None else list(rows)
        found = {}
        for name in TABLES[kind].averaged:
            numbers = np.full((len(self.values[kind]), 1 + GROUPS), np.nan)
            numbers[:, 0] = 0.0  # groups
            for place, one in self._numbers.get((kind, name), {}).items():
                numbers[place] = one[1:]
            values = np.array([row.get(name, math.nan) for row in self.values[kind]], np.float64)
            found[name] = mean_estimate(values[used], numbers[used, 1:], numbers[used, 0], eligible)
        return _for_json(found)


def _for_json(means: Mapping[str, MeanEstimate]) -> dict[str, Any]:
    """Means over heads for run.json, without NaN, which JSON does not have."""
    return {
        name: {
            "value": mean.value,
            "standard_error": _known(mean.standard_error),
            "standard_error_texts": _known(mean.text_error),
            "heads": mean.heads,
            "eligible_heads": mean.eligible,
            "groups": mean.groups or None,
        }
        for name, mean in means.items()
        if mean.heads
    }


def _known(error: float) -> float | None:
    return None if math.isnan(error) else error
