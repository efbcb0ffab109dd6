"""Rows that were taken from a forward, on their way to the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qk_dump.attention_columns import AttentionRows
from qk_dump.layout import Kind
from qk_sniffer.attention.totals import attention_rows
from qk_sniffer.pipeline.attended_rows import AttendedRows

Ints = npt.NDArray[np.int64]


class LayerAttention(NamedTuple):
    """The attention columns of a layer's queries, which may still be on their way to the host."""

    columns: Tensor  # (heads, n, COLUMNS)
    sequence: Ints  # (n,) text of every query
    ids: Ints | None  # (b, s) tokens of the texts


class TakenRows:
    """Vectors that are being copied to the host; `vectors()` waits for them."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, Kind], Tensor] = {}
        self._attention: dict[int, LayerAttention] = {}  # by layer
        self._value_norms: dict[int, Tensor] = {}  # layer → (heads, n)
        self._attended: dict[int, AttendedRows] = {}
        self._sources: set[torch.device] = set()
        self._events: list[torch.cuda.Event] = []

    def __contains__(self, key: tuple[int, Kind]) -> bool:
        return key in self._tensors

    def put(self, key: tuple[int, Kind], tensor: Tensor, source: torch.device) -> None:
        """Store a host tensor (heads, n, d); its copy from `source` may still be running."""
        self._tensors[key] = tensor
        if source.type == "cuda":
            self._sources.add(source)

    def put_attention(self, layer: int, found: LayerAttention, source: torch.device) -> None:
        """Store the attention columns of a layer's queries."""
        self._attention[layer] = found
        if source.type == "cuda":
            self._sources.add(source)

    def put_value_norms(self, layer: int, tensor: Tensor, source: torch.device) -> None:
        """Store the lengths (heads, n) of the values of a layer's keys."""
        self._value_norms[layer] = tensor
        if source.type == "cuda":
            self._sources.add(source)

    def put_attended(self, layer: int, rows: AttendedRows, source: torch.device) -> None:
        """Store the keys of a layer that were drawn by attention."""
        self._attended[layer] = rows
        if source.type == "cuda":
            self._sources.add(source)

    def record_events(self) -> None:
        """Record an event on every GPU in use; all copies are complete when it has passed."""
        for source in self._sources:
            self._events.append(torch.cuda.current_stream(source).record_event())

    def vectors(self, key: tuple[int, Kind]) -> npt.NDArray[np.float32]:
        """The rows of one layer and kind as (n, heads, d), converted to float32, which is exact.

        In memory the rows of a head are contiguous, as in the dump.
        """
        self.wait()
        return self._tensors.pop(key).float().numpy().transpose(1, 0, 2)

    def attention(self, layer: int) -> AttentionRows | None:
        """The attention columns (n, heads) of a layer's queries; None if they were not computed."""
        self.wait()
        if layer not in self._attention:
            return None
        columns, sequence, ids = self._attention.pop(layer)
        return attention_rows(columns.numpy().transpose(1, 0, 2), sequence, ids)

    def value_norms(self, layer: int) -> npt.NDArray[np.float32] | None:
        """Lengths (n, heads) of the values of a layer's keys; None if they are not known."""
        self.wait()
        found = self._value_norms.pop(layer, None)
        return None if found is None else found.numpy().T

    def attended(self, layer: int) -> AttendedRows | None:
        """The keys of a layer that were drawn by attention; None if none were drawn."""
        self.wait()
        return self._attended.pop(layer, None)

    def wait(self) -> None:
        """Wait until all copies are complete, and so the forward."""
        for event in self._events:
            event.synchronize()
        self._events.clear()
