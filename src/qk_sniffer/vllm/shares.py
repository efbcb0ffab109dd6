"""The heads of a tensor-parallel rank: which ones it gives rows of, and what it computes with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from qk_dump.heads import HeadId
from qk_dump.rows import Rows
from qk_sniffer.engines.engine import Rotations
from qk_sniffer.rows.plan import RowPlan
from qk_sniffer.sampling.heads import WantedLayer


@dataclass(frozen=True)
class Share:
    """The heads of a rank, by their numbers in the model.

    If there are fewer key heads than ranks, several ranks have copies of a key head, each with some
    of its query heads. The first of them then gives the rows of the key head and of all its query
    heads, which it gets from the others; the others give none.
    """

    q: range
    k: range
    gathers: bool  # queries come from all ranks

    def of_plan(self, plan: RowPlan) -> RowPlan:
        """What this rank keeps; heads are counted from its first ones."""
        layers = tuple(
            WantedLayer(
                replace(layer.facts, rotations=Rotations()),
                tuple(head - self.q.start for head in layer.q if head in self.q),
                tuple(head - self.k.start for head in layer.k if head in self.k),
            )
            for layer in plan.wanted
        )
        attended = plan.attended
        if attended is not None:
            attended = replace(attended, first_key_head=self.k.start)
        wanted = tuple(layer for layer in layers if layer.q or layer.k)
        return replace(plan, wanted=wanted, attended=attended)

    def numbered(self, rows: Mapping[HeadId, Rows]) -> dict[HeadId, Rows]:
        """Rows of this rank with the numbers of heads in the model."""
        first = {"q": self.q.start, "k": self.k.start}
        return {
            head._replace(head=head.head + first[head.kind]): part for head, part in rows.items()
        }


def share_of(rank: int, ranks: int, q_heads: int, k_heads: int) -> Share:
    """The heads of a rank; vLLM gives consecutive heads to consecutive ranks."""
    if k_heads % ranks == 0:
        q, k = q_heads // ranks, k_heads // ranks
        return Share(range(rank * q, (rank + 1) * q), range(rank * k, (rank + 1) * k), False)
    copies, group = ranks // k_heads, q_heads // k_heads
    number, copy = divmod(rank, copies)
    if copy:
        return Share(range(0), range(0), True)
    return Share(range(number * group, (number + 1) * group), range(number, number + 1), True)
