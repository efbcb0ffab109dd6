"""How RoPE turns the vectors of a layer: a rotary record, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from qk_dump.rotary import RotaryError, RotaryRecord
from qk_sniffer.model.rotary_tables import FrequencyTable


@dataclass(frozen=True)
class Rotation:
    """The rotary record of captured vectors.

    Without a record, `problem` is the reason. It is None in layers without a rotary embedding.
    """

    record: RotaryRecord | None = None
    problem: str | None = None
    table: FrequencyTable | None = field(default=None, repr=False, compare=False)
    """Where the frequencies come from, if they depend on the length of a text."""

    def for_texts(self, lengths: Iterable[int]) -> Rotation:
        """The record of texts with these numbers of tokens.

        Frequencies of the rope types dynamic and longrope depend on the length of a text. If the
        texts have different ones, there is no record.
        """
        if self.record is None or self.table is None:
            return self
        found: dict[tuple[float, ...], int] = {}  # frequencies → length of the first such text
        for length in sorted({length for length in lengths if length > 0}):
            found.setdefault(self.table.frequencies(length), length)
            if len(found) > 1:
                one, other = found.values()
                return Rotation(
                    problem="the frequencies depend on the length of a text (rope type dynamic or "
                    f"longrope), and texts of {one:,} and {other:,} tokens have different ones"
                )
        try:
            frequencies = next(iter(found), self.record.frequencies)
            return Rotation(replace(self.record, frequencies=frequencies))
        except RotaryError as error:
            return Rotation(problem=f"the frequencies of long texts cannot be used: {error}")


@dataclass(frozen=True)
class Rotations:
    """The rotation of vectors that are captured after RoPE, and of those captured before it."""

    after: Rotation = Rotation()
    before: Rotation = Rotation()
