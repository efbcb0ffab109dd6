"""One direction per key head, for Q-Filters (`QFilterPress` of kvpress)."""

from __future__ import annotations

from typing import Any

from attention_plasticity.export.content import (
    CONFIG,
    TENSORS,
    Content,
    json_file,
    require_safetensors,
    tensors_file,
)
from attention_plasticity.export.query_moments import query_moments, top_direction
from attention_plasticity.export.source import ExportSource
from qk_toolkit.arrays import Array


def q_filters(source: ExportSource) -> Content:
    """Minus the mean over the group of the top singular directions of queries after RoPE.

    A direction is signed towards the mean query. The tool scores a key with −filter·key, so keys
    along the direction have high scores.
    """
    require_safetensors()
    source.rotations()  # raises if one is not known
    directions: dict[tuple[int, int], Array] = {}
    heads: list[dict[str, Any]] = []
    for layer, head, queries in source.queries():
        found = query_moments(queries.after_rope, queries.weight, queries.group)
        top = top_direction(found)
        directions[layer, head] = top.direction
        heads.append(
            queries.entry(
                mean_relative_error=found.mean_error,
                covariance_relative_error=found.covariance_error,
                second_singular_value_ratio=top.runner_up,
            )
        )
    table = source.table(directions)  # (layers, query heads, d)
    layers, _, width = table.shape
    by_key_head = table.reshape(layers, source.layout.num_k_heads, source.groups, width)
    filters = -by_key_head.mean(axis=2)  # (layers, key heads, d)
    config = {
        "num_layers": layers,
        "num_kv_heads": source.layout.num_k_heads,
        "kv_head_dim": width,
    }
    rules = {
        **source.rules(),
        "vectors": "queries after RoPE, with the factor on cos and sin",
        "filter": "minus the mean over the query heads of a key head of the top singular "
        "directions, signed towards the mean query",
    }
    files = {CONFIG: json_file(config), TENSORS: tensors_file({"q_filters": filters})}
    return Content(files, heads, rules)
