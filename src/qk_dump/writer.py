"""Writing the rows of a head: one Parquet file, complete or not there at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from qk_dump.files import staged, sync
from qk_dump.layout import HeadId
from qk_dump.schema import BUCKET, EXAMPLE, POSITION, VECTOR, WINDOW, written_schema

DATA_FILE = "data.parquet"
_ROWS_PER_GROUP = 16_384


def write_head(
    dump: Path,
    head: HeadId,
    *,
    bucket: npt.ArrayLike,
    example_id: npt.ArrayLike,
    position: npt.ArrayLike,
    vectors: npt.NDArray[np.floating[Any]],
    sliding_window: int | None = None,
) -> Path:
    """Write one head's rows into `dump`. Vectors (n, d) keep float16, all else becomes float32."""
    half = vectors.dtype == np.float16
    values = np.ascontiguousarray(vectors, np.float16 if half else np.float32)  # (n, d)
    n, width = values.shape
    schema = written_schema(width, pa.float16() if half else pa.float32())
    table = pa.table(
        {
            BUCKET: _int32(bucket),
            EXAMPLE: _int32(example_id),
            POSITION: _int32(position),
            VECTOR: pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width),
            WINDOW: pa.array([sliding_window] * n, pa.int32()),
        },
        schema=schema,
    )
    path = dump / head.folder / DATA_FILE
    with staged(path) as draft, draft.open("wb") as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            use_dictionary=[BUCKET, EXAMPLE, POSITION, WINDOW],
            use_byte_stream_split=[f"{VECTOR}.list.element"],  # floats pack smaller, read faster
            row_group_size=_ROWS_PER_GROUP,
            write_page_checksum=True,
        )
        sync(file)
    return path


def _int32(values: npt.ArrayLike) -> pa.Array:
    """As an int32 column; a number that does not fit is an error, never another number."""
    return pa.array(np.asarray(values)).cast(pa.int32())
