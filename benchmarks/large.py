"""A head far larger than it should ever be, for the memory benchmark."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.shapes import vectors_of
from qk_dump.columns import schema_of, written_names

_CONTEXT, _BUCKET, _PART = 131_072, 8192, 1_000_000


def make_large(data: Path, rows: int, width: int = 64) -> Path:
    """A dump of one head with so many rows; keys are a link to the queries."""
    folder = data / (f"large-{rows}" if width == 64 else f"large-{rows}x{width}")
    target = folder / "l00h00q" / "data.parquet"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(".part")
        names = written_names("q", attention=False, tokens=False, received=False)
        whole = schema_of(names, width)
        schema = pa.schema([whole.field(name) for name in names])  # keys are a link to it
        with pq.ParquetWriter(draft, schema, compression="none") as writer:
            for part in range(rows // _PART):
                writer.write_table(_part(part, width, schema), row_group_size=_PART)
        draft.rename(target)
        keys = folder / "l00h00k" / "data.parquet"
        keys.parent.mkdir()
        os.link(target, keys)
    return folder


def _part(number: int, width: int, schema: pa.Schema) -> pa.Table:
    rng = np.random.default_rng(number)
    position = rng.integers(0, _CONTEXT, _PART)
    vectors = vectors_of(rng, position, width, _CONTEXT, "gaussian")
    columns = [
        pa.array((position // _BUCKET).astype(np.int32)),
        pa.array(np.full(_PART, number, np.int32)),
        pa.array(position.astype(np.int32)),
        pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), width),
        pa.nulls(_PART, pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=schema)
