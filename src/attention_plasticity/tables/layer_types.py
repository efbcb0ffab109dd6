"""Types of layers: full attention, sliding window and others, and the choice of some layers."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from attention_plasticity.metrics import CHUNKED_ATTENTION, FULL_ATTENTION, SLIDING_ATTENTION
from qk_dump.layers import LayerError, LayerRecord, layer_records
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.formatting import index_ranges
from qk_toolkit.settings import index_list

if TYPE_CHECKING:
    import pandas as pd

Layers = str | int | Iterable[int]

_WORDS = {
    FULL_ATTENTION: "full attention",
    SLIDING_ATTENTION: "sliding window",
    CHUNKED_ATTENTION: "chunked attention",
}
_SUFFIX = "_attention"


def layer_types(metrics: pd.DataFrame) -> dict[int, str]:
    """The type of every layer of the table of heads, by layer.

    Tables of the original tool have no types. Their layers have a sliding window or full attention.
    """
    if "layer_type" in metrics:
        known = metrics[["layer", "layer_type"]].dropna().drop_duplicates("layer")
        found = dict(zip(known["layer"].tolist(), known["layer_type"].astype(str), strict=True))
    else:
        found = {}
    windows = metrics.reindex(columns=["sliding_window"])["sliding_window"]
    with_window = set(metrics.loc[windows.notna(), "layer"])
    return {
        layer: found.get(layer, SLIDING_ATTENTION if layer in with_window else FULL_ATTENTION)
        for layer in sorted(set(metrics["layer"].tolist()))
    }


def recorded_layers(dump: Mapping[str, Any]) -> list[LayerRecord]:
    """The records of the layers in the dump.json of a run."""
    try:
        return layer_records(dump.get("layers") or [])
    except LayerError as error:
        raise ConfigError(f"run.json: layers of the dump: {error}. Analyse it again") from error


def type_words(layer_type: str) -> str:
    """A type as text: `full attention`, `sliding window`."""
    return _WORDS.get(layer_type, layer_type.replace("_", " "))


def layers_by_type(types: Mapping[int, str]) -> dict[str, list[int]]:
    """The layers of each type, in the order of their first layers."""
    found: dict[str, list[int]] = {}
    for layer, layer_type in sorted(types.items()):
        found.setdefault(layer_type, []).append(layer)
    return found


def index_numbers(given: Layers, name: str = "layers") -> list[int]:
    """Numbers of layers or heads from `"0-3,8"`, one number, or several numbers."""
    expected = f"expected numbers of {name} such as 0-3,8"
    if isinstance(given, str):
        try:
            return index_list(given)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}; {expected}") from error
    try:
        numbers = {
            operator.index(one) for one in (given if isinstance(given, Iterable) else [given])
        }
    except TypeError as error:
        raise ConfigError(f"{name}: {expected}, got {in_short(given)}") from error
    if not numbers:
        raise ConfigError(f"{name}: is empty; give one {name.removesuffix('s')} or more")
    return sorted(numbers)


def selected_layers(
    types: Mapping[int, str], layers: Layers | None = None, layer_type: str | None = None
) -> frozenset[int]:
    """Layers by their numbers (`0-3,8`), by their type, or by both.

    A type can be given without its ending: `full` is `full_attention`. Raises a `ConfigError` if
    no layer remains.
    """
    chosen = set(types)
    if layers is not None:
        wanted = set(index_numbers(layers))
        if missing := sorted(wanted - chosen):
            raise ConfigError(
                f"layers: {index_ranges(missing)} given; the table has layers "
                f"{index_ranges(chosen)}"
            )
        chosen &= wanted
    if layer_type is not None:
        chosen &= set(_of_type(types, layer_type))
    if not chosen:
        raise ConfigError(f"layers: none of these layers has the type {layer_type}")
    return frozenset(chosen)


def _of_type(types: Mapping[int, str], wanted: str) -> list[int]:
    groups = layers_by_type(types)
    for name in (wanted, f"{wanted}{_SUFFIX}"):
        if name in groups:
            return groups[name]
    known = ", ".join(f"{name} (layers {index_ranges(group)})" for name, group in groups.items())
    raise ConfigError(f"layer_type: {wanted!r}: no layer has this type; there are {known}")
