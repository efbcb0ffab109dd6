"""Gates per key head from far attention, for DuoAttention and tools that read its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_plasticity.export.content import CONFIG, Content, json_file, text_file
from attention_plasticity.export.gates import GroupRule, by_key_head, gates
from attention_plasticity.export.queries import HeadQueries
from attention_plasticity.export.source import ExportSource
from attention_plasticity.head.layer import NO_COLUMNS
from attention_plasticity.numeric.attention_means import far_mass, head_mean
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.sizes import SINK_TOKENS
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError, HeadError

FILE = "full_attention_heads.tsv"


@dataclass(frozen=True)
class DuoOptions:
    """Choices of the format."""

    group: GroupRule = "max"
    threshold: float | None = None
    share: float | None = None
    sink_size: int = SINK_TOKENS  # at least 4: their attention is not far attention
    recent_size: int = 256  # a power of two, at which a bin of distances begins


def duo(source: ExportSource, options: DuoOptions) -> Content:
    """`full_attention_heads.tsv`, one row per layer and one column per key head."""
    table, heads = far_attention(source, options.recent_size)
    values = by_key_head(table, source.layout.num_k_heads, options.group)
    found = gates(values, options.threshold, options.share)  # (layers, key heads)
    text = "".join("\t".join(f"{gate:.6g}" for gate in row) + "\n" for row in found)
    config = {"sink_size": options.sink_size, "recent_size": options.recent_size}
    rules = {
        **source.rules(),
        "value": f"mean share of attention on keys {options.recent_size} tokens or more before the "
        f"query, without the first {SINK_TOKENS} tokens of the text",
        "group": f"{options.group} of the query heads of a key head",
        "gates": _gate_rule(options),
        "full_attention_heads": int(np.count_nonzero(found == 1.0)),
        "key_head_values": np.round(values, 8).tolist(),
    }
    return Content({FILE: text_file(text), CONFIG: json_file(config)}, heads, rules)


def far_attention(source: ExportSource, recent_size: int) -> tuple[Array, list[dict[str, Any]]]:
    """(layers, query heads) far attention without sinks, and entries of PROVENANCE.json."""
    found: dict[tuple[int, int], Array] = {}
    heads: list[dict[str, Any]] = []
    last = 0.0
    for layer, head, queries in source.queries(with_attention=True):
        mean = _far_attention(queries, recent_size)
        last = max(last, float(queries.rows.position.max()))
        found[layer, head] = np.array(mean.value)  # ()
        error = mean.standard_error if mean.groups else float("nan")
        heads.append(queries.entry(far_attention=mean.value, far_attention_error=error))
    if last < recent_size + SINK_TOKENS:
        raise ConfigError(
            f"{source.dump.path}: the last query is at position {last:.0f}, so no query has far "
            f"keys with --recent_size {recent_size}. Capture longer texts, or give a smaller size"
        )
    return source.table(found), heads


def _far_attention(queries: HeadQueries, recent_size: int) -> Estimate:
    rows = queries.rows
    known = np.zeros(0, np.intp)
    if rows.attention is not None:
        known = np.flatnonzero(~np.isnan(rows.attention.lse))
    if rows.attention is None or not len(known):
        raise HeadError(f"{queries.name}: {NO_COLUMNS}. Capture with capture.attention true")
    attention = rows.attention[known]
    sinks = attention.sink_mass.astype(np.float64)  # (m,)
    masses, position = attention.mass_by_distance, rows.position[known]
    values = far_mass(masses, sinks, position, recent_size)  # (m,)
    if np.isnan(values).any():
        raise HeadError(
            f"{queries.name}: --recent_size {recent_size} is inside the last bin of distances of "
            "the dump. Give a smaller size"
        )
    group = None if queries.group is None else queries.group[known]
    return head_mean(values, queries.weights.of(known).weight, group)


def _gate_rule(options: DuoOptions) -> str:
    if options.threshold is not None:
        return f"1 for values of {options.threshold:g} or more, else 0"
    if options.share is not None:
        return f"1 for the share {options.share:g} of key heads with the largest values, else 0"
    return "the values themselves, limited to 0 to 1"
