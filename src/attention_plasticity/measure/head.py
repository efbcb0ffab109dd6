"""The path of a key head and its query heads: the list of all that is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from attention_plasticity.estimate.quantity import Quantity, Unknown
from attention_plasticity.measure.attention import KnownAttention, attention_columns
from attention_plasticity.measure.bands import PairedKeys, band_columns
from attention_plasticity.measure.found import Found, head_row, influence_columns
from attention_plasticity.measure.grid import Grid, equal_places
from attention_plasticity.measure.key_heads import key_head_row
from attention_plasticity.measure.plasticity import (
    attended_columns,
    grid_of,
    no_plasticity,
    plasticity_columns,
)
from attention_plasticity.measure.position import (
    Frame,
    drift_row,
    moments_after,
    moments_before,
    position_columns,
)
from attention_plasticity.measure.result import GroupResult, HeadResult
from attention_plasticity.measure.roles import role_row, word_columns
from attention_plasticity.measure.seeds import SeedKeys, seed_columns
from attention_plasticity.measure.streams import Streams, pair_seed
from attention_plasticity.metrics import LEFT_OUT, ORIGINAL_COLUMNS, written_columns
from attention_plasticity.read.group import HeadGroup
from attention_plasticity.read.rows import Queries
from qk_dump.columns import TOKEN_ID

_FAR = "attn_far_mass"


def measure_group(group: HeadGroup) -> GroupResult:
    """All tables of a key head and its query heads."""
    of_keys = _OfKeyHead(group)
    heads = [
        one for q_heads in equal_places(group.queries) for one in _measure_heads(of_keys, q_heads)
    ]
    heads.sort(key=lambda one: one.q_head)
    row = key_head_row(group, of_keys.grids, of_keys.far)
    return GroupResult(group.layer, group.k_head, heads, row, failures=[])


class _OfKeyHead:
    """What all query heads of a key head use, and what the row of the key head is made of."""

    def __init__(self, group: HeadGroup) -> None:
        self.group = group
        self.streams = Streams(group.config.seed, group.layer, group.k_head)
        self.seed_keys = SeedKeys.of(group.keys.rows) if group.config.original_columns else None
        self.before = moments_before(group.keys)
        self.after = moments_after(group.keys)
        self.grids: list[tuple[list[int], Grid | Unknown]] = []  # query heads, and their bins
        self.far: dict[int, Quantity | Unknown] = {}  # by query head


def _measure_heads(of_keys: _OfKeyHead, q_heads: list[int]) -> Iterator[HeadResult]:
    """All tables of query heads with queries at the same places."""
    group = of_keys.group
    places = group.queries[q_heads[0]]
    paired = PairedKeys.of(places, group.keys, of_keys.before, of_keys.streams)
    plasticity = _plasticity(of_keys, q_heads)
    for q_head, found in zip(q_heads, plasticity, strict=True):
        yield _measure_head(of_keys, q_head, found, paired)


def _plasticity(of_keys: _OfKeyHead, q_heads: list[int]) -> list[tuple[Found, Found]]:
    """Plasticity in bins of query heads with queries at the same places."""
    group, config = of_keys.group, of_keys.group.config
    first, *others = (group.queries[q_head] for q_head in q_heads)
    grid = grid_of(first, group.keys, *others)
    if isinstance(grid, Unknown):
        found = [no_plasticity(grid.reason) for _ in q_heads]
    else:
        found = plasticity_columns(grid, group.keys, config, of_keys.streams)
    streams = [Streams(config.seed, group.layer, q_head) for q_head in q_heads]
    attended = attended_columns(grid, group.pool, q_heads, config, streams)
    of_keys.grids.append((q_heads, grid))
    return list(zip(found, attended, strict=True))


def _measure_head(
    of_keys: _OfKeyHead,
    q_head: int,
    plasticity: tuple[Found, Found],
    paired: PairedKeys | Unknown,
) -> HeadResult:
    """All tables of one query head."""
    group = of_keys.group
    config, queries, keys, layer = group.config, group.queries[q_head], group.keys, group.layer
    facts = _facts(group, q_head, queries)
    seeds = Found(reasons=dict.fromkeys(ORIGINAL_COLUMNS, LEFT_OUT))
    if of_keys.seed_keys is not None:
        stream = pair_seed(config.seed, layer, q_head)
        seeds = seed_columns(queries, keys, of_keys.seed_keys, config, stream)
    before, after = moments_before(queries), moments_after(queries)
    position = position_columns(queries, keys, before, of_keys.before)
    frames = Frame(after, of_keys.after), Frame(before, of_keys.before)
    drift = drift_row(queries, keys, *frames)
    bands = band_columns(queries, keys, before, paired)
    known = KnownAttention.of(queries)
    attention = attention_columns(queries, known, config.distant_from)
    roles = role_row(known, group.repeated.get(q_head), config.distant_from)
    words = word_columns(known, group.words)
    of_keys.far[q_head] = far_attention(attention)
    parts = [facts, seeds, *plasticity, position, drift, bands, attention, roles]
    tables = {kind: columns for part in parts for kind, columns in part.tables.items()}
    for part in (drift, roles):
        if part.values:
            tables[part.kind] = {name: [value] for name, value in part.values.items()}
    if words:
        tables["words"] = words
    tables["influences"] = influence_columns(one for part in parts for one in part.quantities)
    return HeadResult(
        layer=layer,
        q_head=q_head,
        k_head=group.k_head,
        metrics=head_row(parts, written_columns("head_metrics", original=config.original_columns)),
        tables=tables,
        missing=_missing(parts),
        unknown_tokens=_unknown_tokens(queries, group.words),
    )


def _facts(group: HeadGroup, q_head: int, queries: Queries) -> Found:
    """Columns that say what the head is."""
    found = Found()
    found.add({"layer": group.layer, "q_head": q_head, "k_head": group.k_head})
    width = group.keys.rows.width
    found.add({"n_q_tokens": len(queries), "n_k_tokens": len(group.keys), "d_model": width})
    found.add({"q_position_max": queries.rows.position_max})
    found.add({"sliding_window": math.nan if queries.window is None else queries.window})
    found.add({"layer_type": group.keys.layer.type_name(queries.window)})
    groups = math.nan if queries.group is None else len(np.unique(queries.group))
    found.add({"n_text_groups": groups}, queries.no_errors)
    return found


def _unknown_tokens(queries: Queries, words: Mapping[int, str] | None) -> int:
    """Number of token ids of the queries that `tokens.parquet` does not have."""
    tokens = queries.rows.get(TOKEN_ID)
    if tokens is None or words is None:
        return 0
    return len(set(tokens[tokens >= 0].tolist()) - words.keys())


def far_attention(attention: Found) -> Quantity | Unknown:
    """The far attention of the head, for the table of key heads."""
    for name, _, one in attention.quantities:
        if name == _FAR:
            return one
    return Unknown(attention.reasons.get(_FAR) or attention.reasons[f"{_FAR}_se"])


def _missing(parts: list[Found]) -> dict[str, dict[str, str]]:
    """Table → column → why it is NaN; without the table of roles, whose columns are optional."""
    found: dict[str, dict[str, str]] = {}
    for part in parts:
        if part.reasons and part.kind != "roles":
            found.setdefault(part.kind, {}).update(part.reasons)
    return found
