"""Which heads of a model are captured."""

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
    """The heads wanted of one layer; an empty tuple where a kind is not captured."""

    facts: LayerFacts
    q: tuple[int, ...]
    k: tuple[int, ...]

    def heads(self, kind: Kind) -> tuple[int, ...]:
        """Heads of one kind, ascending."""
        return self.q if kind == "q" else self.k

    def head_ids(self) -> list[HeadId]:
        """The same as names of a dump's heads."""
        layer = self.facts.layer
        return [HeadId(layer, head, "q") for head in self.q] + [
            HeadId(layer, head, "k") for head in self.k
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
    """The wanted heads by layer: query heads as selected, with the key heads they read.

    `sample` is (count, seed): that many of the selected query heads, over all layers together.
    """
    for name, given in (("layers", layers), ("heads", heads)):
        if given is not None and not len(given):
            raise ConfigError(f"capture.{name}: an empty list; leave it out to take all of them")
    eligible = _selected_layers(layout, layers)
    if full_attention_only:
        eligible = [
            facts for facts in eligible if facts.type == "full_attention" and not facts.selective
        ]
        if not eligible:
            raise ConfigError(
                "capture.full_attention_only: none of the selected layers has full attention"
            )
    _check_alike(eligible)
    chosen = _selected_heads(eligible, heads)
    if sample is not None:
        count, seed = sample
        if count > len(chosen):
            raise ConfigError(
                f"capture.head_sampling.count: {count} given, but only {len(chosen)} query heads "
                f"are eligible ({len(eligible)} layers)"
            )
        chosen = sample_heads(chosen, count, seed)
    wanted = []
    for facts in eligible:
        q = tuple(sorted(head for layer, head in chosen if layer == facts.layer))
        if q:
            k = tuple(sorted({head // facts.group for head in q}))
            wanted.append(WantedLayer(facts, q if queries else (), k if keys else ()))
    return tuple(wanted)


def require_pre_rope(wanted: Sequence[WantedLayer]) -> None:
    """Refuse layers whose vectors before the rotary embedding cannot be told apart."""
    hidden = [layer.facts.layer for layer in wanted if not layer.facts.pre_rope_known]
    if hidden:
        raise ConfigError(
            "capture.capture_pre_rope: vectors before the rotary embedding cannot be told apart "
            f"in layers {index_ranges(hidden)} of this model"
        )


def _selected_layers(layout: ModelLayout, layers: Sequence[int] | None) -> list[LayerFacts]:
    if layers is None:
        return list(layout.layers)
    present = [facts.layer for facts in layout.layers]
    beyond = sorted(set(layers) - set(present))
    if beyond:
        why = ""
        if beyond[0] in layout.silent_layers:
            why = " (it makes no attention call)"
        elif beyond[0] in layout.compressed_layers:
            why = " (it attends to compressed keys, which are not tokens)"
        raise ConfigError(
            f"capture.layers: {beyond[0]} given{why}, there are {index_ranges(present)}"
        )
    return [facts for facts in layout.layers if facts.layer in set(layers)]


def _selected_heads(
    eligible: Sequence[LayerFacts], heads: Sequence[int] | None
) -> list[tuple[int, int]]:
    count = eligible[0].q_heads if eligible else 0
    beyond = [head for head in heads or () if not 0 <= head < count]
    if beyond:
        raise ConfigError(
            f"capture.heads: {beyond[0]} given, there are {index_ranges(range(count))}"
        )
    wanted = range(count) if heads is None else sorted(set(heads))
    return [(facts.layer, head) for facts in eligible for head in wanted]


def _check_alike(eligible: Sequence[LayerFacts]) -> None:
    """A dump has one number of query and key heads; layers that differ need separate dumps."""
    kinds: dict[tuple[int, int], list[int]] = {}
    for facts in eligible:
        kinds.setdefault((facts.q_heads, facts.k_heads), []).append(facts.layer)
    if len(kinds) > 1:
        told = "; ".join(
            f"{q} query and {k} key heads in layers {index_ranges(layers)}"
            for (q, k), layers in kinds.items()
        )
        raise ConfigError(
            f"capture.layers: the layers differ in their heads ({told}). Choose the layers of one "
            "kind, and capture the others into another folder."
        )
