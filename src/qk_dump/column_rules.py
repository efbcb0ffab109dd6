"""Checks of a head's columns against `dump.json`.

Without `dump.json`, or without an entry for the layer, nothing is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from qk_dump.attention_queries import UNKNOWN_ATTENTION, LayerAttention
from qk_dump.buckets import BucketGeometry, geometry_of
from qk_dump.layout import Dump
from qk_dump.manifest import MANIFEST_NAME
from qk_dump.remote import DumpPath
from qk_dump.schema import WINDOW
from qk_toolkit.errors import ConfigError, DumpError

CHUNKED_ATTENTION = "chunked_attention"  # type of a layer in dump.json
_ACTION = f"Capture or download the head again, or repair {MANIFEST_NAME}."


@dataclass(frozen=True)
class ColumnRules:
    """What the columns of a layer must be, as far as `dump.json` has it."""

    layer: int
    geometry: BucketGeometry | None = None
    window_known: bool = False
    window: int | None = None  # tokens; None for full attention
    attention: LayerAttention = UNKNOWN_ATTENTION

    def check_buckets(
        self,
        bucket: npt.NDArray[np.int64],
        position: npt.NDArray[Any],
        path: DumpPath,
        first_row: int,
    ) -> None:
        """Raise an error for a row with the wrong bucket for its position."""
        if self.geometry is None:
            return
        expected = self.geometry.bucket(position)  # (n,)
        wrong = bucket != expected
        if wrong.any():
            row = int(np.argmax(wrong))
            kind, size = self.geometry.type, self.geometry.min_size
            raise DumpError(
                f"{path}: row {first_row + row}: bucket is {bucket[row]}, but position "
                f"{position[row]} belongs to bucket {expected[row]} ({MANIFEST_NAME}: bucket_type "
                f"{kind}, min_bucket_size {size}). {_ACTION}"
            )

    def check_window(
        self, found: Set[int | None], column: pa.Array | None, path: DumpPath, first_row: int
    ) -> None:
        """Raise an error when `sliding_window` is missing or differs from `dump.json`."""
        if not self.window_known or (column is None and self.window is None):
            return
        if column is None:
            raise DumpError(
                f"{path}: has no column '{WINDOW}', expected {self.window} ({MANIFEST_NAME}: "
                f"layer {self.layer}). {_ACTION}"
            )
        if found != {self.window}:
            values = column.to_pylist()
            row = next(index for index, value in enumerate(values) if value != self.window)
            raise DumpError(
                f"{path}: row {first_row + row}: {WINDOW} is {_json(values[row])}, expected "
                f"{_json(self.window)} ({MANIFEST_NAME}: layer {self.layer}). {_ACTION}"
            )


def rules_of(dump: Dump, layer: int) -> ColumnRules:
    """The rules for the heads of a layer. Raises a `ConfigError` when `dump.json` is invalid."""
    manifest = dump.manifest
    if manifest is None:
        return ColumnRules(layer)
    source = f"{dump.path / MANIFEST_NAME}: layers"
    geometry = geometry_of(manifest.bucket_type, manifest.min_bucket_size)
    entries = [entry for entry in manifest.layers or [] if entry.get("layer") == layer]
    if not entries:
        return ColumnRules(layer, geometry)
    windows = [entry.get("window") for entry in entries]
    for window in windows:
        if window is not None and (type(window) is not int or window < 1):
            raise ConfigError(
                f"{source}: window of layer {layer}: expected a positive number of tokens or null, "
                f"got {window!r:.80}"
            )
    if len(set(windows)) > 1:
        both = " and ".join(_json(window) for window in windows[:2])
        raise ConfigError(f"{source}: layer {layer} has two windows, {both}")
    return ColumnRules(layer, geometry, True, windows[0], _attention_of(entries[0]))


def _attention_of(entry: Mapping[str, Any]) -> LayerAttention:
    sinks = entry.get("learned_sinks")
    return LayerAttention(
        chunked=entry.get("type") == CHUNKED_ATTENTION,
        learned_sinks=sinks if isinstance(sinks, bool) else None,
        # a bias is added to the logits after the soft-cap
        softcap=None if entry.get("biased") is True else entry.get("softcap"),
    )


def _json(window: object) -> str:
    return "null" if window is None else str(window)
