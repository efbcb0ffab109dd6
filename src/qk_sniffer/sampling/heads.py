"""Choose the heads of a model to capture.

The rows of a batch to capture: sampled positions of every layer and kind.

Heads of a tensor parallel model, of which every process holds some. The probe of a process finds
its own heads, numbered from 0. Here they get their true numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qk_dump.layout import HeadId, Kind
from qk_sniffer.model.layout import LayerFacts, ModelLayout
from qk_sniffer.model.tensor_parallel import Floats, HeadVectors
from qk_sniffer.sampling.positions import PositionSampler, sample_heads
from qk_toolkit.arrays import Ints
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import index_ranges

_ROUNDING = 0.05  # relative difference of a vector that two processes computed

KINDS: tuple[Kind, Kind] = ("q", "k")


@dataclass(frozen=True)
class WantedLayer:
    """The heads to capture in one layer; a tuple is empty if that kind is not captured.

    In a tensor parallel model `q` and `k` count the heads of this process from 0.
    """

    facts: LayerFacts
    q: tuple[int, ...]
    k: tuple[int, ...]
    first_q: int = 0  # true number of the first query head of this process
    first_k: int = 0

    def heads(self, kind: Kind) -> tuple[int, ...]:
        """The heads of one kind, ascending."""
        return self.q if kind == "q" else self.k

    def numbers(self, kind: Kind) -> tuple[int, ...]:
        """The true numbers of the heads of one kind."""
        first = self.first_q if kind == "q" else self.first_k
        return tuple(first + head for head in self.heads(kind))

    def head_ids(self) -> list[HeadId]:
        """The ids of these heads in a dump."""
        layer = self.facts.layer
        return [HeadId(layer, head, "q") for head in self.numbers("q")] + [
            HeadId(layer, head, "k") for head in self.numbers("k")
        ]


def choose_heads(
    layout: ModelLayout,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    full_attention_only: bool = False,
    sample: tuple[int, int] | None = None,
    queries: bool = True,
    keys: bool = True,
) -> tuple[WantedLayer, ...]:
    """The heads to capture in each layer: the selected query heads and their key heads.

    `sample` is (count, seed): a random choice of `count` query heads from all selected layers.
    """
    for name, selection in (("layers", layers), ("heads", heads)):
        if selection is not None and not len(selection):
            raise ConfigError(f"capture.{name}: the list is empty; leave it out to take all {name}")
    eligible = _selected_layers(layout, layers)
    if full_attention_only:
        eligible = [
            facts for facts in eligible if facts.type == "full_attention" and not facts.selective
        ]
        if not eligible:
            raise ConfigError(
                "capture.full_attention_only: none of the selected layers has full attention; "
                "select other layers, or leave it out"
            )
    _require_equal_head_counts(eligible)
    chosen = _selected_heads(eligible, heads)
    if sample is not None:
        count, seed = sample
        if count > len(chosen):
            raise ConfigError(
                f"capture.head_sampling.count: {count} given, but only {len(chosen)} query heads "
                f"are eligible ({len(eligible)} layers); give a smaller count"
            )
        chosen = sample_heads(chosen, count, seed)
    wanted = []
    for facts in eligible:
        q = tuple(sorted(head for layer, head in chosen if layer == facts.layer))
        if q:
            k = tuple(sorted({head // facts.group for head in q}))
            wanted.append(WantedLayer(facts, q if queries else (), k if keys else ()))
    return tuple(wanted)


def eligible_heads(
    layout: ModelLayout,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    full_attention_only: bool = False,
) -> int:
    """The number of query heads from which a sample of heads is drawn."""
    chosen = choose_heads(
        layout, layers=layers, heads=heads, full_attention_only=full_attention_only
    )
    return sum(len(layer.q) for layer in chosen)


def require_pre_rope(wanted: Sequence[WantedLayer]) -> None:
    """Refuse layers whose vectors before the rotary embedding cannot be identified."""
    unknown = [layer.facts.layer for layer in wanted if not layer.facts.pre_rope_known]
    if unknown:
        raise ConfigError(
            "capture.capture_pre_rope: vectors before the rotary embedding cannot be identified in "
            f"layers {index_ranges(unknown)} of this model; leave capture_pre_rope out"
        )


def _selected_layers(layout: ModelLayout, layers: Sequence[int] | None) -> list[LayerFacts]:
    if layers is None:
        return list(layout.layers)
    present = [facts.layer for facts in layout.layers]
    unknown = sorted(set(layers) - set(present))
    if unknown:
        layer, reason = unknown[0], ""
        if layer in layout.layers_without_attention:
            reason = " (it has no self-attention)"
        elif layer in layout.compressed_layers:
            reason = " (it attends to compressed keys, which are not tokens)"
        raise ConfigError(
            f"capture.layers: {layer} given{reason}, there are {index_ranges(present)}"
        )
    return [facts for facts in layout.layers if facts.layer in set(layers)]


def _selected_heads(
    eligible: Sequence[LayerFacts], heads: Sequence[int] | None
) -> list[tuple[int, int]]:
    count = eligible[0].q_heads if eligible else 0
    unknown = [head for head in heads or () if not 0 <= head < count]
    if unknown:
        raise ConfigError(f"capture.heads: {unknown[0]} given, there are 0-{count - 1}")
    wanted = range(count) if heads is None else sorted(set(heads))
    return [(facts.layer, head) for facts in eligible for head in wanted]


def _require_equal_head_counts(eligible: Sequence[LayerFacts]) -> None:
    """Refuse layers with different numbers of heads: all layers of a dump have the same number."""
    layers_by_count: dict[tuple[int, int], list[int]] = {}
    for facts in eligible:
        layers_by_count.setdefault((facts.q_heads, facts.k_heads), []).append(facts.layer)
    if len(layers_by_count) > 1:
        counts = "; ".join(
            f"{q} query and {k} key heads in layers {index_ranges(layers)}"
            for (q, k), layers in layers_by_count.items()
        )
        raise ConfigError(
            f"capture.layers: the layers differ in their number of heads ({counts}). Select layers "
            "with equal numbers, and capture the other layers into another folder."
        )


@dataclass(frozen=True)
class HeadShare:
    """The heads of one kind and layer that this process holds."""

    total: int  # of all processes
    first: int  # the number of the first one
    count: int  # 0 if another process writes them


class ParallelHeads:
    """The true numbers of the heads of one process.

    `vectors` has, for every process in order, a vector of each of its heads for the same token. A
    head count in a config is not reliable, so equal vectors show that all processes have the same
    heads. `q_heads` is the number of query heads in the config; a config that contradicts the
    vectors is refused.
    """

    def __init__(
        self, vectors: Sequence[HeadVectors], rank: int, q_heads: int | None = None
    ) -> None:
        self._shares = {}
        for layer, kind in vectors[rank]:
            parts = [part[layer, kind] for part in vectors]
            _require_values(parts, layer)
            share = self._shares[layer, kind] = _share(parts, rank)
            if kind == "q":
                _require_total(share.total, q_heads, parts, layer)

    def whole(self, layout: ModelLayout) -> ModelLayout:
        """The layout of the whole model, from the layout of the part of this process."""
        layers = tuple(
            replace(
                facts, q_heads=self._share(facts, "q").total, k_heads=self._share(facts, "k").total
            )
            for facts in layout.layers
        )
        return replace(layout, layers=layers)

    def own(self, wanted: Sequence[WantedLayer], layout: ModelLayout) -> tuple[WantedLayer, ...]:
        """The wanted heads that this process writes; `layout` is the one of its part."""
        own = []
        for layer in wanted:
            facts = layout[layer.facts.layer]
            q, k = self._share(facts, "q"), self._share(facts, "k")
            part = WantedLayer(
                facts, _numbered(layer.q, q), _numbered(layer.k, k), q.first, k.first
            )
            if part.q or part.k:
                own.append(part)
        return tuple(own)

    def _share(self, facts: LayerFacts, kind: Kind) -> HeadShare:
        q, k = self._shares[facts.layer, "q"], self._shares[facts.layer, "k"]
        if q.total != facts.q_heads and 1 < k.total == facts.k_heads:
            raise ConfigError(
                f"model.tensor_parallel: layer {facts.layer} spreads its query heads over the "
                f"processes, but not its {k.total} key heads; use model.device_map: auto instead"
            )
        return q if kind == "q" else k


def _share(vectors: Sequence[Floats], rank: int) -> HeadShare:
    """The share of this process, from the vectors (heads, d) of every process."""
    first, held = vectors[0], len(vectors[rank])
    if all(_are_the_same(part, first) for part in vectors):
        return HeadShare(held, 0, held if rank == 0 else 0)
    counts = [len(part) for part in vectors]
    return HeadShare(sum(counts), sum(counts[:rank]), held)


def _are_the_same(part: Floats, first: Floats) -> bool:
    """Whether two processes hold the same heads: vectors (heads, d) up to rounding."""
    if part.shape != first.shape:
        return False
    differences = np.linalg.norm(part - first, axis=1)  # (heads,)
    return bool((differences <= _ROUNDING * np.linalg.norm(first, axis=1)).all())


def _require_values(parts: Sequence[Floats], layer: int) -> None:
    """Refuse vectors that cannot show whether processes hold the same heads."""
    if not all(np.isfinite(part).all() and part.any() for part in parts):
        raise ConfigError(
            f"model.tensor_parallel: the vectors of layer {layer} are zero, NaN or infinite, so "
            "the numbers of its heads are not known; use model.device_map: auto instead"
        )


def _require_total(total: int, in_config: int | None, parts: Sequence[Floats], layer: int) -> None:
    """Refuse a number of heads if the config has the number of the opposite decision."""
    possible = {len(parts[0]), sum(len(part) for part in parts)}
    if in_config != total and in_config in possible:
        raise ConfigError(
            f"model.tensor_parallel: layer {layer} has {total} query heads by their vectors, but "
            f"{in_config} by the config; use model.device_map: auto instead"
        )


def _numbered(heads: Sequence[int], share: HeadShare) -> tuple[int, ...]:
    """The places in this process of those heads that it writes."""
    return tuple(
        head - share.first for head in heads if share.first <= head < share.first + share.count
    )


@dataclass(frozen=True)
class KindRows:
    """Rows to take for one layer and kind of a batch."""

    sequence: Ints  # (n,) index in the batch, ascending
    position: Ints  # (n,) ascending within a sequence

    def __len__(self) -> int:
        return len(self.sequence)

    def part(self, rows: slice) -> KindRows:
        """Some of the rows."""
        return KindRows(self.sequence[rows], self.position[rows])

    def tokens(self, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """(n,) the tokens of the rows, from the ids (b, s) of the batch."""
        return ids[self.sequence, self.position].astype(np.int32)

    def texts(self) -> Iterator[tuple[int, int]]:
        """(first row, end) of every sequence that has rows."""
        starts = np.flatnonzero(np.diff(self.sequence, prepend=-1)).tolist()
        yield from zip(starts, [*starts[1:], len(self)], strict=True)


def sample_rows(
    sampler: PositionSampler,
    wanted: Sequence[WantedLayer],
    examples: Sequence[int],
    lengths: Sequence[int],
) -> dict[tuple[int, Kind], KindRows]:
    """The rows of every wanted layer and kind, for a batch of examples of these lengths."""
    rows: dict[tuple[int, Kind], KindRows] = {}
    for layer in wanted:
        number = layer.facts.layer
        for kind in KINDS:
            if not layer.heads(kind):
                continue
            kept = [
                sampler.positions(length, example=example, layer=number, kind=kind)
                for example, length in zip(examples, lengths, strict=True)
            ]
            counts = [len(positions) for positions in kept]
            rows[number, kind] = KindRows(
                sequence=np.repeat(np.arange(len(kept)), counts),
                position=np.concatenate(kept) if kept else np.empty(0, np.int64),
            )
    return rows
