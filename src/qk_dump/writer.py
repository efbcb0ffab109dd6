"""Writing rows: one Parquet file per head. Only complete files get the final name."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qk_dump.columns import (
    BUCKET,
    EXAMPLE,
    HEAD,
    LAYER,
    POSITION,
    RECEIVED,
    TOKEN_ID,
    VECTOR,
    WINDOW,
    schema_of,
    table_of,
)
from qk_dump.heads import HeadId
from qk_dump.record import FileRecord
from qk_dump.rows import Rows
from qk_toolkit.files import staged, sync

DATA_FILE = "data.parquet"
ROWS_PER_GROUP = 16_384
_DICTIONARIES = (BUCKET, EXAMPLE, POSITION, WINDOW, TOKEN_ID, LAYER, HEAD)


class HeadWriter:
    """Writes the rows of a head to its Parquet file, which appears when the block succeeds.

    The bytes of the file do not depend on how rows are split into tables: each row group has the
    same size and is written in one call. `capture` is the id of the capture.
    """

    def __init__(
        self, dump: Path, head: HeadId, schema: pa.Schema, capture: str | None = None
    ) -> None:
        self.path = dump / head.folder / DATA_FILE
        self.rows = 0  # written
        self._schema = schema
        self._facts = capture, head.folder
        self._buffer: list[pa.Table] = []  # rows of the next group

    def __enter__(self) -> HeadWriter:
        with ExitStack() as stack:
            draft = stack.enter_context(staged(self.path))
            self._file = stack.enter_context(draft.open("wb"))
            self._parquet = pq.ParquetWriter(
                self._file,
                self._schema,
                compression="zstd",
                use_dictionary=[name for name in _DICTIONARIES if name in self._schema.names],
                use_byte_stream_split=_float_columns(self._schema),  # compresses floats better
                write_page_checksum=True,
            )
            stack.push(self._end)
            self._steps = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._steps.__exit__(kind, error, trace)

    def write(self, rows: pa.Table) -> None:
        """Append rows."""
        self.rows += rows.num_rows
        self._buffer.append(rows)
        if sum(table.num_rows for table in self._buffer) < ROWS_PER_GROUP:
            return
        table = pa.concat_tables(self._buffer)
        end = table.num_rows - table.num_rows % ROWS_PER_GROUP
        for start in range(0, end, ROWS_PER_GROUP):
            self._write_group(table.slice(start, ROWS_PER_GROUP))
        self._buffer = [table.slice(end)]

    def _write_group(self, rows: pa.Table) -> None:
        self._parquet.write_table(rows.combine_chunks(), row_group_size=ROWS_PER_GROUP)

    def _end(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                if any(table.num_rows for table in self._buffer):
                    self._write_group(pa.concat_tables(self._buffer))
                record = FileRecord(*self._facts, self.rows, self._schema.names)
                self._parquet.add_key_value_metadata(record.as_metadata())
                self._parquet.close()
                sync(self._file)
        finally:
            with suppress(OSError, ValueError, pa.ArrowException):  # for an unfinished file
                self._parquet.close()


def write_head(dump: Path, head: HeadId, rows: Rows, capture: str | None = None) -> Path:
    """Write the rows of one head. Vectors (n, d) are stored as float16 or float32."""
    vectors, received = rows[VECTOR], rows.get(RECEIVED)
    schema = schema_of(
        rows.columns,
        vectors.shape[1],
        half=vectors.dtype == np.float16,
        group=0 if received is None else received.shape[1],
    )
    with HeadWriter(dump, head, schema, capture) as writer:
        writer.write(table_of(rows, head.layer, schema, head.head))
    return writer.path


def _float_columns(schema: pa.Schema) -> list[str]:
    """Parquet paths of the columns of floats."""
    return [
        f"{field.name}.list.element" if pa.types.is_fixed_size_list(field.type) else field.name
        for field in schema
        if pa.types.is_fixed_size_list(field.type) or pa.types.is_floating(field.type)
    ]
