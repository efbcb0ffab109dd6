"""Which heads of a run are finished, which failed, and which are not analysed yet."""

from __future__ import annotations

from dataclasses import dataclass

from attention_plasticity.run.preparation import PlannedRun
from attention_plasticity.run.records import Unit

Triple = tuple[int, int, int]  # layer, query head and key head


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
    heads: dict[Triple, Unit] = {}
    failed: dict[Triple, str] = {}
    left: list[Triple] = []
    for triple, unit in sorted(units.items()):
        reason = records.failure(unit)
        if records.exists(unit):
            heads[triple] = unit
        elif reason is not None:
            failed[triple] = reason
        else:
            left.append(triple)
    key_heads: dict[tuple[int, int], Unit] = {}
    failed_key_heads: dict[tuple[int, int], str] = {}
    for group in run.whole.groups:
        unit, key_head = run.fidelity_unit(group), (group.layer, group.k_head)
        reason = records.failure(unit)
        if records.exists(unit):
            key_heads[key_head] = unit
        elif reason is not None:
            failed_key_heads[key_head] = reason
    return Recorded(heads, failed, left, key_heads, failed_key_heads)
