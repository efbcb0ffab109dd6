"""Second attempts of heads whose worker process was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attention_plasticity.measure.result import Failure

if TYPE_CHECKING:
    from attention_plasticity.run.plan import Group
    from attention_plasticity.run.tasks import Task

ATTEMPTS = 2


class Retries:
    """Decides which heads are computed again after the death of a worker.

    A worker computes the heads of its group in order, so the first pending head is the one that it
    was computing. A head that was being computed at two deaths fails. All others are tried again.
    """

    def __init__(self) -> None:
        self._deaths: Counter[tuple[int, int, int]] = Counter()

    def after_death(
        self, task: Task, pending: Sequence[int], reason: str
    ) -> tuple[Group | None, list[Failure]]:
        """The pending heads to compute again, and the failure of the first one if it has failed."""
        group, first = task.group, pending[0]
        head = task.job.number, group.layer, first
        self._deaths[head] += 1
        if self._deaths[head] < ATTEMPTS:
            return group.only(pending), []
        reason = f"{reason}, in {ATTEMPTS} attempts"
        failure = Failure(group.layer, first, group.k_head, reason)
        return (group.only(pending[1:]) if len(pending) > 1 else None), [failure]
