"""Take the keys that receive attention, inside the attention call of a layer.

All sizes are known before the keys are drawn, so that a GPU need not wait for the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qk_dump.columns import INCLUSION, RECEIVED, VALUE_NORM, VECTOR
from qk_dump.positions import joint_inclusion
from qk_sniffer.attention.queries import SpacedQueries
from qk_sniffer.attention.received import received_attention
from qk_sniffer.device_copies import copy_into, empty_host, to_device
from qk_sniffer.engines.engine import AttentionRule, LayerCall
from qk_sniffer.rows.plan import ForwardTexts, RowPlan
from qk_sniffer.sampling.attended_keys import AttendedSampler
from qk_sniffer.sampling.heads import WantedLayer
from qk_sniffer.sampling.positions import PositionSampler
from qk_sniffer.sampling.rows import KindRows
from qk_toolkit.arrays import Array, Ints
from qk_toolkit.errors import ToolkitError

Columns = dict[str, npt.NDArray[np.floating]]


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
    base_received: Tensor  # (k, n, group) float32
    base_chance: Tensor  # (k, n) float64

    @classmethod
    def empty(cls, texts: int, places: int, base: int, group: int, call: LayerCall, k: int) -> Self:
        """Tensors without values; the stored keys of the call show width and precision."""
        vectors = call.stored_key

        def host(*shape: int, dtype: torch.dtype) -> Tensor:
            return empty_host(shape, dtype, vectors)

        return cls(
            count=host(texts, k, dtype=torch.int64),
            position=host(texts, k, places, dtype=torch.int64),
            vectors=host(texts, k, places, vectors.shape[-1], dtype=vectors.dtype),
            norms=None if call.value is None else host(texts, k, places, dtype=torch.float32),
            received=host(texts, k, places, group, dtype=torch.float32),
            chance=host(texts, k, places, dtype=torch.float64),
            base_received=host(k, base, group, dtype=torch.float32),
            base_chance=host(k, base, dtype=torch.float64),
        )

    def of_base(self, places: Sequence[int], rates: Array) -> Columns:
        """What the keys (n,) of the base sample receive, of all these heads one after the other.

        `rates` (n,) are those of the sampler.
        """
        chosen = list(places)
        return {
            RECEIVED: self.base_received[chosen].flatten(0, 1).numpy(),
            INCLUSION: joint_inclusion(rates, self.base_chance[chosen].flatten().numpy()),
        }

    def with_base(self, kept: Tensor) -> AttendedRows:
        """Of the keys of the base sample, those at the indices `kept` (m,)."""
        return replace(
            self, base_received=self.base_received[:, kept], base_chance=self.base_chance[:, kept]
        )

    def drawn(self, place: int, sampler: PositionSampler, base: KindRows) -> DrawnKeys:
        """The drawn keys of a head that are not in the base sample."""
        texts, _, places = self.position.shape
        _require_places(self.count, places)
        meant = np.arange(places) < self.count[:, place].numpy()[:, None]  # (t, c)
        sequence = np.broadcast_to(np.arange(texts)[:, None], (texts, places))[meant]  # (m,)
        rows = KindRows(sequence, self.position[:, place].numpy()[meant])
        new = ~np.isin(rows.codes, base.codes, assume_unique=True)  # (m,)
        kept = KindRows(rows.sequence[new], rows.position[new])
        rates = sampler.rate(sampler.bucket(kept.position), "k")  # (n,)
        columns: Columns = {
            VECTOR: self.vectors[:, place].float().numpy()[meant][new],  # (n, d), which is exact
            RECEIVED: self.received[:, place].numpy()[meant][new],  # (n, group)
            INCLUSION: joint_inclusion(rates, self.chance[:, place].numpy()[meant][new]),
        }
        if self.norms is not None:
            columns[VALUE_NORM] = self.norms[:, place].numpy()[meant][new]  # (n,)
        return DrawnKeys(kept, columns)


@dataclass(frozen=True)
class DrawnKeys:
    """Keys of one head that were drawn by attention: their places, and some of their columns."""

    rows: KindRows
    columns: Columns


def _require_places(count: Tensor, places: int) -> None:
    """Refuse a draw with more keys than there are places for, which is not expected to happen."""
    if count.numel() and int(count.max()) > places:
        raise ToolkitError(
            f"{int(count.max())} keys of a text were drawn by attention, but there is room for "
            f"{places}. Choose another capture.sampler.seed, and report this."
        )


def take_attended(
    call: LayerCall, layer: WantedLayer, plan: RowPlan, texts: ForwardTexts
) -> AttendedRows:
    """Draw keys of every text, and take the attention that they and the base sample receive."""
    assert plan.attended is not None
    sampler, base = plan.attended, texts.rows[call.layer, "k"]
    places = max((sampler.capacity(length) for length in texts.lengths), default=0)
    sizes = (len(texts.lengths), places, len(base), layer.facts.group)
    result = AttendedRows.empty(*sizes, call, len(layer.k))
    bounds = np.searchsorted(base.sequence, np.arange(len(texts.lengths) + 1))  # (t + 1,)
    for text in range(len(texts.lengths)):
        rows = slice(bounds[text], bounds[text + 1])
        _take_text(call, layer, sampler, texts, text, (result, rows, base.position[rows]))
    return result


def _take_text(
    call: LayerCall,
    layer: WantedLayer,
    sampler: AttendedSampler,
    texts: ForwardTexts,
    text: int,
    target: tuple[AttendedRows, slice, Ints],
) -> None:
    """Draw the keys of one text; `target` is where they go, and its keys of the base sample."""
    assert call.rule is not None
    result, rows, base = target
    start, length, put = int(texts.starts[text]), texts.lengths[text], copy_into
    tokens = slice(start, start + length)
    received = _received(call, layer, call.rule, sampler, text, tokens)  # (k, group, s)
    streams = sampler.streams(int(texts.examples[text]), call.layer, layer.k)
    drawn = sampler.draw(received, to_device(streams, received.device))
    c = drawn.position.shape[1]
    heads = to_device(np.array(layer.k), call.key.device)[:, None]  # (k, 1)
    places = start + drawn.position.to(call.key.device)  # (k, c)
    put(result.count[text], drawn.drawn)
    put(result.position[text, :, :c], drawn.position)
    put(result.vectors[text, :, :c], call.stored_key[places, heads])
    if result.norms is not None and call.value is not None:
        values = call.value[places, heads].float()  # (k, c, d)
        put(result.norms[text, :, :c], torch.linalg.vector_norm(values, dim=-1))
    index = drawn.position[:, None].expand(-1, layer.facts.group, -1)  # (k, group, c)
    put(result.received[text, :, :c], received.gather(2, index).transpose(1, 2))
    put(result.chance[text, :, :c], drawn.chance.gather(1, drawn.position))
    position = to_device(base, received.device)  # (m,)
    put(result.base_received[:, rows], received[:, :, position].transpose(1, 2))
    put(result.base_chance[:, rows], drawn.chance[:, position])


def _received(
    call: LayerCall,
    layer: WantedLayer,
    rule: AttentionRule,
    sampler: AttendedSampler,
    text: int,
    tokens: slice,
) -> Tensor:
    """(key heads, group, s): the attention that all keys of a text receive."""
    facts, device = layer.facts, call.key.device
    members = torch.tensor(layer.k)[:, None] * facts.group + torch.arange(facts.group)
    members = to_device(members, device)  # (k, group)
    length = tokens.stop - tokens.start
    on_host = torch.from_numpy(sampler.query_positions(length, facts.window))  # (n,)
    position = to_device(on_host, device)
    query = call.query[tokens].transpose(0, 1)  # (heads, s, d)
    queries = SpacedQueries(
        vectors=query[members[..., None], position],
        position=position,
        on_host=on_host,
        key_heads=layer.k,
        members=members,
    )
    found = received_attention(queries, call.key[tokens].transpose(0, 1), rule, text)
    return found if device.type in ("cpu", "cuda") else found.cpu()  # the draw needs float64
