"""Whether the heads of a run are a random sample, and of how many heads.

A capture with `head_sampling` draws query heads at random. The mean over them estimates the mean
over all eligible heads, so its error has a part from the choice of heads. Heads that a person
chose are fixed: their mean is about these heads only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attention_plasticity.metrics import FULL_ATTENTION

_CHOICES = ("layers", "heads")  # settings of an analysis that choose heads


@dataclass(frozen=True)
class EligibleHeads:
    """Numbers of query heads from which the heads of a run were sampled at random."""

    total: int
    by_layer_type: Mapping[str, int]

    def of_types(self, layer_types: Iterable[str]) -> int:
        """The eligible heads in layers of some types; all of them if a type is not known."""
        types = set(layer_types)
        if not types <= self.by_layer_type.keys():
            return self.total
        return sum(self.by_layer_type[layer_type] for layer_type in types)


def eligible_heads(dump: Mapping[str, Any], config: Mapping[str, Any]) -> EligibleHeads | None:
    """The heads from which those of a run were sampled; None if its heads are fixed.

    `dump` is the content of dump.json, `config` has the settings of the analysis. Heads are fixed
    if all eligible heads were captured, or if layers or heads were chosen in the analysis.
    """
    capture = _mapping(_mapping(dump.get("capture")).get("capture"))
    count = _mapping(capture.get("head_sampling")).get("count")
    chosen = any(config.get(name) is not None for name in _CHOICES) or _fewer_layers(dump, config)
    if not isinstance(count, int) or chosen:
        return None
    by_type = _by_layer_type(dump, capture)
    total = dump.get("eligible_q_heads") or sum(by_type.values())
    if count >= total:
        return None
    return EligibleHeads(total, by_type if sum(by_type.values()) == total else {})


def _fewer_layers(dump: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether `num_layers` of the analysis leaves layers of the dump out."""
    wanted, captured = config.get("num_layers"), dump.get("num_layers")
    return isinstance(wanted, int) and isinstance(captured, int) and wanted < captured


def _by_layer_type(dump: Mapping[str, Any], capture: Mapping[str, Any]) -> dict[str, int]:
    """Eligible query heads of each type of layer; earlier dumps have no total number."""
    chosen, heads = capture.get("layers"), capture.get("heads")
    per_layer = len(set(heads)) if isinstance(heads, list) else dump.get("num_q_heads") or 0
    found: Counter[str] = Counter()
    for entry in dump.get("layers") or []:
        full = entry.get("type") == FULL_ATTENTION and not entry.get("selective")
        left_out = capture.get("full_attention_only") is True and not full
        if not left_out and (chosen is None or entry.get("layer") in chosen):
            found[str(entry.get("type"))] += per_layer
    return dict(found)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
