"""The rows of a batch to capture: sampled positions of every layer and kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qk_dump.heads import MOST_POSITIONS, Kind
from qk_sniffer.sampling.heads import KINDS, WantedLayer
from qk_sniffer.sampling.positions import PositionSampler
from qk_toolkit.arrays import Ints


@dataclass(frozen=True)
class KindRows:
    """Rows to take for one layer and kind of a batch."""

    sequence: Ints  # (n,) index in the batch, ascending
    position: Ints  # (n,) ascending within a sequence

    def __len__(self) -> int:
        return len(self.sequence)

    def part(self, rows: slice) -> KindRows:
        """Some of the rows."""
        return KindRows(self.sequence[rows], self.position[rows])

    def repeated(self, heads: int) -> KindRows:
        """The same rows for every head, one head after the other."""
        if heads == 1:
            return self
        return KindRows(np.tile(self.sequence, heads), np.tile(self.position, heads))

    def places_of(self, some: KindRows) -> Ints:
        """(m,) where some of these rows are among them."""
        found = np.flatnonzero(np.isin(self.codes, some.codes, assume_unique=True))
        if len(found) != len(some):
            raise ValueError(f"{len(some) - len(found)} rows are not among these")
        return found

    @property
    def codes(self) -> Ints:
        """(n,) a number for every row; other places in the batch have other numbers."""
        return self.sequence * (MOST_POSITIONS + 1) + self.position

    def texts(self) -> Iterator[tuple[int, int]]:
        """(first row, end) of every sequence that has rows."""
        starts = np.flatnonzero(np.diff(self.sequence, prepend=-1)).tolist()
        yield from zip(starts, [*starts[1:], len(self)], strict=True)


def sample_rows(
    sampler: PositionSampler,
    wanted: Sequence[WantedLayer],
    examples: Sequence[int],
    lengths: Sequence[int],
) -> dict[tuple[int, Kind], KindRows]:
    """The rows of every wanted layer and kind, for a batch of examples of these lengths."""
    rows: dict[tuple[int, Kind], KindRows] = {}
    for layer in wanted:
        number = layer.facts.layer
        for kind in KINDS:
            if not layer.heads(kind):
                continue
            kept = [
                sampler.positions(length, example=example, layer=number, kind=kind)
                for example, length in zip(examples, lengths, strict=True)
            ]
            counts = [len(positions) for positions in kept]
            rows[number, kind] = KindRows(
                sequence=np.repeat(np.arange(len(kept)), counts),
                position=np.concatenate(kept) if kept else np.empty(0, np.int64),
            )
    return rows
