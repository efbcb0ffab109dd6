"""Take sampled rows of queries and keys while a model runs.

The rows are gathered on the device inside the attention call and copied to the host. On CUDA the
copies are asynchronous. No full tensor is kept, and the outputs of the model do not change.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from qk_dump.layout import Kind
from qk_sniffer.attention.query_attention import query_attention
from qk_sniffer.attention.rule import AttentionRule, SampledQueries, TextTokens, rule_of
from qk_sniffer.attention.totals import COLUMNS
from qk_sniffer.model.attention_hooks import AttentionCall, attention_hook, rotary_hook
from qk_sniffer.pipeline.attended_rows import AttendedTexts, KeySource, take_attended
from qk_sniffer.pipeline.device_copies import copy_into, to_device
from qk_sniffer.pipeline.taken_rows import LayerAttention, TakenRows
from qk_sniffer.sampling.heads import KINDS, KindRows, WantedLayer

Ints = npt.NDArray[np.int64]

_ALL_ROWS = slice(None)
_MOST_ATTENTION_ROWS = 1 << 18  # rows of all heads in one computation of attention


class RowTap:
    """Takes the expected rows of the wanted heads from every forward while it is open."""

    def __init__(
        self,
        decoder: nn.Module,
        wanted: Sequence[WantedLayer],
        *,
        pre_rope: bool = False,
        attention: bool = False,
        tokens: bool = True,
        max_rows: int = 65_536,
    ) -> None:
        """`attention` also computes the attention columns of queries, where logits are known.

        It also takes the lengths of the values that belong to keys. Without `tokens` there are no
        attention columns by token.
        """
        self._decoder = decoder
        self._wanted = {(layer.facts.module, layer.facts.call): layer for layer in wanted}
        self._modules = {layer.facts.module for layer in wanted}
        self._pre_rope = pre_rope
        self._attention = attention
        self._with_tokens = tokens
        self._max_rows = max_rows
        self._stack = ExitStack()
        self._rows = _RowIndex({})
        self._tokens = _BatchTokens(None)
        self._taken = TakenRows()
        self._thread = threading.get_ident()  # forwards of other threads are ignored
        self._calls: Counter[nn.Module] = Counter()  # attention calls of the forward so far
        self._current_layer: WantedLayer | None = None  # its attention module is running
        self._rotary_calls = 0
        self._unrotated: dict[Kind, Tensor] = {}  # rows of the rotary dimensions before rotation
        self._unrotated_keys: Tensor | None = None  # (b, heads, s, r) all of them, for a draw
        self._texts: AttendedTexts | None = None
        self._heads: dict[tuple[torch.device, tuple[int, ...]], Tensor] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(attention_hook(self._on_attention))
            if self._pre_rope:
                for module in self._modules:
                    stack.callback(module.register_forward_pre_hook(self._on_module).remove)
                stack.enter_context(rotary_hook(self._modules, self._on_rotary))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def expect(
        self,
        rows: Mapping[tuple[int, Kind], KindRows],
        tokens: Tensor | None = None,
        attended: AttendedTexts | None = None,
    ) -> None:
        """Set the rows to take from the next forward, which must run in the same thread.

        Rows of earlier forwards that were not taken are dropped. `tokens` (b, s) are those of the
        forward, for the attention columns by token. With `attended`, keys are also drawn by
        attention.
        """
        self._thread = threading.get_ident()
        self._texts = attended
        self._rows = _RowIndex(rows)
        self._tokens = _BatchTokens(tokens if self._with_tokens else None)
        self._taken = TakenRows()
        self._calls.clear()
        self._current_layer, self._unrotated_keys = None, None

    def take(self) -> TakenRows:
        """The rows of the forward since `expect`."""
        taken, self._taken = self._taken, TakenRows()
        self._rows = _RowIndex({})
        taken.record_events()
        return taken

    def _on_module(self, module: nn.Module, arguments: object) -> None:
        if threading.get_ident() != self._thread:
            return
        self._current_layer = self._wanted.get((module, self._calls[module]))
        self._rotary_calls = 0
        self._unrotated, self._unrotated_keys = {}, None

    def _on_rotary(self, before: tuple[Tensor, ...], after: tuple[Tensor, ...]) -> None:
        if self._current_layer is None or threading.get_ident() != self._thread:
            return
        call, self._rotary_calls = self._rotary_calls, self._rotary_calls + 1
        facts = self._current_layer.facts
        for kind in KINDS:
            name, part = (facts.layer, kind), facts.rotary(kind)
            if part is None or part.call != call or name not in self._rows or name in self._taken:
                continue
            tensor = before[part.tensor]
            if part.heads_last:
                tensor = tensor.transpose(1, 2)  # (b, heads, s, r)
            heads = self._current_layer.heads(kind)
            if kind == "k" and self._texts and facts.layer in self._texts.layers:
                self._unrotated_keys = tensor.detach()
            if part.width == facts.width:
                self._taken.put(name, self._to_host(tensor, name, heads), tensor.device)
            else:
                self._unrotated[kind] = self._gather(tensor, name, heads)  # (heads, n, r)

    def _on_attention(self, call: AttentionCall) -> None:
        module, query, key = call.module, call.query, call.key
        if module not in self._modules or query.shape[2] != key.shape[2]:
            return
        if threading.get_ident() != self._thread:
            return
        layer = self._wanted.get((module, self._calls[module]))
        self._calls[module] += 1
        if layer is None:
            return
        tensors: tuple[tuple[Kind, Tensor], ...] = (("q", query), ("k", key))
        for kind, tensor in tensors:
            name = (layer.facts.layer, kind)
            if name not in self._rows or name in self._taken:
                continue
            part, unrotated = layer.facts.rotary(kind), self._unrotated.get(kind)
            if not self._pre_rope or part is None:
                rows = self._to_host(tensor, name, layer.heads(kind))
            elif unrotated is None:  # the rotary function was not recorded
                continue
            else:  # only some of the dimensions are rotated
                whole = self._gather(tensor, name, layer.heads(kind))  # (heads, n, d)
                whole[..., part.start : part.start + part.width] = unrotated
                rows = _copy_to_host(whole)
            self._taken.put(name, rows, tensor.device)
        self._current_layer, self._unrotated = None, {}
        rule = rule_of(layer.facts, call) if self._attention else None
        if rule is not None and (layer.facts.layer, "q") in self._rows:
            self._take_attention(call, layer, rule)
        if self._attention and (layer.facts.layer, "k") in self._rows:
            self._take_value_norms(call, layer)
        if rule is not None and self._texts and layer.facts.layer in self._texts.layers:
            self._take_attended(call, layer, rule, self._texts)
        self._unrotated_keys = None

    def _take_attention(self, call: AttentionCall, layer: WantedLayer, rule: AttentionRule) -> None:
        """Compute the attention columns of the expected queries."""
        name: tuple[int, Kind] = (layer.facts.layer, "q")
        rows, heads = self._rows.host(name), layer.q
        tokens, ids = self._tokens.on(call.query.device, call.key.shape[2])
        shape = (len(heads), len(rows), COLUMNS)
        host = torch.empty(shape, dtype=torch.float32, pin_memory=call.query.is_cuda)
        # elsewhere in one piece, so that the numbers of a text do not depend on other texts
        step = max(1, _MOST_ATTENTION_ROWS // len(heads) if call.query.is_cuda else len(rows))
        for start in range(0, len(rows), step):
            piece = slice(start, start + step)
            vectors = self._gather(call.query, name, heads, piece)  # (heads, rows, d)
            queries = SampledQueries(vectors, rows.part(piece), heads, layer.facts.group, tokens)
            found = query_attention(queries, call.key.detach(), rule)
            _copy_piece(host, piece, found)
        taken = LayerAttention(host, rows.sequence, ids)
        self._taken.put_attention(layer.facts.layer, taken, call.query.device)

    def _take_value_norms(self, call: AttentionCall, layer: WantedLayer) -> None:
        """Take the lengths of the values of the expected keys, if each key has one."""
        name: tuple[int, Kind] = (layer.facts.layer, "k")
        value, heads = call.value, layer.k
        if not _has_a_value_per_key(call):
            return
        host = torch.empty(
            (len(heads), self._rows.count(name)), dtype=torch.float32, pin_memory=value.is_cuda
        )
        for start in range(0, host.shape[1], self._max_rows):
            piece = slice(start, start + self._max_rows)
            values = self._gather(value, name, heads, piece).float()  # (heads, rows, d)
            _copy_piece(host, piece, torch.linalg.vector_norm(values, dim=-1))
        self._taken.put_value_norms(layer.facts.layer, host, value.device)

    def _take_attended(
        self, call: AttentionCall, layer: WantedLayer, rule: AttentionRule, texts: AttendedTexts
    ) -> None:
        """Draw keys by attention, and take the attention that the expected keys receive."""
        name: tuple[int, Kind] = (layer.facts.layer, "k")
        part, unrotated = layer.facts.rotary("k"), self._unrotated_keys
        if name not in self._rows or (self._pre_rope and part and unrotated is None):
            return

        def at(keys: Tensor, text: int, position: Tensor) -> Tensor:
            heads = layer.k if keys.shape[1] > 1 else (0,) * len(layer.k)  # all heads share one
            index = self._head_numbers(keys.device, heads)[:, None]  # (k, 1)
            return keys[text][index, position.to(keys.device)]  # (k, n, d)

        def partly_unrotated(text: int, position: Tensor) -> Tensor:
            assert part is not None
            assert unrotated is not None
            whole = at(call.key.detach(), text, position)  # (k, n, d)
            whole[..., part.start : part.start + part.width] = at(unrotated, text, position)
            return whole

        whole = call.key.detach()
        if self._pre_rope and part and part.width == layer.facts.width and unrotated is not None:
            whole = unrotated
        values = partial(at, call.value.detach()) if _has_a_value_per_key(call) else None
        keys = KeySource(whole, partial(at, whole), values)
        if self._pre_rope and part and part.width < layer.facts.width:
            keys = KeySource(whole, partly_unrotated, values)
        rows = take_attended(call, layer, rule, texts, self._rows.host(name), keys)
        self._taken.put_attended(layer.facts.layer, rows, call.key.device)

    def _to_host(self, tensor: Tensor, name: tuple[int, Kind], heads: tuple[int, ...]) -> Tensor:
        """Rows of a (b, heads, s, d) tensor as a host tensor (wanted heads, n, d)."""
        total = self._rows.count(name)
        shape = (len(heads), total, tensor.shape[3])
        host = torch.empty(shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        for start in range(0, total, self._max_rows):
            piece = slice(start, start + self._max_rows)
            _copy_piece(host, piece, self._gather(tensor, name, heads, piece))
        return host

    def _gather(
        self,
        tensor: Tensor,
        name: tuple[int, Kind],
        heads: tuple[int, ...],
        piece: slice = _ALL_ROWS,
    ) -> Tensor:
        sequence, position = self._rows.on(tensor.device, name)  # (n,), (n,)
        if tensor.shape[1] == 1:  # all heads share one
            heads = (0,) * len(heads)
        head = self._head_numbers(tensor.device, heads)  # (wanted heads,)
        return tensor.detach()[sequence[None, piece], head[:, None], position[None, piece]]

    def _head_numbers(self, device: torch.device, heads: tuple[int, ...]) -> Tensor:
        if (device, heads) not in self._heads:
            self._heads[device, heads] = to_device(torch.tensor(heads, dtype=torch.int64), device)
        return self._heads[device, heads]


class _RowIndex:
    """The row indices of a batch, copied to each device once."""

    def __init__(self, rows: Mapping[tuple[int, Kind], KindRows]) -> None:
        self._rows = rows
        self._extent: dict[tuple[int, Kind], tuple[int, int]] = {}
        parts = [np.empty((2, 0), np.int64)]
        start = 0
        for key, kept in rows.items():
            parts.append(np.stack([kept.sequence, kept.position]))  # (2, n)
            self._extent[key] = (start, start + len(kept.sequence))
            start += len(kept.sequence)
        self._host = torch.from_numpy(np.concatenate(parts, axis=1))  # (2, all rows)
        self._by_device: dict[torch.device, Tensor] = {}

    def __contains__(self, key: tuple[int, Kind]) -> bool:
        return key in self._extent

    def host(self, key: tuple[int, Kind]) -> KindRows:
        """The rows of a layer and kind, in host memory."""
        return self._rows[key]

    def on(self, device: torch.device, key: tuple[int, Kind]) -> tuple[Tensor, Tensor]:
        """(sequence, position) of a layer and kind, each (n,)."""
        if device not in self._by_device:
            self._by_device[device] = to_device(self._host, device)
        first, end = self._extent[key]
        sequence, position = self._by_device[device][:, first:end]
        return sequence, position

    def count(self, key: tuple[int, Kind]) -> int:
        """The number of rows of a layer and kind."""
        first, end = self._extent[key]
        return end - first


class _BatchTokens:
    """The tokens of a batch, copied to each device once."""

    def __init__(self, tokens: Tensor | None) -> None:
        self._host = tokens
        self._by_device: dict[torch.device, TextTokens] = {}

    def on(self, device: torch.device, length: int) -> tuple[TextTokens | None, Ints | None]:
        """The tokens (b, s) on a device and as an array; None unless there is one per key."""
        if self._host is None or self._host.shape[1] != length:
            return None, None
        if device not in self._by_device:
            self._by_device[device] = TextTokens(to_device(self._host.int(), device))
        return self._by_device[device], self._host.numpy()


def _has_a_value_per_key(call: AttentionCall) -> bool:
    return call.value.dim() == 4 and call.value.shape[:3] == call.key.shape[:3]


def _copy_to_host(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return copy_into(host, tensor)


def _copy_piece(host: Tensor, piece: slice, rows: Tensor) -> None:
    """Copy `rows` (heads, rows of the piece, d) into a host tensor (heads, n, d).

    Every copy has a contiguous target.
    """
    if rows.shape[1] == host.shape[1]:
        copy_into(host, rows)
        return
    for place, part in enumerate(rows):
        copy_into(host[place, piece], part)
