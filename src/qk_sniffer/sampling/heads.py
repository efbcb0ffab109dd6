"""Choose the heads of a model to capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qk_dump.layout import HeadId, Kind
from qk_sniffer.model.layout import LayerFacts, ModelLayout
from qk_sniffer.sampling.positions import sample_heads
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import index_ranges


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
