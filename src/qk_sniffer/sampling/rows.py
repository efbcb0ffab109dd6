"""The rows of a batch to capture: sampled positions of every layer and kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qk_dump.layout import Kind
from qk_sniffer.sampling.heads import WantedLayer
from qk_sniffer.sampling.positions import PositionSampler

Ints = npt.NDArray[np.int64]

KINDS: tuple[Kind, Kind] = ("q", "k")


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

    def tokens(self, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """(n,) the tokens of the rows, from the ids (b, s) of the batch."""
        return ids[self.sequence, self.position].astype(np.int32)

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
