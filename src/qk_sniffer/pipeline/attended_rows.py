"""Take the keys that receive attention, inside the attention call of a layer.

All sizes are known before the keys are drawn, so that a GPU need not wait for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qk_dump.limits import MOST_POSITIONS
from qk_dump.received_columns import ReceivedRows, joint_inclusion
from qk_sniffer.attention.received import SpacedQueries, received_attention
from qk_sniffer.attention.rule import AttentionRule
from qk_sniffer.model.attention_hooks import AttentionCall
from qk_sniffer.pipeline.device_copies import copy_parts_into, to_device
from qk_sniffer.sampling.attended_keys import AttendedSampler
from qk_sniffer.sampling.heads import KindRows, WantedLayer
from qk_sniffer.sampling.positions import PositionSampler
from qk_toolkit.errors import ToolkitError

Ints = npt.NDArray[np.int64]


class KeySource(NamedTuple):
    """Where the vectors of keys come from."""

    tensor: Tensor  # (b, key heads, s, d) of the precision of the stored vectors
    rows: Callable[[int, Tensor], Tensor]  # vectors (k, n, d) of a text at positions (k, n)
    values: Callable[[int, Tensor], Tensor] | None  # the same of the values; None if not known


@dataclass(frozen=True)
class AttendedTexts:
    """The texts of a batch, and how keys are drawn by attention."""

    sampler: AttendedSampler
    examples: Sequence[int]
    lengths: Sequence[int]
    layers: frozenset[int]  # layers of which all query heads of a key head are known here


@dataclass(frozen=True)
class DrawnKeys:
    """Keys of one key head that were drawn by attention."""

    rows: KindRows  # n places in the batch
    vectors: npt.NDArray[np.float32]  # (n, d)
    received: ReceivedRows  # (n, group)
    value_norm: npt.NDArray[np.float32] | None  # (n,) lengths of the values; None if not known


@dataclass(frozen=True)
class AttendedRows:
    """Host tensors of one layer; their copies may still be running.

    t texts, k key heads, c places for drawn keys, n keys of the base sample.
    """

    count: Tensor  # (t, k) drawn keys
    position: Tensor  # (t, k, c) ascending; only the first `count` are meant
    vectors: Tensor  # (t, k, c, d)
    norms: Tensor | None  # (t, k, c) float32, lengths of the values; None if not known
    received: Tensor  # (t, k, c, group) float32
    chance: Tensor  # (t, k, c) float64, the probability of the draw
    base_received: Tensor  # (n, k, group) float32
    base_chance: Tensor  # (n, k) float64

    @classmethod
    def empty(
        cls, texts: int, k: int, places: int, base: int, group: int, keys: KeySource
    ) -> AttendedRows:
        """Tensors without values; `keys` shows width, precision and device."""
        vectors = keys.tensor

        def host(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, pin_memory=vectors.is_cuda)

        return cls(
            count=host(texts, k, dtype=torch.int64),
            position=host(texts, k, places, dtype=torch.int64),
            vectors=host(texts, k, places, vectors.shape[-1], dtype=vectors.dtype),
            norms=host(texts, k, places, dtype=torch.float32) if keys.values else None,
            received=host(texts, k, places, group, dtype=torch.float32),
            chance=host(texts, k, places, dtype=torch.float64),
            base_received=host(base, k, group, dtype=torch.float32),
            base_chance=host(base, k, dtype=torch.float64),
        )

    def of_base(self, sampler: PositionSampler, position: Ints) -> ReceivedRows:
        """What the keys (n, k) of the base sample receive; `position` (n,) are theirs."""
        rates = sampler.rate(sampler.bucket(position), "k")[:, None]  # (n, 1)
        inclusion = joint_inclusion(rates, self.base_chance.numpy())  # (n, k)
        return ReceivedRows(self.base_received.numpy(), inclusion)

    def of_heads(self, sampler: PositionSampler, base: KindRows) -> Iterator[DrawnKeys]:
        """The drawn keys of every key head that are not in the base sample."""
        vectors = self.vectors.float().numpy()  # (t, k, c, d), which is exact
        received, chance = self.received.numpy(), self.chance.numpy()
        norms = None if self.norms is None else self.norms.numpy()  # (t, k, c)
        texts, _, places = self.position.shape
        _require_places(self.count, places)
        sequence = np.broadcast_to(np.arange(texts)[:, None], (texts, places))  # (t, c)
        for head in range(self.count.shape[1]):
            position = self.position[:, head].numpy()  # (t, c)
            meant = np.arange(places) < self.count[:, head].numpy()[:, None]  # (t, c)
            rows = KindRows(sequence[meant], position[meant])
            new = ~np.isin(_codes(rows), _codes(base), assume_unique=True)  # (m,)
            kept = KindRows(rows.sequence[new], rows.position[new])
            rates = sampler.rate(sampler.bucket(kept.position), "k")  # (n,)
            inclusion = joint_inclusion(rates, chance[:, head][meant][new])
            yield DrawnKeys(
                rows=kept,
                vectors=vectors[:, head][meant][new],
                received=ReceivedRows(received[:, head][meant][new], inclusion),
                value_norm=None if norms is None else norms[:, head][meant][new],
            )


def _codes(rows: KindRows) -> Ints:
    """A number for every row; other places in the batch have other numbers."""
    return rows.sequence * (MOST_POSITIONS + 1) + rows.position


def _require_places(count: Tensor, places: int) -> None:
    """Refuse a draw with more keys than there are places for, which is not expected to happen."""
    if count.numel() and int(count.max()) > places:
        raise ToolkitError(
            f"{int(count.max())} keys of a text were drawn by attention, but there is room for "
            f"{places}. Choose another capture.sampler.seed, and report this."
        )


def take_attended(
    call: AttentionCall,
    layer: WantedLayer,
    rule: AttentionRule,
    texts: AttendedTexts,
    base: KindRows,
    keys: KeySource,
) -> AttendedRows:
    """Draw keys of every text of a batch, and take the attention that keys receive.

    `base` are the keys of the base sample, which get what they receive as well.
    """
    group, k = layer.facts.group, len(layer.k)
    places = max((texts.sampler.capacity(length) for length in texts.lengths), default=0)
    result = AttendedRows.empty(len(texts.lengths), k, places, len(base), group, keys)
    result.count.zero_()
    starts = np.searchsorted(base.sequence, np.arange(len(texts.lengths) + 1))  # (t + 1,)
    for text in range(len(texts.lengths)):
        received = _received(call, layer, rule, texts, text)  # (k, group, s)
        numbers = layer.numbers("k")
        streams = texts.sampler.streams(texts.examples[text], layer.facts.layer, numbers)
        drawn = texts.sampler.draw(received, _like(streams, received))
        c = drawn.position.shape[1]
        put = copy_parts_into
        put(result.count[text], drawn.drawn)
        put(result.position[text, :, :c], drawn.position)
        put(result.vectors[text, :, :c], keys.rows(text, drawn.position))
        if result.norms is not None and keys.values is not None:
            values = keys.values(text, drawn.position).float()  # (k, c, d)
            put(result.norms[text, :, :c], torch.linalg.vector_norm(values, dim=-1))
        index = drawn.position[:, None].expand(-1, group, -1)  # (k, group, c)
        put(result.received[text, :, :c], received.gather(2, index).transpose(1, 2))
        put(result.chance[text, :, :c], drawn.chance.gather(1, drawn.position))
        rows = slice(starts[text], starts[text + 1])
        position = _like(base.position[rows], received)  # (m,)
        put(result.base_received[rows], received[:, :, position].permute(2, 0, 1))
        put(result.base_chance[rows], drawn.chance[:, position].T)
    return result


def _received(
    call: AttentionCall, layer: WantedLayer, rule: AttentionRule, texts: AttendedTexts, text: int
) -> Tensor:
    """(key heads, group, s): the attention that all keys of a text receive."""
    facts, length, device = layer.facts, texts.lengths[text], call.key.device
    heads = torch.tensor(layer.k)  # (k,)
    members = heads[:, None] * facts.group + torch.arange(facts.group)  # (k, group)
    members = to_device(members, device)
    on_host = torch.from_numpy(texts.sampler.query_positions(length, facts.window))  # (n,)
    position = to_device(on_host, device)
    query, key = call.query.detach()[text], call.key.detach()[text, :, :length]  # (heads, s, d)
    queries = SpacedQueries(
        vectors=query[members[..., None], position],
        position=position,
        on_host=on_host,
        key_heads=tuple(head % len(key) for head in layer.k),  # one key head may serve all
        members=members,
    )
    found = received_attention(queries, key, rule, text)
    return found if device.type in ("cpu", "cuda") else found.cpu()  # the draw needs float64


def _like(values: npt.NDArray[np.int64], tensor: Tensor) -> Tensor:
    return to_device(torch.from_numpy(np.ascontiguousarray(values)), tensor.device)
