"""Far attention of query heads, from the attention columns of a dump."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_plasticity.export.queries import HeadQueries
from attention_plasticity.export.source import ExportSource
from attention_plasticity.head.layer import NO_COLUMNS
from attention_plasticity.numeric.attention_means import far_mass, head_mean
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.sizes import SINK_TOKENS
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError, HeadError

RECENT = 256  # tokens; attention beyond them is far


def far_rule(recent_size: int) -> str:
    """The definition for `PROVENANCE.json`."""
    return (
        f"mean share of attention on keys {recent_size} tokens or more before the query, without "
        f"the first {SINK_TOKENS} tokens of the text"
    )


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
