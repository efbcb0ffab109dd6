"""The texts of a dump, from its `examples.parquet`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from attention_plasticity.text_groups import TextGroups
from qk_dump.examples import read_examples
from qk_dump.layout import Dump
from qk_toolkit.errors import DumpError


def groups_of_dump(dump: Dump) -> TextGroups:
    """The groups of the texts. Without a readable `examples.parquet`, the id is used as rank."""
    try:
        table = read_examples(dump.path)
    except DumpError:
        return TextGroups()
    if table is None or "example_id" not in table.schema.names:
        return TextGroups()
    ids = table.column("example_id").drop_null().to_numpy()
    return TextGroups(np.unique(ids.astype(np.int64)) if ids.dtype.kind in "iu" else None)


def text_list(dump: Dump) -> dict[str, Any] | None:
    """Number of texts of a dump and a hash of their original ids and groups.

    Two dumps with the same hash were captured from the same texts, so that the differences between
    their heads can be computed text by text. None without a readable `examples.parquet`; the hash
    is None if an original id is missing.
    """
    try:
        table = read_examples(dump.path)
    except DumpError:
        return None
    if table is None or not {"example_id", "original_id"} <= set(table.schema.names):
        return None
    ids, originals = (table.column(name).to_pylist() for name in ("example_id", "original_id"))
    if None in ids or None in originals or not ids:
        return {"count": len(ids), "digest": None}
    groups = groups_of_dump(dump).of(np.array(ids, np.int64))
    pairs = sorted(
        [str(original), int(group)] for original, group in zip(originals, groups, strict=True)
    )
    return {"count": len(ids), "digest": hashlib.sha256(json.dumps(pairs).encode()).hexdigest()}
