"""Dumps the benchmarks run on, generated here: three shapes, each Gaussian and heavy-tailed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.rotary import RotaryRecord
from qk_dump.rows import Rows
from qk_dump.writer import DATA_FILE, write_head

Noise = Literal["gaussian", "heavy"]


@dataclass(frozen=True)
class Shape:
    """Some layers of a model and what was kept of them."""

    name: str
    layers: int
    width: int
    q_heads: int
    k_heads: int
    examples: int
    bucket_size: int
    buckets: int
    rows: int  # per head

    @property
    def context(self) -> int:
        """Tokens per example."""
        return self.bucket_size * self.buckets

    @property
    def group_size(self) -> int:
        """Query heads per key head."""
        return self.q_heads // self.k_heads


SHAPES = {
    "a": Shape("a", 8, 64, 9, 3, 40, 512, 16, 60_000),
    "b": Shape("b", 2, 128, 32, 8, 40, 512, 16, 60_000),
    "c": Shape("c", 1, 128, 32, 8, 500, 8192, 16, 8_000),
}


def make_shape(root: Path, shape: Shape, noise: Noise) -> Path:
    """The dump of a shape, made once. One group is generated; the others are links to its files."""
    folder = root / f"{shape.name}-{noise}"
    if (folder / "dump.json").exists():
        return folder
    for head in range(shape.group_size):
        _write(folder, shape, noise, HeadId(0, head, "q"))
    _write(folder, shape, noise, HeadId(0, 0, "k"))
    for layer in range(shape.layers):
        for head in range(shape.q_heads):
            _link(folder, HeadId(0, head % shape.group_size, "q"), HeadId(layer, head, "q"))
        for head in range(shape.k_heads):
            _link(folder, HeadId(0, 0, "k"), HeadId(layer, head, "k"))
    write_manifest(
        folder,
        DumpManifest(
            num_layers=shape.layers,
            layers=[{"layer": layer, **_layer(shape)} for layer in range(shape.layers)],
            sampler={"type": "uniform", "base_rate": shape.examples * shape.context / shape.rows},
            num_q_heads=shape.q_heads,
            num_k_heads=shape.k_heads,
            head_dim=shape.width,
        ),
    )
    return folder


def _layer(shape: Shape) -> dict[str, Any]:
    """What dump.json says about a layer: full attention with RoPE."""
    frequencies = 10_000.0 ** (-np.arange(shape.width // 2) / (shape.width // 2))
    record = RotaryRecord(tuple(frequencies.tolist())).to_json()
    return {"type": "full_attention", "rope": True, "rotary": record}


def vectors_of(
    rng: np.random.Generator,
    position: npt.NDArray[np.int64],
    width: int,
    context: int,
    noise: Noise,
) -> npt.NDArray[np.float32]:
    """Noise of unit variance around a mean that drifts with position."""
    n = len(position)
    if noise == "gaussian":
        content = rng.standard_normal((n, width), np.float32)
    else:
        content = (rng.standard_t(3, (n, width)) / np.sqrt(3)).astype(np.float32)
    drift = rng.standard_normal(width).astype(np.float32)
    content += rng.standard_normal(width).astype(np.float32)
    content += (position / context).astype(np.float32)[:, None] * drift
    return content


def _write(folder: Path, shape: Shape, noise: Noise, head: HeadId) -> None:
    rng = np.random.default_rng([ord(shape.name), head.head, head.kind == "q"])
    slots = rng.integers(0, shape.examples * shape.context, shape.rows)
    slots.sort()
    example, position = slots // shape.context, slots % shape.context
    columns: dict[str, Any] = {
        "bucket": position // shape.bucket_size,
        "example_id": example,
        "position": position,
        "vector": vectors_of(rng, position, shape.width, shape.context, noise),
    }
    write_head(folder, head, Rows(columns))


def _link(folder: Path, source: HeadId, target: HeadId) -> None:
    if (folder / target.folder / DATA_FILE).exists():
        return
    (folder / target.folder).mkdir(parents=True, exist_ok=True)
    os.link(folder / source.folder / DATA_FILE, folder / target.folder / DATA_FILE)
