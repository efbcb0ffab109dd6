"""The texts of a dump, from its `examples.parquet`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from attention_plasticity.text_groups import TextGroups
from qk_dump.examples import read_examples
from qk_dump.layout import Dump
from qk_toolkit.errors import DumpError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LAST_FIFTH = 0.8  # of the longest text


def groups_of_dump(dump: Dump) -> TextGroups:
    """The groups of the texts. Without a readable `examples.parquet`, the id is used as rank."""
    table = _examples(dump, "example_id")
    if table is None:
        return TextGroups()
    ids = table.column("example_id").drop_null().to_numpy()
    return TextGroups(np.unique(ids.astype(np.int64)) if ids.dtype.kind in "iu" else None)


def text_list(dump: Dump, *, equal_texts: bool = False) -> dict[str, Any] | None:
    """Number of the texts that a run uses, and a hash of their original ids and groups.

    Two runs with the same hash use the same texts, so that the differences between their heads can
    be computed text by text. The hash is None if an original id is missing. None without a readable
    `examples.parquet`, or if `equal_texts` is set and the lengths are not known.
    """
    table = _examples(dump, "example_id", "original_id")
    known = known_lengths(dump) if equal_texts else None
    if table is None or (equal_texts and known is None):
        return None
    rows = [table.column(name).to_pylist() for name in ("example_id", "original_id")]
    used = None if known is None else set(texts_to_last_fifth(*known).tolist())
    texts = [(i, original) for i, original in zip(*rows, strict=True) if used is None or i in used]
    if not texts or any(None in text for text in texts):
        return {"count": len(texts), "digest": None}
    groups = groups_of_dump(dump).of(np.array([i for i, _ in texts], np.int64))
    pairs = sorted(
        [str(original), int(group)] for (_, original), group in zip(texts, groups, strict=True)
    )
    return {"count": len(pairs), "digest": hashlib.sha256(json.dumps(pairs).encode()).hexdigest()}


def known_lengths(dump: Dump) -> tuple[Ints, Ints] | None:
    """Ids and last positions of the texts, from `examples.parquet`; None if they are not known."""
    table = _examples(dump, "example_id", "num_tokens")
    if table is None or not len(table):
        return None
    ids, tokens = (table.column(name).combine_chunks() for name in ("example_id", "num_tokens"))
    if ids.null_count or tokens.null_count:
        return None
    found = [column.to_numpy(zero_copy_only=False) for column in (ids, tokens)]
    if any(values.dtype.kind not in "iu" for values in found):
        return None
    return found[0].astype(np.int64), found[1].astype(np.int64) - 1


def texts_to_last_fifth(ids: Ints, last_positions: Floats | Ints) -> Ints:
    """(texts,) ids of the texts with positions in the last fifth of the longest text.

    `ids` may repeat, with any positions of the texts.
    """
    reached = last_positions >= _LAST_FIFTH * np.max(last_positions)
    return np.unique(ids[reached])


def equal_texts_note(dump: Dump) -> str:
    """How many texts `equal_texts` keeps."""
    known = known_lengths(dump)
    if known is None:
        return (
            "equal_texts: examples.parquet does not have the lengths of the texts; the positions "
            "of the captured keys are used"
        )
    kept = len(texts_to_last_fifth(*known))
    return f"equal_texts: {kept:,} of {len(known[0]):,} texts reach the last fifth and are used"


def _examples(dump: Dump, *columns: str) -> pa.Table | None:
    """The table of texts; None if it cannot be read or lacks a column."""
    try:
        table = read_examples(dump.path)
    except DumpError:
        return None
    return table if table is not None and set(columns) <= set(table.schema.names) else None
