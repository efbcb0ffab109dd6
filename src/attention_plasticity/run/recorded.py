"""Which heads of a run are finished, which failed, and which are not analysed yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from attention_plasticity.run.preparation import PlannedRun
from attention_plasticity.run.records import Records, Unit

Triple = tuple[int, int, int]  # layer, query head and key head
Key = TypeVar("Key", Triple, tuple[int, int])


@dataclass
class Recorded:
    """What is recorded of a run."""

    heads: dict[Triple, Unit]  # finished
    failed: dict[Triple, str]  # with the reason
    not_analysed: list[Triple]
    key_heads: dict[tuple[int, int], Unit]  # whose fidelity is measured
    failed_key_heads: dict[tuple[int, int], str]

    @property
    def names(self) -> list[str]:
        """All that the tables are made of."""
        units = [*self.heads.values(), *self.key_heads.values()]
        failed = [*self.failed.items(), *self.failed_key_heads.items()]
        return [*(unit.name for unit in units), *map(repr, failed), repr(self.not_analysed)]

    def leave_out(self, head: Triple) -> None:
        """The record of a head is damaged, so the head is not analysed."""
        del self.heads[head]
        self.not_analysed = sorted([*self.not_analysed, head])


def recorded(run: PlannedRun) -> Recorded:
    """The heads of the dump that are recorded with the settings of the run."""
    records = run.records
    units = dict(run.units)
    if run.is_part:  # heads that other commands fetched
        for unit in records.units():
            key = unit.layer, unit.number, run.plan.layout.key_head_of(unit.number)
            if unit.kind == "h" and unit.layer < run.plan.layout.num_layers:
                units.setdefault(key, unit)
    key_heads = {(one.layer, one.k_head): run.fidelity_unit(one) for one in run.whole.groups}
    measured, failed_key_heads, _ = _by_state(records, key_heads)
    return Recorded(*_by_state(records, units), measured, failed_key_heads)


def _by_state(
    records: Records, units: Mapping[Key, Unit]
) -> tuple[dict[Key, Unit], dict[Key, str], list[Key]]:
    """Units with a record, those that failed with the reason, and the others, each sorted."""
    found: dict[Key, Unit] = {}
    failed: dict[Key, str] = {}
    left: list[Key] = []
    for key, unit in sorted(units.items()):
        if records.exists(unit):
            found[key] = unit
        elif (reason := records.failure(unit)) is not None:
            failed[key] = reason
        else:
            left.append(key)
    return found, failed, left
