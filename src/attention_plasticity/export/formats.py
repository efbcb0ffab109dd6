"""Files of statistics of queries, from a dump: one function per format."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np

from attention_plasticity.estimate.sizes import SINK_TOKENS
from attention_plasticity.export.folder import (
    CONFIG,
    Content,
    json_file,
    require_safetensors,
    tensors_file,
)
from attention_plasticity.export.queries import mean_and_error, query_moments, top_direction
from attention_plasticity.export.settings import ExportSettings
from attention_plasticity.export.source import ExportSource, Head, HeadQueries
from attention_plasticity.read.texts import text_lengths
from qk_dump.rotary import RotaryRecord, pair_dimensions
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError

_TENSORS = "model.safetensors"
_BANDS = "triattention.pt"
_WRITERS, _WRITER = "attention_plasticity.export", "tensor-file"
"""Entry point of the part of qk_sniffer that writes tensors, so that nothing here imports torch."""
_STYLES = {"halves": "half", "interleaved": "interleaved"}
_BEFORE_ROPE = "queries before RoPE, after q_norm, without the factor on cos and sin"


def expected_attention(source: ExportSource, settings: ExportSettings) -> Content:
    """`query_mean` and `query_cov` of every query head before RoPE, for kvpress.

    The first tokens of every text are left out.
    """
    require_safetensors()
    records = source.records("A folder for ExpectedAttentionStatsPress")
    means: dict[Head, Array] = {}
    covariances: dict[Head, Array] = {}
    heads: list[dict[str, Any]] = []
    for head, queries in source.queries(first=SINK_TOKENS):
        if not heads:
            _require_halves(records, queries.width, "kvpress")
        found = query_moments(queries.before_rope, queries.weight, queries.group)
        means[head], covariances[head] = found.mean, found.covariance
        heads.append(queries.entry(found.errors))
    mean = source.table(means)  # (layers, heads, d)
    lengths = text_lengths(source.dump)
    dataset = (source.manifest.capture or {}).get("dataset")
    config = {
        **dict(zip(("num_layers", "num_heads", "head_dim"), mean.shape, strict=True)),
        "dataset_name": _text(dataset, "path", "unknown"),
        "model_name": source.manifest.model or source.dump.name,
        "num_samples": source.num_texts,
        "sample_seq_len": 0 if lengths is None else int(lengths.max()),
        "n_sink": SINK_TOKENS,
    }
    tensors = {"query_mean": mean, "query_cov": source.table(covariances)}
    rules = source.rules(
        vectors=_BEFORE_ROPE,
        left_out=f"the first {SINK_TOKENS} tokens of every text",
        sample_seq_len="tokens of the longest text; kvpress counts characters",
    )
    return Content({CONFIG: json_file(config), _TENSORS: tensors_file(tensors)}, heads, rules)


def q_filters(source: ExportSource, settings: ExportSettings) -> Content:
    """One direction per key head, for Q-Filters (`QFilterPress` of kvpress).

    It is minus the mean over the group of the top singular directions of queries after RoPE. A
    direction is signed towards the mean query. The tool scores a key with −filter·key, so keys
    along the direction have high scores.
    """
    require_safetensors()
    source.rotations()  # raises if one is not known
    directions: dict[Head, Array] = {}
    heads: list[dict[str, Any]] = []
    for head, queries in source.queries():
        found = query_moments(queries.after_rope, queries.weight, queries.group)
        directions[head], second = top_direction(found)
        heads.append(queries.entry({**found.errors, "second_singular_value_ratio": second}))
    table = source.table(directions)  # (layers, query heads, d)
    layers, _, width = table.shape
    key_heads = source.layout.num_k_heads
    filters = -table.reshape(layers, key_heads, -1, width).mean(axis=2)  # (layers, key heads, d)
    config = {"num_layers": layers, "num_kv_heads": key_heads, "kv_head_dim": width}
    rules = source.rules(
        vectors="queries after RoPE, with the factor on cos and sin",
        filter="minus the mean over the query heads of a key head of the top singular directions, "
        "signed towards the mean query",
    )
    files = {CONFIG: json_file(config), _TENSORS: tensors_file({"q_filters": filters})}
    return Content(files, heads, rules)


def triattention(source: ExportSource, settings: ExportSettings) -> Content:
    """`q_mean_real`, `q_mean_imag` and `q_abs_mean` of every query head, (d/2,) each."""
    write = _tensor_writer()
    records = source.records("A file of TriAttention")
    values: dict[Head, Array] = {}
    heads: list[dict[str, Any]] = []
    for head, queries in source.queries():
        if not heads:
            _require_one_pairing(records, queries.width, "TriAttention")
        values[head], errors = _bands(queries, records[head[0]])
        heads.append(queries.entry(errors))
    table = source.table(values).astype(np.float32)  # (layers, heads, 3, bands)
    every = [[layer, head] for layer in range(table.shape[0]) for head in range(table.shape[1])]
    names = ("q_mean_real", "q_mean_imag", "q_abs_mean")
    stats = {
        f"layer{layer:02d}_head{head:02d}": dict(zip(names, table[layer, head], strict=True))
        for layer, head in every
    }
    manifest = source.manifest
    metadata = {
        "num_traces": source.num_texts,
        "head_dim": 2 * table.shape[-1],
        "dtype": manifest.dtype or "float32",
        "use_chat_template": False,
        "system_prompt": "",
        "attn_implementation": _text(
            (manifest.capture or {}).get("model"), "attn_implementation", "unknown"
        ),
        "rope_style": _STYLES[records[0].pairing],
        "rope_type": _text(manifest.rope_parameters, "rope_type", "default"),
        "sampled_heads": every,
    }
    content = {"metadata": metadata, "stats": stats}
    rules = source.rules(vectors=_BEFORE_ROPE)
    return Content({_BANDS: lambda path: write(path, content)}, heads, rules)


def _bands(queries: HeadQueries, record: RotaryRecord) -> tuple[Array, dict[str, float]]:
    """(3, bands) real and imaginary part of the mean, and mean length; and their errors."""
    vectors, weight, group = queries.before_rope.astype(np.float64), queries.weight, queries.group
    first, second = (vectors[:, dimensions] for dimensions in pair_dimensions(record))
    mean, mean_error = mean_and_error(np.hstack([first, second]), weight, group)
    length, length_error = mean_and_error(np.hypot(first, second), weight, group)
    found = np.stack([*np.split(mean, 2), length])  # (3, bands)
    return found, {"mean_relative_error": mean_error, "length_relative_error": length_error}


def _tensor_writer() -> Callable[[Path, dict[str, Any]], None]:
    """Writes a .pt file. Raises a `ConfigError` if torch is not installed."""
    writers = entry_points(group=_WRITERS)
    if _WRITER not in writers.names:
        raise ConfigError("the package was installed by an earlier version; install it again")
    found: Callable[[Path, dict[str, Any]], None] = writers[_WRITER].load()()
    return found


def _text(facts: object, name: str, otherwise: str) -> str:
    """A text that dump.json has under a name."""
    value = facts.get(name) if isinstance(facts, dict) else None
    return value if isinstance(value, str) else otherwise


def _require_halves(records: list[RotaryRecord], width: int, tool: str) -> None:
    """Refuse a rotary embedding other than that of Llama: halves of the whole vector."""
    for layer, record in enumerate(records):
        if record.pairing != "halves":
            raise ConfigError(
                f"layer {layer}: RoPE turns neighbouring dimensions; {tool} turns halves"
            )
    _require_one_pairing(records, width, tool)


def _require_one_pairing(records: list[RotaryRecord], width: int, tool: str) -> None:
    """Refuse bands that do not cover the vector, and different pairings in one model."""
    for layer, record in enumerate(records):
        if record.pairing != records[0].pairing:
            raise ConfigError(
                f"layer {layer}: RoPE has the pairing {record.pairing}, layer 0 "
                f"{records[0].pairing}; the file of {tool} has one for all layers"
            )
        if record.dimensions != width:
            raise ConfigError(
                f"layer {layer}: RoPE turns {record.dimensions} of {width} dimensions; {tool} "
                "needs all of them"
            )
