"""Dumps for the scale benchmark: many heads, many files per head, or many rows per head.

Random rows are generated once. All heads and files are links to them, so that large dumps need
little disk space.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.large import make_large
from benchmarks.shapes import vectors_of
from qk_dump.heads import HeadId, Kind
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.rows import Rows
from qk_dump.writer import DATA_FILE, write_head

_BUCKETS, _BUCKET_SIZE, _EXAMPLES = 16, 512, 40
_CONTEXT = _BUCKETS * _BUCKET_SIZE


def make_heads(
    data: Path, layers: int, q_heads: int, k_heads: int, rows: int, width: int, files: int = 1
) -> Path:
    """A dump with so many heads per layer, and so many rows and files per head."""
    folder = data / f"heads-{layers}x{q_heads}x{k_heads}-{rows}x{width}-{files}"
    if (folder / "dump.json").exists():
        return folder
    sources = {kind: _shards(data, kind, rows // files, width, files) for kind in ("q", "k")}
    for layer in range(layers):
        for kind, count in (("q", q_heads), ("k", k_heads)):
            for head in range(count):
                _link(sources[kind], folder / f"l{layer:02d}h{head:02d}{kind}")
    write_manifest(
        folder,
        DumpManifest(num_layers=layers, num_q_heads=q_heads, num_k_heads=k_heads, head_dim=width),
    )
    return folder


def make_rows(data: Path, rows: int, width: int = 64) -> Path:
    """A dump of one head with so many rows in one file."""
    if rows >= 1_000_000:
        return make_large(data, rows, width)
    return make_heads(data, 1, 1, 1, rows, width)


def _shards(data: Path, kind: Kind, rows: int, width: int, files: int) -> list[Path]:
    """Files of one head, each with other rows."""
    found = []
    for number in range(files):
        part = data / "parts" / f"{rows}x{width}-{number}"
        target = part / HeadId(0, 0, kind).folder / DATA_FILE
        if not target.exists():
            rng = np.random.default_rng([number, rows, kind == "q"])
            slots = np.sort(rng.integers(0, _EXAMPLES * _CONTEXT, rows))
            position = slots % _CONTEXT
            columns: dict[str, Any] = {
                "bucket": position // _BUCKET_SIZE,
                "example_id": slots // _CONTEXT,
                "position": position,
                "vector": vectors_of(rng, position, width, _CONTEXT, "gaussian"),
            }
            path = write_head(part, HeadId(0, 0, kind), Rows(columns))
            table = pq.read_table(path).drop_columns(["layer", "head"])  # many heads link to it
            pq.write_table(table.replace_schema_metadata(None), path)
        found.append(target)
    return found


def _link(files: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        target = folder / (DATA_FILE if len(files) == 1 else f"part-{number:05d}.parquet")
        if not target.exists():
            os.link(file, target)
