"""The writer of a capture over one bare pyarrow write of the same rows."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qk_dump.examples import Example
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest
from qk_sniffer.pipeline.blocks import Block
from qk_sniffer.pipeline.capture_folder import open_capture
from qk_sniffer.pipeline.expected_heads import ExpectedHead
from qk_sniffer.pipeline.write_dump import write_dump

HEADS, WIDTH, TEXTS, ROWS_PER_TEXT = 48, 128, 20, 1000


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
    """Text by text into segments, then the files: crash-safe at every moment."""
    position = np.arange(ROWS_PER_TEXT)
    capture = open_capture(folder / "dump", {"benchmark": True})
    for text in range(TEXTS):
        block = Block(
            layer=0,
            kind="q",
            heads=tuple(range(HEADS)),
            bucket=position // 128,
            example_id=np.full(ROWS_PER_TEXT, text),
            position=position,
            vectors=vectors[:, text].transpose(1, 0, 2),
            sliding_window=None,
        )
        capture.add(text, [block], [Example(text, text, ROWS_PER_TEXT, "")])
    heads = [ExpectedHead(HeadId(0, head, "q"), WIDTH, None) for head in range(HEADS)]
    capture.flush()
    write_dump(capture, TEXTS, DumpManifest(), heads)
    capture.close()
