"""Which pages a dump should be made of: encodings × compressions, on real captured vectors."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qk_dump.reader import read_head
from qk_dump.source import open_dump

ENCODINGS = ("dictionary", "plain", "byte-split")
COMPRESSIONS = ("none", "lz4", "zstd")
_HEADS = 12


def pages(dump: Path | None, rounds: int) -> None:
    """Size, write and read speed of every combination."""
    if dump is None:
        raise SystemExit("pages: give a dump of real vectors, --dump FOLDER")
    found = open_dump(dump)
    step = max(1, len(found.folders) // _HEADS)
    tables = [pq.read_table(found.files(head)[0]) for head in list(found.folders)[::step][:_HEADS]]
    size = sum(table["vector"].nbytes for table in tables)
    print(f"\npages: {len(tables)} heads of {found.manifest and found.manifest.model}")
    print(f"{sum(table.num_rows for table in tables):,} rows, {size / 1e6:.0f} MB of vectors")
    print("encoding     compression   size   write MB/s   read MB/s")
    for encoding in ENCODINGS:
        for compression in COMPRESSIONS:
            share, write, read = _measured(tables, encoding, compression, size, rounds)
            print(f"{encoding:12s} {compression:10s} {share:6.1%} {write:12.0f} {read:11.0f}")


def _measured(
    tables: list[pa.Table], encoding: str, compression: str, size: int, rounds: int
) -> tuple[float, float, float]:
    writes, reads = [], []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.parquet" for number in range(len(tables))]
        for _ in range(rounds):
            began = time.perf_counter()
            for table, path in zip(tables, paths, strict=True):
                _write(table, path, encoding, compression)
            writes.append(time.perf_counter() - began)
            began = time.perf_counter()
            for path in paths:
                rows = read_head([path], examples=True)
                assert rows.vectors.dtype == np.float32
            reads.append(time.perf_counter() - began)
        share = sum(path.stat().st_size for path in paths) / size
    return share, size / 1e6 / min(writes), size / 1e6 / min(reads)


def _write(table: pa.Table, path: Path, encoding: str, compression: str) -> None:
    others = [name for name in table.column_names if name != "vector"]
    vector = "vector.list.element"
    pq.write_table(
        table,
        path,
        compression=compression,
        use_dictionary=[*others, vector] if encoding == "dictionary" else others,
        use_byte_stream_split=[vector] if encoding == "byte-split" else False,
        row_group_size=16_384,
        write_page_checksum=True,
    )
