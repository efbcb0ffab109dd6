"""What `dump.json` records about a layer: its type, and how its logits are computed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from attention_plasticity.metrics import CHUNKED_ATTENTION
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest

_TYPE = re.compile(r"[A-Za-z0-9_+-]{1,64}")  # one word
PRE_ROPE = "the vectors were captured before the rotary embedding"
BIASED = "the layer adds a bias to its logits"
SELECTIVE = "the content of keys decides which keys a query sees"
NO_TEXTS = "the texts of the queries are not known"
SINGLE_EXAMPLE = "single_example is set"
NO_COMMON_TEXT = "queries and keys have no text in common"
NO_COLUMNS = "the queries have no attention columns, or all their values are null"
WRONG_SCALE = (
    "the logits are larger than lse allows: scale or softcap in dump.json are wrong, or the "
    "vectors were rounded too much"
)


@dataclass(frozen=True)
class LayerLogits:
    """Scale, soft-cap and mask of a layer, or the reason why logits are not known."""

    scale: float | None = None  # None: 1/√d
    softcap: float | None = None
    chunked: bool = False  # the window is a chunk
    problem: str | None = None


DEFAULT_LOGITS = LayerLogits()


def logits_of(dump: Dump, layer: int) -> LayerLogits:
    """The logits of a layer, as far as `dump.json` has them."""
    manifest = dump.manifest
    if manifest is None:
        return DEFAULT_LOGITS
    if manifest.pre_rope:
        return LayerLogits(problem=PRE_ROPE)
    entry = _entry(manifest, layer)
    if entry.get("selective") is True:
        return LayerLogits(problem=SELECTIVE)
    if entry.get("biased") is True:
        return LayerLogits(problem=BIASED)
    scale, softcap = entry.get("scale"), entry.get("softcap")
    scale = manifest.attention_scale if scale is None else scale
    return LayerLogits(scale, softcap, entry.get("type") == CHUNKED_ATTENTION)


def layer_type_of(dump: Dump, layer: int) -> str | None:
    """The type of a layer, such as `full_attention`; None if `dump.json` does not have it."""
    manifest = dump.manifest
    if manifest is None:
        return None
    types = manifest.layer_types or []
    found = _entry(manifest, layer).get("type") or (types[layer] if layer < len(types) else None)
    return found if isinstance(found, str) and _TYPE.fullmatch(found) else None


def _entry(manifest: DumpManifest, layer: int) -> dict[str, Any]:
    entries = [entry for entry in manifest.layers or [] if entry.get("layer") == layer]
    return entries[0] if entries else {}
