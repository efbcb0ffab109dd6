"""Mean and covariance of queries before RoPE, for `ExpectedAttentionStatsPress` of kvpress."""

from __future__ import annotations

from typing import Any

from attention_plasticity.estimate.sizes import SINK_TOKENS
from attention_plasticity.export.content import (
    CONFIG,
    TENSORS,
    Content,
    json_file,
    require_safetensors,
    tensors_file,
)
from attention_plasticity.export.query_moments import query_moments
from attention_plasticity.export.source import ExportSource, require_whole_halves
from attention_plasticity.read.texts import text_lengths
from qk_toolkit.arrays import Array

_TOOL = "kvpress"


def expected_attention(source: ExportSource) -> Content:
    """`query_mean` and `query_cov` of every query head, without the first tokens of texts."""
    require_safetensors()
    records = source.records("A folder for ExpectedAttentionStatsPress")
    means: dict[tuple[int, int], Array] = {}
    covariances: dict[tuple[int, int], Array] = {}
    heads: list[dict[str, Any]] = []
    for layer, head, queries in source.queries(first=SINK_TOKENS):
        if not heads:
            require_whole_halves(records, queries.width, _TOOL)
        found = query_moments(queries.before_rope, queries.weight, queries.group)
        means[layer, head], covariances[layer, head] = found.mean, found.covariance
        heads.append(
            queries.entry(
                mean_relative_error=found.mean_error,
                covariance_relative_error=found.covariance_error,
            )
        )
    mean = source.table(means)  # (layers, heads, d)
    layers, q_heads, width = mean.shape
    config = {
        "num_layers": layers,
        "num_heads": q_heads,
        "head_dim": width,
        "dataset_name": _dataset(source),
        "model_name": source.model,
        "num_samples": _texts(source),
        "sample_seq_len": _longest(source),
        "n_sink": SINK_TOKENS,
    }
    tensors = {"query_mean": mean, "query_cov": source.table(covariances)}
    rules = {
        **source.rules(),
        "vectors": "queries before RoPE, after q_norm, without the factor on cos and sin",
        "left_out": f"the first {SINK_TOKENS} tokens of every text",
        "sample_seq_len": "tokens of the longest text; kvpress counts characters",
    }
    return Content({CONFIG: json_file(config), TENSORS: tensors_file(tensors)}, heads, rules)


def _dataset(source: ExportSource) -> str:
    """The texts as the capture names them."""
    capture = source.manifest.capture or {}
    dataset = capture.get("dataset")
    path = dataset.get("path") if isinstance(dataset, dict) else None
    return path if isinstance(path, str) else "unknown"


def _texts(source: ExportSource) -> int:
    return source.texts.count or source.manifest.num_examples or 0


def _longest(source: ExportSource) -> int:
    lengths = text_lengths(source.dump)
    return 0 if lengths is None else int(lengths.max())
