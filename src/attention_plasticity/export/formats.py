"""Files of statistics of queries, from a dump: one function per format."""

from __future__ import annotations

from typing import Any

from attention_plasticity.estimate.sizes import SINK_TOKENS
from attention_plasticity.export.folder import (
    CONFIG,
    Content,
    json_file,
    require_safetensors,
    tensors_file,
)
from attention_plasticity.export.heads import Head
from attention_plasticity.export.queries import query_moments, top_direction
from attention_plasticity.export.settings import ExportSettings
from attention_plasticity.export.source import ExportSource
from attention_plasticity.read.texts import text_lengths
from qk_dump.layers import RotaryRecord
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError

_TENSORS = "model.safetensors"
BEFORE_ROPE = "queries before RoPE, after q_norm, without the factor on cos and sin"


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
        "dataset_name": text_of(dataset, "path", "unknown"),
        "model_name": source.manifest.model or source.dump.name,
        "num_samples": source.num_texts,
        "sample_seq_len": 0 if lengths is None else int(lengths.max()),
        "n_sink": SINK_TOKENS,
    }
    tensors = {"query_mean": mean, "query_cov": source.table(covariances)}
    rules = source.rules(
        vectors=BEFORE_ROPE,
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


def text_of(facts: object, name: str, otherwise: str) -> str:
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
    require_one_pairing(records, width, tool)


def require_one_pairing(records: list[RotaryRecord], width: int, tool: str) -> None:
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
