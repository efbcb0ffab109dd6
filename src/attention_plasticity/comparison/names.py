"""Names of runs: shortened for narrow places, and with the type of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from attention_plasticity.comparison.runs import ALL_LAYERS
from attention_plasticity.tables.layer_types import type_words
from attention_plasticity.tables.names import clean


def short_names(names: Sequence[str], limit: int) -> list[str]:
    """Names of at most `limit` characters, with `…` in the middle of long ones.

    Different names stay different: more of the end or of the start is shown until they are. Names
    that differ only in their middle get a number.
    """
    room = limit - 1
    for end in sorted(range(1, room), key=lambda end: abs(end - room // 2)):
        short = [_shortened(name, room - end, end) for name in names]
        if len(set(short)) == len(set(names)):
            return short
    order = {name: str(place) for place, name in enumerate(dict.fromkeys(names), 1)}
    return [
        name if len(name) <= limit else f"{name[: room - len(order[name])]}…{order[name]}"
        for name in names
    ]


def _shortened(name: str, start: int, end: int) -> str:
    return name if len(name) <= start + end + 1 else f"{name[:start]}…{name[len(name) - end :]}"


def full_names(short: dict[str, str]) -> Iterator[str]:
    """`mod…b is model-b`, for every name that is shortened."""
    for name, shown in short.items():
        if name != shown:
            yield f"{shown} is {name}"


def part_words(layer_type: str) -> str:
    """The type of the layers of a row as text; empty for all layers."""
    return "" if layer_type == ALL_LAYERS else clean(type_words(layer_type))


def row_labels(table: pd.DataFrame) -> list[str]:
    """`model` or `model · full attention`, for each row of a table with `run` and `layer_type`."""
    types = table["layer_type"] if "layer_type" in table else [ALL_LAYERS] * len(table)
    return [
        " · ".join(filter(None, (clean(str(run)), part_words(str(layer_type)))))
        for run, layer_type in zip(table["run"], types, strict=True)
    ]
