"""Rows that were taken from a forward: from host tensors to the columns of a dump."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from qk_dump.columns import (
    ARGMAX_POSITION,
    ARGMAX_TOKEN,
    BUCKET,
    COLUMNS,
    EXAMPLE,
    HEAD,
    INCLUSION,
    MASS_BINS,
    MASSES,
    POSITION,
    RECEIVED,
    TOKEN_ID,
    VALUE_NORM,
    VECTOR,
    WINDOW,
)
from qk_dump.heads import HeadId, Kind
from qk_dump.rows import Rows
from qk_sniffer.attention.totals import attention_columns
from qk_sniffer.rows.attended import AttendedRows
from qk_sniffer.rows.layer_tables import Part
from qk_sniffer.rows.plan import ForwardTexts, RowPlan
from qk_sniffer.sampling.heads import KINDS, WantedLayer
from qk_sniffer.sampling.positions import PositionSampler
from qk_sniffer.sampling.rows import KindRows, sample_rows

Columns = dict[str, npt.NDArray[Any]]
Places = Sequence[int]
"""Places of heads among the wanted ones of a layer."""


@dataclass
class LayerRows:
    """Host tensors of one layer; their copies may still be running."""

    queries: Tensor | None = None  # (heads, n, d)
    keys: Tensor | None = None  # (key heads, n, d)
    attention: Tensor | None = None  # (heads, n, COLUMNS); None if not known
    value_norms: Tensor | None = None  # (key heads, n); None if not known
    attended: AttendedRows | None = None  # None if no keys were drawn

    def at(self, places: Mapping[Kind, Tensor]) -> LayerRows:
        """The rows at these indices (m,) of their kind."""
        q, k = places.get("q"), places.get("k")
        return LayerRows(
            queries=None if self.queries is None else self.queries[:, q],
            keys=None if self.keys is None else self.keys[:, k],
            attention=None if self.attention is None else self.attention[:, q],
            value_norms=None if self.value_norms is None else self.value_norms[:, k],
            attended=None if self.attended is None or k is None else self.attended.with_base(k),
        )

    def unpinned(self) -> LayerRows:
        """The same rows in ordinary memory."""
        found = {name: _unpinned(value) for name, value in vars(self).items()}
        if self.attended is not None:
            parts = {name: _unpinned(value) for name, value in vars(self.attended).items()}
            found["attended"] = AttendedRows(**parts)
        return LayerRows(**found)


def _unpinned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) and value.is_pinned() else value


class HostRows:
    """The rows of one forward; `rows()` waits for them."""

    def __init__(self, plan: RowPlan, texts: ForwardTexts) -> None:
        self.layers: dict[int, LayerRows] = {}
        self._plan = plan
        self._texts = texts
        self._wanted = {layer.facts.layer: layer for layer in plan.wanted}
        self._devices: set[torch.device] = set()
        self._events: list[torch.cuda.Event] = []

    def add_layer(self, layer: int, device: torch.device) -> None:
        """Begin the rows of a layer, which are on a device."""
        self.layers[layer] = LayerRows()
        if device.type == "cuda":
            self._devices.add(device)

    def record_events(self) -> None:
        """Record an event on every GPU in use; all copies are complete when it has passed."""
        self._events = [
            torch.cuda.current_stream(device).record_event() for device in self._devices
        ]

    def wait(self) -> None:
        """Wait until all copies are complete, and so the forward."""
        for event in self._events:
            event.synchronize()
        self._events.clear()

    @property
    def missing(self) -> list[int]:
        """The wanted layers without an attention call."""
        wanted = [layer.facts.layer for layer in self._plan.wanted]
        return [layer for layer in wanted if layer not in self.layers]

    @property
    def known_attention(self) -> set[int]:
        """The layers whose attention was computed, for queries or for keys."""
        return {
            layer
            for layer, rows in self.layers.items()
            if rows.attention is not None or rows.attended is not None
        }

    def parts(self) -> Iterator[tuple[Part, Rows]]:
        """The rows of every part, with the column `head`: one head after the other.

        Keys come first: their NaN would also be in the attention of the queries. Vectors are in
        float32, which is exact.
        """
        for layer in self._plan.wanted:
            number = layer.facts.layer
            for part in (Part(number, "k"), Part(number, "q"), Part(number, "k", True)):
                if layer.heads(part.kind) and self.holds(part):
                    yield part, self._rows(part, layer.heads(part.kind))

    def rows(self) -> dict[HeadId, Rows]:
        """The rows of every head."""
        found = (
            part.head(number)
            for layer in self._plan.wanted
            for part in (Part(layer.facts.layer, "k"), Part(layer.facts.layer, "q"))
            for number in layer.heads(part.kind)
        )
        heads = [
            one
            for head in found
            for one in (head, head._replace(attended=True))
            if self.holds(Part.of(one))
        ]
        return {head: self.of_head(head) for head in heads}

    def holds(self, part: Part) -> bool:
        """Whether there are rows of a part: keys are not drawn in every layer."""
        if not part.attended:
            return True
        return part.kind == "k" and self.layers[part.layer].attended is not None

    def of_head(self, head: HeadId) -> Rows:
        """The rows of one head."""
        columns = dict(self._rows(Part.of(head), (head.head,)).columns)
        del columns[HEAD]
        return Rows(columns)

    def _rows(self, part: Part, heads: tuple[int, ...]) -> Rows:
        """The rows of some heads of a part."""
        self.wait()
        layer = self._wanted[part.layer]
        found, of_kind = self.layers[part.layer], layer.heads(part.kind)
        places = [of_kind.index(head) for head in heads]
        if part.attended:
            columns = self._drawn(layer, found, places)
        else:
            columns = (self._queries if part.kind == "q" else self._keys)(layer, found, places)
        counts = columns.pop(HEAD)
        columns[HEAD] = np.repeat(np.array(heads, np.int32), counts)
        names = self._plan.names(part.kind, tokens=self._texts.tokens is not None)
        return _with_all((*names, HEAD), layer, len(columns[POSITION]), columns)

    def number_of_rows(self) -> int:
        """The rows of all heads, without keys drawn by attention."""
        return sum(
            len(rows) * len(self._wanted[layer].heads(kind))
            for (layer, kind), rows in self._texts.rows.items()
        )

    def unpin(self) -> None:
        """Move the rows to ordinary host memory; of the pinned memory of a GPU there is little."""
        self.wait()
        self.layers = {number: rows.unpinned() for number, rows in self.layers.items()}

    def thinned(self, sampler: PositionSampler) -> HostRows:
        """The rows that a sampler with lower rates keeps; they are among these."""
        self.wait()
        texts = self._texts
        fewer = sample_rows(sampler, self._plan.wanted, texts.examples.tolist(), texts.lengths)
        thin = HostRows(self._plan, replace(texts, rows=fewer, sampler=sampler))
        for number, rows in self.layers.items():
            places = {
                kind: torch.from_numpy(texts.rows[number, kind].places_of(fewer[number, kind]))
                for kind in KINDS
                if (number, kind) in fewer
            }
            thin.layers[number] = rows.at(places)
        return thin

    def _queries(self, layer: WantedLayer, found: LayerRows, places: Places) -> Columns:
        assert found.queries is not None
        rows = self._texts.rows[layer.facts.layer, "q"].repeated(len(places))
        columns = self._shared(layer, rows, len(places))
        columns[VECTOR] = _flat(found.queries, places).float().numpy()
        if found.attention is not None:
            attention = attention_columns(_flat(found.attention, places).numpy())
            if self._texts.tokens is not None:
                attention[ARGMAX_TOKEN] = self._tokens(rows, attention[ARGMAX_POSITION])
            columns |= attention
        return columns

    def _keys(self, layer: WantedLayer, found: LayerRows, places: Places) -> Columns:
        assert found.keys is not None
        rows = self._texts.rows[layer.facts.layer, "k"].repeated(len(places))
        columns = self._shared(layer, rows, len(places))
        columns[VECTOR] = _flat(found.keys, places).float().numpy()
        if found.value_norms is not None:
            columns[VALUE_NORM] = _flat(found.value_norms, places).numpy()
        rates = self._texts.sampler.rate(columns[BUCKET], "k")  # (n,)
        columns[INCLUSION] = rates
        if found.attended is not None:
            columns |= found.attended.of_base(places, rates)
        return columns

    def _drawn(self, layer: WantedLayer, found: LayerRows, places: Places) -> Columns:
        assert found.attended is not None
        base, sampler = self._texts.rows[layer.facts.layer, "k"], self._texts.sampler
        drawn = [found.attended.drawn(place, sampler, base) for place in places]
        rows = KindRows(
            np.concatenate([one.rows.sequence for one in drawn]),
            np.concatenate([one.rows.position for one in drawn]),
        )
        columns = self._shared(layer, rows, len(places))
        columns[HEAD] = np.array([len(one.rows) for one in drawn])
        for name in drawn[0].columns:
            columns[name] = np.concatenate([one.columns[name] for one in drawn])
        return columns

    def _shared(self, layer: WantedLayer, rows: KindRows, heads: int) -> Columns:
        """The columns that follow from the places of rows, and the number of rows of each head."""
        window = -1 if layer.facts.window is None else layer.facts.window
        columns: Columns = {
            HEAD: np.full(heads, len(rows) // heads),
            BUCKET: self._texts.sampler.bucket(rows.position),
            EXAMPLE: self._texts.examples[rows.sequence],
            POSITION: rows.position,
            WINDOW: np.full(len(rows), window, np.int32),
        }
        if self._texts.tokens is not None:
            columns[TOKEN_ID] = self._tokens(rows, rows.position)
        return columns

    def _tokens(self, rows: KindRows, position: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """(n,) the tokens at some positions (n,) of the texts of the rows."""
        assert self._texts.tokens is not None
        lengths = np.array(self._texts.lengths, np.int64)[rows.sequence]  # (n,)
        inside = np.clip(position, 0, lengths - 1)  # logits that overflow have no largest one
        places = self._texts.starts[rows.sequence] + inside  # (n,)
        return np.asarray(self._texts.tokens[places], np.int32)


def _flat(tensor: Tensor, places: Places) -> Tensor:
    """(places · n, …) of a tensor (heads, n, …), without a copy of all heads or of one."""
    if len(places) == tensor.shape[0]:
        return tensor.flatten(0, 1)
    if len(places) == 1:
        return tensor[places[0]]
    return tensor[list(places)].flatten(0, 1)


def empty_rows(plan: RowPlan, head: HeadId) -> Rows:
    """No rows of a head, with the columns of the plan."""
    layer = next(layer for layer in plan.wanted if layer.facts.layer == head.layer)
    vectors = np.empty((0, layer.facts.width), np.float32)
    return _with_all(plan.names(head.kind), layer, 0, {VECTOR: vectors})


def _with_all(names: Sequence[str], layer: WantedLayer, number: int, columns: Columns) -> Rows:
    """The named columns; those that are not known are NaN or −1."""
    widths = {MASSES: (MASS_BINS,), RECEIVED: (layer.facts.group,)}
    return Rows(
        {
            name: columns[name]
            if name in columns
            else _unknown(name, (number, *widths.get(name, ())))
            for name in names
        }
    )


def _unknown(name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if pa.types.is_integer(COLUMNS[name].type):
        return np.full(shape, -1, np.int32)
    return np.full(shape, np.nan, np.float32)
