"""The rows of one batch of texts in memory, for all heads of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from qk_dump.attention_columns import AttentionRows
from qk_dump.layout import HeadId, Kind
from qk_dump.reader import Floats, Ints
from qk_dump.received_columns import RECEIVED_COLUMNS, ReceivedRows
from qk_dump.schema import TOKEN, TOKEN_ID, VALUE_NORM, written_schema


@dataclass(frozen=True)
class Block:
    """The rows of one layer and kind from one batch; all heads have the same positions.

    With `attended` they are keys that were drawn by attention, of one head. The arrays are written
    later, so they must not be changed.
    """

    layer: int
    kind: Kind
    heads: tuple[int, ...]
    bucket: Ints  # (n,)
    example_id: Ints  # (n,), ascending
    position: Ints  # (n,), ascending within an example
    vectors: Floats  # (n, heads, d), float32 or float16
    sliding_window: int | None
    token_str: Sequence[str] | None = None  # (n,)
    attention: AttentionRows | None = None  # (n, heads)
    token_id: npt.NDArray[np.int32] | None = None  # (n,)
    value_norm: npt.NDArray[np.float32] | None = None  # (n, heads)
    received: ReceivedRows | None = None  # (n, heads)
    attended: bool = False

    def __post_init__(self) -> None:
        n = len(self.bucket)
        lengths = {len(self.example_id), len(self.position), len(self.vectors)}
        if self.token_str is not None:
            lengths.add(len(self.token_str))
        if self.attention is not None:
            lengths.add(len(self.attention.lse))
        if self.received is not None:
            lengths.add(len(self.received.inclusion))
        lengths |= {
            len(column) for column in (self.token_id, self.value_norm) if column is not None
        }
        if lengths != {n} or self.vectors.shape[:-1] != (n, len(self.heads)):
            raise ValueError(
                f"layer {self.layer} {self.kind}: {n} buckets and {len(self.heads)} heads do not "
                f"fit vectors {self.vectors.shape} and columns of {sorted(lengths)} rows"
            )

    @property
    def nbytes(self) -> int:
        """Memory of the rows in bytes, without token strings."""
        columns = (self.bucket, self.example_id, self.position, self.vectors)
        optional = (self.attention, self.token_id, self.value_norm, self.received)
        return sum(column.nbytes for column in (*columns, *optional) if column is not None)

    @property
    def base_rows(self) -> int:
        """The number of rows of all heads, without keys drawn by attention."""
        return 0 if self.attended else len(self.bucket) * len(self.heads)

    def head_id(self, head: int) -> HeadId:
        """The id of one of its heads in the dump."""
        return HeadId(self.layer, head, self.kind, self.attended)

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        kind = pa.float16() if self.vectors.dtype == np.float16 else pa.float32()
        return written_schema(self.vectors.shape[2], kind, self.optional, self.group)

    @property
    def optional(self) -> list[str]:
        """The names of its optional columns."""
        found = {TOKEN: self.token_str, TOKEN_ID: self.token_id, VALUE_NORM: self.value_norm}
        names = [name for name, values in found.items() if values is not None]
        names += self.attention.columns if self.attention else ()
        return names + list(RECEIVED_COLUMNS if self.received else ())

    @property
    def group(self) -> int:
        """The number of query heads whose attention its keys receive; 0 if it is not measured."""
        return self.received.group if self.received else 0
