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

    @property
    def names(self) -> list[str]:
        """All that the tables are made of."""
        units = [unit.name for unit in self.heads.values()]
        return [*units, *map(repr, self.failed.items()), repr(self.not_analysed)]

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
            key = unit.layer, unit.q_head, run.plan.layout.key_head_of(unit.q_head)
            if unit.layer < run.plan.layout.num_layers:
                units.setdefault(key, unit)
    found = Recorded({}, {}, [])
    for head, unit in sorted(units.items()):
        if records.exists(unit):
            found.heads[head] = unit
        elif (reason := records.failure(unit)) is not None:
            found.failed[head] = reason
        else:
            found.not_analysed.append(head)
    return found
