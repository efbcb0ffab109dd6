"""Missing values and the heads that have them, as run.json has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from qk_toolkit.formatting import index_ranges
from qk_toolkit.settings import index_list

Head = tuple[int, int]  # (layer, q_head), or (layer, k_head) in the table of key heads


def missing_records(
    found: Mapping[tuple[str, str, str], Sequence[Head]],
) -> list[dict[str, Any]]:
    """Missing values for run.json, from heads by table, column and reason.

    Columns with the same heads and the same reason are joined.
    """
    joined: dict[tuple[str, str, tuple[Head, ...]], list[str]] = {}
    for (table, column, reason), heads in found.items():
        joined.setdefault((table, reason, tuple(heads)), []).append(column)
    return [
        {
            **{"table": table, "columns": columns, "reason": reason},
            **{"heads": len(heads), "where": by_layer(heads)},
        }
        for (table, reason, heads), columns in joined.items()
    ]


def by_layer(heads: Iterable[Head]) -> dict[str, str]:
    """Heads by layer: `{"0": "0-2,5"}`."""
    layers = groupby(sorted(heads), key=lambda head: head[0])
    return {str(layer): index_ranges(number for _, number in members) for layer, members in layers}


def heads_of(where: Mapping[str, str]) -> Iterator[Head]:
    """The heads of `by_layer`. Raises a `ValueError` if the text is not as `by_layer` writes it."""
    for layer, heads in where.items():
        for number in index_list(heads):
            yield int(layer), number
