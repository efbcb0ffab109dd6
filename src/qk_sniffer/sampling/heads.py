"""Choose the heads of a model to capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qk_dump.heads import HeadId, Kind
from qk_sniffer.config import CaptureSettings
from qk_sniffer.engines.engine import LayerFacts, ModelLayout
from qk_sniffer.sampling.positions import sample_heads
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import index_ranges

KINDS: tuple[Kind, Kind] = ("q", "k")
_ALL_HEADS = CaptureSettings()


@dataclass(frozen=True)
class WantedLayer:
    """The heads to capture in one layer; a tuple is empty if that kind is not captured."""

    facts: LayerFacts
    q: tuple[int, ...]
    k: tuple[int, ...]

    def heads(self, kind: Kind) -> tuple[int, ...]:
        """The heads of one kind, ascending."""
        return self.q if kind == "q" else self.k

    def head_ids(self) -> list[HeadId]:
        """The ids of these heads in a dump."""
        return [HeadId(self.facts.layer, head, kind) for kind in KINDS for head in self.heads(kind)]


def choose_heads(
    layout: ModelLayout, settings: CaptureSettings = _ALL_HEADS
) -> tuple[WantedLayer, ...]:
    """The heads to capture in each layer: the selected query heads and their key heads."""
    layers, heads, sample = settings.layers, settings.heads, settings.head_sampling
    for name, selection in (("layers", layers), ("heads", heads)):
        if selection is not None and not len(selection):
            raise ConfigError(f"capture.{name}: the list is empty; leave it out to take all {name}")
    eligible = _selected_layers(layout, layers)
    if settings.full_attention_only:
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
        if sample.count > len(chosen):
            raise ConfigError(
                f"capture.head_sampling.count: {sample.count} given, but only {len(chosen)} query "
                f"heads are eligible ({len(eligible)} layers); give a smaller count"
            )
        chosen = sample_heads(chosen, sample.count, sample.seed)
    wanted = []
    for facts in eligible:
        q = tuple(sorted(head for layer, head in chosen if layer == facts.layer))
        if q:
            k = tuple(sorted({head // facts.group for head in q}))
            q, k = q if settings.capture_queries else (), k if settings.capture_keys else ()
            wanted.append(WantedLayer(facts, q, k))
    if settings.capture_pre_rope:
        _require_pre_rope(wanted)
    return tuple(wanted)


def eligible_q_heads(layout: ModelLayout, settings: CaptureSettings) -> int:
    """The number of query heads from which `head_sampling` draws; without it, all of them."""
    every = settings.model_copy(update={"head_sampling": None, "capture_queries": True})
    return sum(len(layer.q) for layer in choose_heads(layout, every))


def _require_pre_rope(wanted: Sequence[WantedLayer]) -> None:
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
    unknown = [head for head in heads or () if head >= count]
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
