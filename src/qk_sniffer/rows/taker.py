"""Take sampled rows of queries and keys while a model runs.

The rows are gathered on the device inside the attention call and copied to the host, one head after
the other, as a dump stores them. On CUDA the copies are asynchronous. No full tensor is kept, and
the outputs of the model do not change.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from qk_dump.heads import Kind
from qk_sniffer.attention.queries import SampledQueries, TextTokens
from qk_sniffer.attention.query_attention import query_attention
from qk_sniffer.attention.totals import COLUMNS
from qk_sniffer.device_copies import copy_into, empty_host, to_device
from qk_sniffer.engines.engine import AttentionRule, LayerCall
from qk_sniffer.rows.attended import take_attended
from qk_sniffer.rows.host_rows import HostRows
from qk_sniffer.rows.plan import ForwardTexts, RowPlan
from qk_sniffer.sampling.heads import WantedLayer

_MOST_ATTENTION_ROWS = 1 << 18  # rows of all heads in one computation of attention


class RowTaker:
    """Takes the rows of a plan from the attention calls of an engine."""

    def __init__(self, plan: RowPlan, max_rows: int = 65_536) -> None:
        """`max_rows` is the number of rows of a head that are gathered on the device at a time."""
        self._plan = plan
        self._max_rows = max_rows
        self._wanted = {layer.facts.layer: layer for layer in plan.wanted}
        self._index: _RowIndex | None = None
        self._taken: HostRows | None = None

    def expect(self, texts: ForwardTexts | None) -> None:
        """Set the texts of the next forward. Rows that were not taken are dropped."""
        self._index = None if texts is None else _RowIndex(texts)
        self._taken = None if texts is None else HostRows(self._plan, texts)

    def take(self) -> HostRows:
        """The rows of the forward since `expect`."""
        taken, self._taken, self._index = self._taken, None, None
        if taken is None:
            raise ValueError("no forward was expected")
        taken.record_events()
        return taken

    def on_call(self, call: LayerCall) -> None:
        """Take the rows of a layer."""
        taken, index, layer = self._taken, self._index, self._wanted.get(call.layer)
        if taken is None or index is None or layer is None or call.layer in taken.layers:
            return
        taken.add_layer(call.layer, call.query.device)
        rows = taken.layers[call.layer]
        if layer.q:
            rows.queries = self._to_host(call.stored_query, index, layer, "q")
        if layer.k:
            rows.keys = self._to_host(call.stored_key, index, layer, "k")
        if not self._plan.attention:
            return
        if layer.q and call.rule is not None:
            rows.attention = self._attention(call, index, layer, call.rule)
        if layer.k and call.value is not None:
            rows.value_norms = self._to_host(call.value, index, layer, "k", norms=True)
        if layer.k and call.rule is not None and self._plan.draws(layer):
            rows.attended = take_attended(call, layer, self._plan, index.texts)

    def _attention(
        self, call: LayerCall, index: _RowIndex, layer: WantedLayer, rule: AttentionRule
    ) -> Tensor:
        """The attention columns (heads, n, COLUMNS) of the queries to take."""
        rows, heads = index.texts.rows[call.layer, "q"], layer.q
        places = index.on(call.query.device, (call.layer, "q"))  # (n,)
        tokens = index.tokens(call.query.device)
        host = empty_host((len(heads), len(rows), COLUMNS), torch.float32, call.query)
        # elsewhere in one piece, so that the numbers of a text do not depend on other texts
        step = max(1, _MOST_ATTENTION_ROWS // len(heads) if call.query.is_cuda else len(rows))
        for start in range(0, len(rows), step):
            piece = slice(start, start + step)
            vectors = _gathered(call.query, places[piece], heads)  # (heads, rows, d)
            queries = SampledQueries(
                vectors, rows.part(piece), index.texts.starts, heads, layer.facts.group, tokens
            )
            copy_into(host[:, piece], query_attention(queries, call.key, rule))
        return host

    def _to_host(
        self, tensor: Tensor, index: _RowIndex, layer: WantedLayer, kind: Kind, norms: bool = False
    ) -> Tensor:
        """Rows of a tensor (tokens, heads, d) as a host tensor (wanted heads, n, d).

        With `norms`, the lengths (wanted heads, n) of these rows, in float32.
        """
        heads, places = layer.heads(kind), index.on(tensor.device, (layer.facts.layer, kind))
        shape = (len(heads), len(places), tensor.shape[2])
        dtype = torch.float32 if norms else tensor.dtype
        host = empty_host(shape[:2] if norms else shape, dtype, tensor)
        for start in range(0, len(places), self._max_rows):
            piece = slice(start, start + self._max_rows)
            rows = _gathered(tensor, places[piece], heads)  # (heads, rows, d)
            found = torch.linalg.vector_norm(rows.float(), dim=-1) if norms else rows
            copy_into(host[:, piece], found)
        return host


class _RowIndex:
    """The places of the rows among the tokens of all texts, copied to each device once."""

    def __init__(self, texts: ForwardTexts) -> None:
        self.texts = texts
        self._extent: dict[tuple[int, Kind], slice] = {}
        places, end = [torch.empty(0, dtype=torch.int64)], 0
        for name, rows in texts.rows.items():
            places.append(torch.from_numpy(texts.starts[rows.sequence] + rows.position))
            self._extent[name] = slice(end, end + len(rows))
            end += len(rows)
        self._places = torch.cat(places)  # (all rows,)
        self._on_device: dict[torch.device, Tensor] = {}
        self._tokens: dict[torch.device, TextTokens] = {}

    def on(self, device: torch.device, name: tuple[int, Kind]) -> Tensor:
        """(n,) the places of the rows of a layer and kind."""
        if device not in self._on_device:
            self._on_device[device] = to_device(self._places, device)
        return self._on_device[device][self._extent[name]]

    def tokens(self, device: torch.device) -> TextTokens | None:
        """The tokens of all texts; None if they are not known."""
        if self.texts.tokens is None:
            return None
        if device not in self._tokens:
            ids = torch.from_numpy(self.texts.tokens).int()
            self._tokens[device] = TextTokens(to_device(ids, device))
        return self._tokens[device]


def _gathered(tensor: Tensor, places: Tensor, heads: tuple[int, ...]) -> Tensor:
    """(wanted heads, n, d): the rows of a tensor (tokens, heads, d) at `places` (n,)."""
    return tensor[places[None], _head_numbers(tensor.device, heads)[:, None]]


@cache
def _head_numbers(device: torch.device, heads: tuple[int, ...]) -> Tensor:
    return to_device(torch.tensor(heads, dtype=torch.int64), device)
