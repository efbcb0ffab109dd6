"""Dumps of random vectors with RoPE. Some heads are made; the others are links to their files."""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from qk_dump.heads import HeadId, Kind
from qk_dump.layers import LayerRecord, RotaryRecord
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.rows import Rows
from qk_dump.writer import DATA_FILE, write_head

_BUCKETS = 16


@dataclass(frozen=True)
class Shape:
    """The size of a dump."""

    rows: int  # of a head
    width: int
    layers: int = 1
    q_heads: int = 4  # of a layer
    k_heads: int = 1
    files: int = 1  # of a head
    texts: int = 40
    bucket: int = 512  # tokens

    @property
    def context(self) -> int:
        """Tokens of a text."""
        return self.bucket * _BUCKETS

    @property
    def group(self) -> int:
        """Query heads of a key head."""
        return self.q_heads // self.k_heads


LARGE = Shape(60_000, 128)
"""More rows than a run uses, which is 50,000."""
SMALL = Shape(8_000, 128, texts=500, bucket=8192)
"""About one row per text and bucket."""


def make_dump(data: Path, shape: Shape) -> Path:
    """The dump of a shape, made once."""
    folder = data / "x".join(map(str, astuple(shape)))
    if (folder / "dump.json").exists():
        return folder
    kinds: tuple[tuple[Kind, int, int], ...] = (
        ("q", shape.q_heads, shape.group),
        ("k", shape.k_heads, 1),
    )
    for kind, heads, made in kinds:
        files = [_files(data, shape, kind, head) for head in range(made)]
        for layer in range(shape.layers):
            for head in range(heads):
                _link(files[head % made], folder / HeadId(layer, head, kind).folder)
    frequencies = 10_000.0 ** (-np.arange(shape.width // 2) / (shape.width // 2))
    record = RotaryRecord(tuple(frequencies.tolist()))
    rate = shape.texts * shape.context / shape.rows  # a sampler keeps one position of so many
    manifest = DumpManifest(
        num_layers=shape.layers,
        layers=[
            LayerRecord(layer, "full_attention", rope=True, rotary=record)
            for layer in range(shape.layers)
        ],
        sampler={"type": "uniform", "base_rate": rate},
        num_q_heads=shape.q_heads,
        num_k_heads=shape.k_heads,
        head_dim=shape.width,
    )
    write_manifest(folder, manifest)
    return folder


def _files(data: Path, shape: Shape, kind: Kind, head: int) -> list[Path]:
    """The files of a head, without the columns that would name it."""
    found, rows = [], shape.rows // shape.files
    for number in range(shape.files):
        sizes = f"{rows}x{shape.files}x{shape.width}x{shape.texts}x{shape.bucket}"
        part = data / "parts" / f"{sizes}-{head}-{number}"
        target = part / HeadId(0, 0, kind).folder / DATA_FILE
        if not target.exists():
            path = write_head(part, HeadId(0, 0, kind), _rows(shape, rows, kind, (number, head)))
            table = pq.read_table(path).drop_columns(["layer", "head"])
            pq.write_table(table.replace_schema_metadata(None), path)
        found.append(target)
    return found


def _rows(shape: Shape, number: int, kind: Kind, file: tuple[int, int]) -> Rows:
    """Normal noise around a mean that drifts with position.

    `file` is the number of a file of a head, and the head. Heads share positions, as in a capture.
    """
    of_all_heads = np.random.default_rng([file[0], number, kind == "q"])
    free = shape.texts * shape.context // shape.files  # no two files of a head share a token
    slots = file[0] + shape.files * np.sort(of_all_heads.choice(free, number, replace=False))
    position = slots % shape.context
    rng = np.random.default_rng([*file, number, kind == "q"])
    mean, drift = rng.standard_normal((2, shape.width), np.float32)
    share = (position / shape.context).astype(np.float32)[:, None]  # (n, 1)
    vectors = rng.standard_normal((number, shape.width), np.float32) + mean + share * drift
    columns: dict[str, Any] = {
        "bucket": position // shape.bucket,
        "example_id": slots // shape.context,
        "position": position,
        "vector": vectors,
    }
    return Rows(columns)


def _link(files: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        target = folder / (DATA_FILE if len(files) == 1 else f"part-{number:05d}.parquet")
        if not target.exists():
            os.link(file, target)
