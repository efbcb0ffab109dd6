"""Small dumps for tests, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from qk_dump.heads import HeadId
from qk_dump.layers import RotaryFile, RotaryRecord, layer_records
from qk_dump.manifest import MANIFEST_NAME, DumpManifest, write_manifest
from qk_dump.rotary_file import write_rotary_file
from qk_dump.rows import Rows
from qk_dump.writer import write_head


def distinct_tokens(
    rng: np.random.Generator, texts: int, context: int, n: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(n,) texts and positions of n different tokens, in order. There may be fewer of them."""
    tokens = rng.choice(texts * context, min(n, texts * context), replace=False)
    text, position = np.divmod(np.sort(tokens), context)
    return text, position


def head_rows(
    n: int = 400,
    d: int = 8,
    *,
    examples: int = 4,
    context: int = 1024,
    bucket_size: int = 128,
    drift: float = 1.0,
    seed: int | list[int] = 0,
) -> dict[str, Any]:
    """Arguments of `write_columns` for random rows whose mean drifts with position."""
    rng = np.random.default_rng(seed)
    context = max(context, -(-n // examples))
    example, position = distinct_tokens(rng, examples, context, n)
    vectors = rng.standard_normal((n, d)) + rng.standard_normal(d)
    vectors += np.outer(position / context, drift * rng.standard_normal(d))
    return {
        "bucket": position // bucket_size,
        "example_id": example,
        "position": position,
        "vectors": vectors.astype(np.float32),
    }


def write_columns(
    root: Path,
    head: HeadId,
    *,
    vectors: np.ndarray[Any, Any],
    sliding_window: int | None = None,
    **columns: Any,
) -> Path:
    """Write a head with these columns and one window."""
    window = np.full(len(vectors), sliding_window or -1)
    values = {name: np.asarray(column) for name, column in columns.items()}
    return write_head(root, head, Rows({**values, "vector": vectors, "sliding_window": window}))


def make_dump(
    root: Path,
    *,
    layers: int = 2,
    q_heads: int = 4,
    k_heads: int = 2,
    window: int | None = None,
    **rows: Any,
) -> Path:
    """A complete dump; `rows` go to `head_rows`."""
    for layer in range(layers):
        for kind, count in (("q", q_heads), ("k", k_heads)):
            for head in range(count):
                content = head_rows(seed=[layer, head, kind == "q"], **rows)
                head_id = HeadId(layer, head, kind)  # type: ignore[arg-type]
                write_columns(root, head_id, sliding_window=window, **content)
    return root


def add_rotary(root: Path, layers: int = 1, width: int = 8, **facts: Any) -> Path:
    """Write dump.json with a rotary record per layer and a sampler, so that nothing is unknown.

    `facts` go to every layer.
    """
    frequencies = 10_000.0 ** (-np.arange(width // 2) / (width // 2))
    record = RotaryRecord(tuple(frequencies.tolist())).to_json()
    entry = {"type": "full_attention", "rope": True, "rotary": record, **facts}
    manifest = DumpManifest(
        layers=[{"layer": layer, **entry} for layer in range(layers)],
        bucket_type="uniform",
        min_bucket_size=128,
        sampler={"type": "uniform", "base_rate": 16.0},
    )
    write_manifest(root, manifest)
    return root


def rotary_file(dump: Path, path: Path) -> Path:
    """The rotary records of dump.json in a file of their own."""
    layers = layer_records(json.loads((dump / MANIFEST_NAME).read_text())["layers"])
    write_rotary_file(RotaryFile(str(path), "", layers, False, "a model", {}))
    return path


def add_attended(
    root: Path, layer: int = 0, head: int = 0, *, group: int = 2, n: int = 20, **rows: Any
) -> Path:
    """Keys of a head that were drawn by attention, in a dump of `make_dump`."""
    content = head_rows(n, seed=[layer, head, 7], **rows)
    rng = np.random.default_rng(n)
    content["received"] = rng.random((n, group), np.float32)
    content["inclusion"] = rng.uniform(0.1, 1, n)
    return write_columns(root, HeadId(layer, head, "k", attended=True), **content)
