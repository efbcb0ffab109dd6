"""A small generated dump with known plasticity.

Keys are random. Queries are random plus a drift along one direction, which grows with position. If
the drift has strength s at a position, the standardised margin of a random key pair is N(0, s²),
and the expected plasticity is `1 − (2/π)·arcsin(s²/(1+s²))`. There is no rotary embedding, so this
is plasticity at one position.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from attention_plasticity.metrics import ALIGNED_LAST
from attention_plasticity.tables.finished_run import FinishedRun
from qk_dump.columns import BUCKET, EXAMPLE, POSITION, VECTOR, WINDOW
from qk_dump.heads import HeadId
from qk_dump.manifest import MANIFEST_NAME, DumpManifest, read_manifest, write_manifest
from qk_dump.rows import Rows
from qk_dump.writer import write_head
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError
from qk_toolkit.terminal import command_console


@dataclass(frozen=True)
class DemoShape:
    """Size and structure of the generated dump."""

    drifts: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0)  # per layer, at the end of the context
    windowed_layer: int = 1
    window: int = 1024
    q_heads: int = 4
    k_heads: int = 2
    width: int = 32
    context: int = 4096
    bucket_size: int = 256
    examples: int = 24
    keep_one_of: int = 16


def expected_plasticity(drift: float, position: Array, context: int) -> Array:
    """The formula in the docstring of this module."""
    strength = (drift * position / context) ** 2
    value: Array = 1.0 - 2.0 / np.pi * np.arcsin(strength / (1.0 + strength))
    return value


def make_demo_dump(folder: Path, shape: DemoShape | None = None, seed: int = 0) -> Path:
    """Write the dump. The same seed gives the same bytes."""
    shape = shape or DemoShape()
    for layer, drift in enumerate(shape.drifts):
        window = shape.window if layer == shape.windowed_layer else -1
        heads = [HeadId(layer, head, "q") for head in range(shape.q_heads)]
        heads += [HeadId(layer, head, "k") for head in range(shape.k_heads)]
        for head in heads:
            rng = np.random.default_rng([seed, layer, head.head, head.kind == "q"])
            kept = rng.random((shape.examples, shape.context)) < 1.0 / shape.keep_one_of
            example, position = np.nonzero(kept)
            vectors = rng.standard_normal((len(position), shape.width))  # (n, d)
            direction = rng.standard_normal(shape.width)
            if head.kind == "k":
                vectors += direction
            else:
                direction *= drift * np.sqrt(shape.width) / np.linalg.norm(direction)
                vectors += np.outer(position / shape.context, direction)
            columns = {
                BUCKET: position // shape.bucket_size,
                EXAMPLE: example,
                POSITION: position,
                VECTOR: vectors,
                WINDOW: np.full(len(position), window),
            }
            write_head(folder, head, Rows(columns))
    write_manifest(folder, _manifest(shape, seed))
    return folder


def known_dump(folder: Path) -> Path:
    """The dump in `folder`. It is generated if it does not exist."""
    dump = folder / "dump"
    if read_manifest(dump / MANIFEST_NAME) != _manifest(DemoShape(), 0):
        if dump.exists():
            raise ConfigError(f"{dump}: contains other data; choose another --output_dir")
        unfinished = folder / ".dump-unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        make_demo_dump(unfinished).rename(dump)
    return dump


def _manifest(shape: DemoShape, seed: int) -> DumpManifest:
    layers: list[dict[str, Any]] = [
        {"layer": layer, "type": "full_attention", "rope": False}
        for layer in range(len(shape.drifts))
    ]
    layers[shape.windowed_layer] |= {"type": "sliding_attention", "window": shape.window}
    return DumpManifest(
        model="known answer (generated)",
        num_layers=len(shape.drifts),
        num_q_heads=shape.q_heads,
        num_k_heads=shape.k_heads,
        head_dim=shape.width,
        layer_types=[layer["type"] for layer in layers],
        layers=layers,
        sampler={"type": "uniform", "base_rate": shape.bucket_size / shape.keep_one_of},
        bucket_type="uniform",
        min_bucket_size=shape.bucket_size,
        dtype="float32",
        seed=seed,
    )


def print_known_answer(run: FinishedRun) -> None:
    """Print the measured plasticity next to the expected plasticity."""
    shape, heads = DemoShape(), run.head_metrics
    table = Table(
        box=box.SIMPLE,
        title="Comparison with the known answer (plasticity at one position, in the last fifth)",
        title_justify="left",
    )
    for name in ("layer", "drift", "expected", "measured"):
        table.add_column(name, justify="right")
    for layer, drift in enumerate(shape.drifts):
        members = heads.loc[heads["layer"] == layer, ALIGNED_LAST]
        last_fifth = np.linspace(0.8 * shape.context, shape.context, 100)
        expected = float(expected_plasticity(drift, last_fifth, shape.context).mean())
        measured = float(members.mean())
        window = f" (window {shape.window})" if layer == shape.windowed_layer else ""
        table.add_row(f"{layer}{window}", f"{drift:g}", f"{expected:.3f}", f"{measured:.3f}")
    command_console().print(table)
