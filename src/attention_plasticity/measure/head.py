"""The path of one head: the list of all that is measured, from top to bottom."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.estimate.moments import Moments
from attention_plasticity.estimate.quantity import Quantity
from attention_plasticity.measure.attention import KnownAttention, attention_columns
from attention_plasticity.measure.bands import band_columns
from attention_plasticity.measure.drift import Frame, drift_row
from attention_plasticity.measure.found import Found, head_row, influence_columns
from attention_plasticity.measure.key_heads import key_head_counts
from attention_plasticity.measure.plasticity import (
    attended_columns,
    grid_of,
    plasticity_columns,
)
from attention_plasticity.measure.position import (
    moments_after,
    moments_before,
    position_columns,
)
from attention_plasticity.measure.result import HeadResult
from attention_plasticity.measure.roles import role_row, word_columns
from attention_plasticity.measure.seeds import SeedKeys, seed_columns
from attention_plasticity.measure.shared import Shared
from attention_plasticity.measure.streams import Streams, pair_seed
from attention_plasticity.read.pool import KeyPool
from attention_plasticity.read.rows import Keys, Queries
from attention_plasticity.read.unknown import Unknown
from qk_dump.columns import TOKEN_ID
from qk_dump.layout import Dump

_FAR = "attn_far_mass"


@dataclass(frozen=True)
class KeyGroup:
    """A key head, and what its query heads share."""

    layer: int
    k_head: int
    keys: Keys
    pool: KeyPool | None
    config: RunnerConfig
    shared: Shared = field(default_factory=Shared)

    @property
    def streams(self) -> Streams:
        """Random streams of the key head."""
        return Streams(self.config.seed, self.layer, self.k_head)

    @cached_property
    def seed_keys(self) -> SeedKeys:
        """The keys as the seeds' columns use them."""
        return SeedKeys.of(self.keys.rows)

    @cached_property
    def before(self) -> Moments | None:
        """Moments of the keys before RoPE."""
        return moments_before(self.keys)

    @cached_property
    def after(self) -> Moments | None:
        """Moments of the keys as they enter the attention."""
        return moments_after(self.keys)


def measure_head(group: KeyGroup, q_head: int, queries: Queries, dump: Dump) -> HeadResult:
    """All tables of one query head."""
    config, keys, shared = group.config, group.keys, group.shared
    layer, streams = group.layer, Streams(config.seed, group.layer, q_head)
    facts = _facts(group, q_head, queries)
    seeds = seed_columns(
        queries, keys, group.seed_keys, config, pair_seed(config.seed, layer, q_head)
    )
    grid = grid_of(queries, keys)
    plasticity = plasticity_columns(grid, keys, config, shared, group.streams)
    attended = attended_columns(grid, group.pool, q_head, config, streams)
    before, after = moments_before(queries), moments_after(queries)
    position = position_columns(queries, keys, before, group.before)
    frames = Frame(after, group.after), Frame(before, group.before)
    drift = drift_row(queries, keys, *frames)
    bands = band_columns(queries, keys, frames[1], shared, group.streams)
    known = KnownAttention.of(queries)
    attention = attention_columns(queries, known, config.distant_from)
    roles = role_row(dump, layer, q_head, known, config.distant_from)
    words = word_columns(known, dump.token_texts)
    counts = key_head_counts(
        queries, grid, keys, group.pool, far_attention(attention), shared, (group.streams, streams)
    )
    parts = [facts, seeds, plasticity, attended, position, drift, bands, attention, roles]
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
        metrics=head_row(parts),
        tables=tables,
        key_head=counts,
        missing=_missing(parts),
        files={
            "queries": queries.rows.digest,
            "keys": keys.rows.digest,
            "unknown_tokens": _unknown_tokens(queries, dump),
        },
    )


def _facts(group: KeyGroup, q_head: int, queries: Queries) -> Found:
    """Columns that say what the head is."""
    found = Found()
    found.add({"layer": group.layer, "q_head": q_head, "k_head": group.k_head})
    found.add({"q_position_max": queries.rows.position_max})
    found.add({"sliding_window": math.nan if queries.window is None else queries.window})
    found.add({"layer_type": group.keys.layer.type_name(queries.window)})
    groups = math.nan if queries.group is None else len(np.unique(queries.group))
    found.add({"n_text_groups": groups}, queries.no_errors)
    return found


def _unknown_tokens(queries: Queries, dump: Dump) -> int:
    """Number of token ids of the queries that `tokens.parquet` does not have."""
    tokens = queries.rows.get(TOKEN_ID)
    if tokens is None or dump.token_texts is None:
        return 0
    return len(set(tokens[tokens >= 0].tolist()) - dump.token_texts.keys())


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
