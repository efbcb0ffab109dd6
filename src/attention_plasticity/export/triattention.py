"""Mean complex queries per rotary band, for TriAttention."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np

from attention_plasticity.export.content import Content
from attention_plasticity.export.queries import HeadQueries
from attention_plasticity.export.query_moments import column_means
from attention_plasticity.export.source import ExportSource, require_one_pairing
from qk_dump.rotary import pair_dimensions
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError

FILE = "triattention.pt"

_WRITERS = "attention_plasticity.export"
"""Entry point of the part of qk_sniffer that writes tensors, so that nothing here imports torch."""
_WRITER = "tensor-file"
_TOOL = "TriAttention"
_STYLES = {"halves": "half", "interleaved": "interleaved"}


def triattention(source: ExportSource) -> Content:
    """`q_mean_real`, `q_mean_imag` and `q_abs_mean` of every query head, (d/2,) each."""
    write = _tensor_writer()
    records = source.records("A file of TriAttention")
    values: dict[tuple[int, int], Array] = {}
    heads: list[dict[str, Any]] = []
    for layer, head, queries in source.queries():
        if not heads:
            require_one_pairing(records, queries.width, _TOOL)
        values[layer, head], errors = _bands(queries)
        heads.append(queries.entry(**errors))
    table = source.table(values)  # (layers, heads, 3, bands)
    names = ("q_mean_real", "q_mean_imag", "q_abs_mean")
    every = [[layer, head] for layer in range(table.shape[0]) for head in range(table.shape[1])]
    stats = {
        f"layer{layer:02d}_head{head:02d}": dict(
            zip(names, table[layer, head].astype(np.float32), strict=True)
        )
        for layer, head in every
    }
    metadata = _metadata(source, _STYLES[records[0].pairing], 2 * table.shape[-1])
    content = {"metadata": {**metadata, "sampled_heads": every}, "stats": stats}
    rules = {
        **source.rules(),
        "vectors": "queries before RoPE, after q_norm, without the factor on cos and sin",
    }
    return Content({FILE: lambda path: write(path, content)}, heads, rules)


def _bands(queries: HeadQueries) -> tuple[Array, dict[str, float]]:
    """(3, bands) real and imaginary part of the mean, and mean length; and their errors."""
    record = queries.rotation.record
    assert record is not None
    vectors, weight = queries.before_rope.astype(np.float64), queries.weight
    first, second = (vectors[:, dimensions] for dimensions in pair_dimensions(record))
    means = column_means(np.hstack([first, second]), weight, queries.group)
    lengths = column_means(np.hypot(first, second), weight, queries.group)
    found = np.stack([*np.split(means.value, 2), lengths.value])  # (3, bands)
    errors = {"mean_relative_error": means.error, "length_relative_error": lengths.error}
    return found, errors


def _metadata(source: ExportSource, style: str, width: int) -> dict[str, Any]:
    manifest = source.manifest
    model = (manifest.capture or {}).get("model")
    implementation = model.get("attn_implementation") if isinstance(model, dict) else None
    rope = (manifest.rope_parameters or {}).get("rope_type")
    return {
        "num_traces": source.texts.count or manifest.num_examples or 0,
        "head_dim": width,
        "dtype": manifest.dtype or "float32",
        "use_chat_template": False,
        "system_prompt": "",
        "attn_implementation": implementation if isinstance(implementation, str) else "unknown",
        "rope_style": style,
        "rope_type": rope if isinstance(rope, str) else "default",
    }


def _tensor_writer() -> Callable[[Path, dict[str, Any]], None]:
    """Writes a .pt file. Raises a `ConfigError` if torch is not installed."""
    writers = entry_points(group=_WRITERS)
    if _WRITER not in writers.names:
        raise ConfigError("the package was installed by an earlier version; install it again")
    found: Callable[[Path, dict[str, Any]], None] = writers[_WRITER].load()()
    return found
