"""Collects the rows of the table of key heads while the tables of a run are written.

The counts of a query head are part of its record. The row of a key head is made from the records of
its query heads, so it does not matter in which run, process or shard each of them was computed.
"""

from __future__ import annotations

from collections.abc import Iterator

from attention_plasticity.estimate.quantity import unknown
from attention_plasticity.measure.key_heads import KeyHeadRow, key_head_row
from attention_plasticity.measure.result import HeadResult
from attention_plasticity.metrics import KEY_HEADS
from attention_plasticity.run.head_means import MeanEstimate, mean_estimate


class KeyHeadRows:
    """Collects the rows of key heads. Heads are added by layer and number."""

    def __init__(self) -> None:
        self.rows: list[KeyHeadRow] = []
        self._open: list[HeadResult] = []

    def add(self, result: HeadResult) -> Iterator[KeyHeadRow]:
        """Add a query head. Yields the row of the key head before, if it is complete."""
        last = self._open[-1] if self._open else result
        if (last.layer, last.k_head) != (result.layer, result.k_head):
            yield from self.end()
        self._open.append(result)

    def end(self) -> Iterator[KeyHeadRow]:
        """The row of the last key head."""
        row = key_head_row(self._open) if self._open else None
        self._open = []
        if row is not None:
            self.rows.append(row)
            yield row

    @property
    def means(self) -> dict[str, MeanEstimate]:
        """Means over key heads, with errors over texts."""
        return {name: self._mean(name) for name in KEY_HEADS.averaged}

    def _mean(self, name: str) -> MeanEstimate:
        own = [row.quantities.get(name, unknown()) for row in self.rows]
        return mean_estimate(
            [one.value for one in own],
            [one.influences.tolist() for one in own],
            [one.groups for one in own],
        )
