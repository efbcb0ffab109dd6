"""The writer of a capture over one bare pyarrow write of the same rows."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qk_dump.columns import BUCKET, EXAMPLE, POSITION, VECTOR, WINDOW, schema_of, written_names
from qk_dump.examples import Example
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest
from qk_dump.rows import Rows
from qk_sniffer.capture.finish import finish
from qk_sniffer.capture.folder import open_capture
from qk_sniffer.capture.segments import segment_path, write_segment

HEADS, WIDTH, TEXTS, ROWS_PER_TEXT = 48, 128, 20, 1000
TEXTS_OF_SEGMENT = 5


def writing(rounds: int) -> None:
    """Rows per second of both, from arrays in memory to files on disk."""
    print(f"\nwriting {HEADS} heads × {TEXTS * ROWS_PER_TEXT:,} rows × {WIDTH} dimensions, float32")
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((HEADS, TEXTS, ROWS_PER_TEXT, WIDTH), np.float32)
    times: dict[str, list[float]] = {"bare pyarrow": [], "ours": []}
    for _ in range(rounds):
        for name, write in (("bare pyarrow", _bare), ("ours", _ours)):
            with tempfile.TemporaryDirectory() as folder:
                times[name].append(_timed(write, Path(folder), vectors))
    rows = HEADS * TEXTS * ROWS_PER_TEXT
    for name, taken in times.items():
        print(f"{name:14s} {rows / min(taken):12,.0f} rows/s")
    print(f"ratio {min(times['bare pyarrow']) / min(times['ours']):.2f}")


def _timed(write: Callable[[Path, np.ndarray], None], folder: Path, vectors: np.ndarray) -> float:
    began = time.perf_counter()
    write(folder, vectors)
    return time.perf_counter() - began


def _bare(folder: Path, vectors: np.ndarray) -> None:
    """One table per head, the encodings of the dump, one call each."""
    position = np.tile(np.arange(ROWS_PER_TEXT, dtype=np.int32), TEXTS)
    example = np.repeat(np.arange(TEXTS, dtype=np.int32), ROWS_PER_TEXT)
    for head in range(HEADS):
        values = pa.array(vectors[head].reshape(-1))
        table = pa.table(
            {
                "bucket": position // 128,
                "example_id": example,
                "position": position,
                "vector": pa.FixedSizeListArray.from_arrays(values, WIDTH),
                "sliding_window": pa.nulls(len(position), pa.int32()),
            }
        )
        pq.write_table(
            table,
            folder / f"{head}.parquet",
            compression="zstd",
            use_dictionary=["bucket", "example_id", "position", "sliding_window"],
            use_byte_stream_split=["vector.list.element"],
            row_group_size=16_384,
            write_page_checksum=True,
        )


def _ours(folder: Path, vectors: np.ndarray) -> None:
    """Segments of five texts, then the files: crash-safe at every moment."""
    position = np.tile(np.arange(ROWS_PER_TEXT), TEXTS_OF_SEGMENT)
    capture = open_capture(folder / "dump", {"benchmark": True}, TEXTS_OF_SEGMENT)
    names = written_names("q", attention=False, tokens=False, received=False)
    schemas = {HeadId(0, head, "q"): schema_of(names, WIDTH) for head in range(HEADS)}
    for number, first in enumerate(range(0, TEXTS, TEXTS_OF_SEGMENT)):
        texts = range(first, first + TEXTS_OF_SEGMENT)
        shared = {
            BUCKET: position // 128,
            EXAMPLE: np.repeat(texts, ROWS_PER_TEXT),
            POSITION: position,
            WINDOW: np.full(len(position), -1),
        }
        rows = {
            head: Rows({**shared, VECTOR: vectors[head.head, texts].reshape(-1, WIDTH)})
            for head in schemas
        }
        examples = [Example(text, text, ROWS_PER_TEXT, "") for text in texts]
        write_segment(segment_path(capture.folder, number), rows, schemas, examples)
    finish(capture, TEXTS // TEXTS_OF_SEGMENT, schemas, DumpManifest())
    capture.close()
