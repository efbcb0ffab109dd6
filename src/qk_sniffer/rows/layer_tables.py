"""The tables of a capture: one per layer and kind, with a column `head`.

Rows travel in these tables from the forward to the files of the heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from qk_dump.columns import HEAD, schema_of
from qk_dump.heads import HeadId, Kind
from qk_dump.rows import Rows


class Part(NamedTuple):
    """The queries of a layer, its keys, or its keys drawn by attention."""

    layer: int
    kind: Kind
    attended: bool = False

    @classmethod
    def of(cls, head: HeadId) -> Self:
        """The part to which a head belongs."""
        return cls(head.layer, head.kind, head.attended)

    @property
    def name(self) -> str:
        """`l03q`, `l03k` or `l03k-attended`."""
        return f"l{self.layer:02d}{self.kind}{'-attended' if self.attended else ''}"

    def head(self, number: int) -> HeadId:
        """A head of this part."""
        return HeadId(self.layer, number, self.kind, self.attended)


@dataclass(frozen=True)
class LayerTable:
    """The heads of a part, and the columns of their rows."""

    part: Part
    heads: tuple[int, ...]  # ascending
    names: tuple[str, ...]  # columns without `layer` and `head`
    width: int  # of the vectors
    group: int  # query heads per key head
    half: bool = False  # vectors are float16

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the table, and of the files of its heads."""
        return schema_of(self.names, self.width, half=self.half, group=self.group)

    @property
    def head_ids(self) -> list[HeadId]:
        """The heads with their part."""
        return [self.part.head(number) for number in self.heads]

    def as_record(self) -> dict[str, Any]:
        """The table as values for JSON."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The table of a record."""
        part, heads, names = (record[name] for name in ("part", "heads", "names"))
        lists = {"part": Part(*part), "heads": tuple(heads), "names": tuple(names)}
        return cls(**{**record, **lists})


def with_heads(rows: Mapping[HeadId, Rows]) -> dict[Part, Rows]:
    """The rows of heads as those of parts, with the column `head`; keys come first."""
    found: dict[Part, list[Rows]] = {}
    for head in sorted(rows):
        numbers = np.full(len(rows[head]), head.head, np.int32)
        found.setdefault(Part.of(head), []).append(rows[head].with_columns({HEAD: numbers}))
    return {part: Rows.joined(found[part]) for part in keys_first(found)}


def keys_first(parts: Iterable[Part]) -> list[Part]:
    """The parts by layer, keys before queries: NaN of a key is in the attention of queries too."""
    return sorted(parts, key=lambda part: (part.layer, part.attended, part.kind))
