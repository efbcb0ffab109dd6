"""Heads of a tensor parallel model, of which every process holds some.

The probe of a process finds its own heads, numbered from 0. Here they get their true numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qk_dump.layout import Kind
from qk_sniffer.model.layout import LayerFacts, ModelLayout
from qk_sniffer.model.tensor_parallel import Floats, HeadVectors
from qk_sniffer.sampling.heads import WantedLayer
from qk_toolkit.errors import ConfigError

_ROUNDING = 0.05  # relative difference of a vector that two processes computed


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
