"""What `dump.json` says about the columns of a head, and the check of rows against it.

A dump whose `dump.json` is absent, or tells nothing of a layer, is not checked.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from qk_dump.buckets import BucketGeometry, geometry_of
from qk_dump.layout import Dump
from qk_dump.manifest import MANIFEST_NAME
from qk_dump.schema import WINDOW
from qk_toolkit.errors import ConfigError, DumpError

_WAY_OUT = f"Capture or download the head again, or repair {MANIFEST_NAME}."


@dataclass(frozen=True)
class ColumnRules:
    """Bucket geometry and sliding window of one layer, as far as they are told."""

    layer: int
    geometry: BucketGeometry | None = None
    window_told: bool = False
    window: int | None = None  # tokens; None for full attention

    def check_buckets(
        self,
        bucket: npt.NDArray[np.int64],
        position: npt.NDArray[Any],
        path: Path,
        first_row: int,
    ) -> None:
        """Refuse rows whose bucket does not follow from their position."""
        if self.geometry is None:
            return
        expected = self.geometry.bucket(position)  # (n,)
        wrong = bucket != expected
        if wrong.any():
            row = int(np.argmax(wrong))
            kind, size = self.geometry.type, self.geometry.min_size
            raise DumpError(
                f"{path}: row {first_row + row}: bucket is {bucket[row]}, but position "
                f"{position[row]} lies in bucket {expected[row]} ({MANIFEST_NAME}: bucket_type "
                f"{kind}, min_bucket_size {size}). {_WAY_OUT}"
            )

    def check_window(
        self, found: Set[int | None], column: pa.Array | None, path: Path, first_row: int
    ) -> None:
        """Refuse a `sliding_window` column that is missing or has another value than told."""
        if not self.window_told or (column is None and self.window is None):
            return
        if column is None:
            raise DumpError(
                f"{path}: has no column '{WINDOW}', but {MANIFEST_NAME} says that layer "
                f"{self.layer} has a window of {self.window} tokens. {_WAY_OUT}"
            )
        if found != {self.window}:
            values = column.to_pylist()
            row = next(at for at, value in enumerate(values) if value != self.window)
            raise DumpError(
                f"{path}: row {first_row + row}: {WINDOW} is {_shown(values[row])}, "
                f"{MANIFEST_NAME} says {_shown(self.window)} for layer {self.layer}. {_WAY_OUT}"
            )


def rules_of(dump: Dump, layer: int) -> ColumnRules:
    """The rules for the heads of a layer; a `ConfigError` where `dump.json` contradicts itself."""
    manifest = dump.manifest
    if manifest is None:
        return ColumnRules(layer)
    source = f"{dump.path / MANIFEST_NAME}: layers"
    geometry = geometry_of(manifest.bucket_type, manifest.min_bucket_size)
    windows = [
        entry.get("window") for entry in manifest.layers or [] if entry.get("layer") == layer
    ]
    if not windows:
        return ColumnRules(layer, geometry)
    for window in windows:
        if window is not None and (type(window) is not int or window < 1):
            raise ConfigError(
                f"{source}: window of layer {layer}: expected a positive number of tokens or null, "
                f"got {window!r:.80}"
            )
    if len(set(windows)) > 1:
        told = " and ".join(_shown(window) for window in windows[:2])
        raise ConfigError(f"{source}: layer {layer} has two windows, {told}")
    return ColumnRules(layer, geometry, window_told=True, window=windows[0])


def _shown(window: object) -> str:
    return "null" if window is None else str(window)
