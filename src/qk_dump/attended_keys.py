"""The keys of a head that were drawn in proportion to the attention they receive."""

from __future__ import annotations

from qk_dump.column_rules import rules_of
from qk_dump.head_counts import count_rows
from qk_dump.layout import Dump
from qk_dump.reader import HeadRows, read_head


def read_attended(
    dump: Dump, layer: int, k_head: int, *, max_rows: int, seed: int
) -> HeadRows | None:
    """The keys drawn by attention that are not in the base sample, with all their columns.

    None if the dump has none of this head: an old dump, or an empty file. With more than `max_rows`
    rows, a subsample is read, and `thinned_inclusion` gives the probabilities.
    """
    files = dump.attended_files(layer, k_head)
    if not files or not count_rows(files):
        return None
    return read_head(
        files,
        max_rows=max_rows,
        seed=seed,
        with_examples=True,
        rules=rules_of(dump, layer),
        with_attention=True,
        with_tokens=True,
        with_received=True,
    )
