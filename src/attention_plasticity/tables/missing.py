"""Heads as run.json writes them beside the reason of a missing value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from qk_toolkit.formatting import index_ranges
from qk_toolkit.settings import index_list

Head = tuple[int, int]  # (layer, q_head), or (layer, k_head) in the table of key heads


def by_layer(heads: Iterable[Head]) -> dict[str, str]:
    """Heads by layer: `{"0": "0-2,5"}`."""
    layers = groupby(sorted(heads), key=lambda head: head[0])
    return {str(layer): index_ranges(number for _, number in members) for layer, members in layers}


def heads_of(where: Mapping[str, str]) -> Iterator[Head]:
    """The heads of `by_layer`. Raises a `ValueError` if the text is not as `by_layer` writes it."""
    for layer, heads in where.items():
        for number in index_list(heads):
            yield int(layer), number
