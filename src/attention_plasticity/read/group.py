"""A key head with its query heads: files → arrays, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attention_plasticity.config import RunnerConfig
from attention_plasticity.read.pool import KeyPool, read_pool
from attention_plasticity.read.rows import (
    Keys,
    Queries,
    read_keys,
    read_queries,
    read_repeated,
)
from attention_plasticity.read.texts import DumpTexts
from qk_dump.layout import Dump
from qk_toolkit.errors import ToolkitError


@dataclass(frozen=True)
class HeadGroup:
    """The rows of a key head and of its query heads, and all else that their tables need."""

    layer: int
    k_head: int
    keys: Keys
    pool: KeyPool | None  # None: it is not known what attention keys receive
    queries: Mapping[int, Queries]  # by query head, ascending
    repeated: Mapping[int, Queries]  # by query head, in the dump of repeated tokens
    words: Mapping[int, str] | None  # texts of token ids
    config: RunnerConfig
    failures: Mapping[int, ToolkitError]  # query heads that cannot be read


def read_group(
    dump: Dump,
    layer: int,
    k_head: int,
    q_heads: Sequence[int],
    config: RunnerConfig,
    texts: DumpTexts | None = None,
) -> HeadGroup:
    """Read a key head and query heads of its group. Raises a `ToolkitError` without the keys.

    `texts` are the texts of the whole run; without them, they are read from the dump. A query head
    that cannot be read does not stop the others.
    """
    keys = read_keys(dump, layer, k_head, config, texts)
    pool = read_pool(dump, layer, k_head, keys, config)
    queries: dict[int, Queries] = {}
    repeated: dict[int, Queries] = {}
    failures: dict[int, ToolkitError] = {}
    for q_head in sorted(q_heads):
        try:
            own = read_queries(dump, layer, q_head, keys, config)
            again = read_repeated(dump, layer, q_head)
        except ToolkitError as error:
            failures[q_head] = error
            continue
        queries[q_head] = own
        if again is not None:
            repeated[q_head] = again
    words = dump.token_texts
    return HeadGroup(layer, k_head, keys, pool, queries, repeated, words, config, failures)
