"""The attention layers of a model in vLLM, compared with those of the model's config.

vLLM knows heads, scale, window, soft-cap and sinks of every layer. How RoPE turns queries and keys
is measured on a small model with the same config, as `add-rotary` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from qk_sniffer.engines.engine import LayerFacts, Logits, ModelLayout
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import index_ranges

_HF = "use --engine hf"
_DECODER = "decoder"  # use of a layer, among those of encoders
_ROUNDED = ("fp8", "fp4", "int8", "int4")  # in the names of cache types


class VllmLayer(NamedTuple):
    """An attention layer of one rank."""

    layer: int
    name: str
    q_heads: int  # of this rank
    k_heads: int
    width: int
    window: int | None
    scale: float
    softcap: float | None
    sinks: bool
    refused: str | None  # why it cannot be captured


def layer_of(number: int, name: str, layer: Any) -> VllmLayer:
    """What vLLM knows of a layer."""
    refused, impl = _reason(layer), getattr(layer, "impl", None)
    if refused is not None or impl is None:
        refused = refused or f"{type(layer).__name__} has no attention of queries and keys"
        return VllmLayer(number, name, 0, 0, 0, None, 0.0, None, False, refused)
    return VllmLayer(
        layer=number,
        name=name,
        q_heads=int(layer.num_heads),
        k_heads=int(layer.num_kv_heads),
        width=int(layer.head_size),
        window=layer.sliding_window and int(layer.sliding_window),
        scale=float(impl.scale),
        softcap=float(getattr(impl, "logits_soft_cap", None) or 0) or None,
        sinks=getattr(impl, "sinks", None) is not None,
        refused=None,
    )


def _reason(layer: Any) -> str | None:
    """Why the queries and keys of a layer cannot be captured; None if they can."""
    kinds = [base.__name__ for base in type(layer).__mro__]
    if any("MLA" in kind for kind in kinds):
        return "its keys are compressed (MLA), and it has no keys per head"
    use = getattr(layer, "attn_type", _DECODER)
    if getattr(use, "value", use) != _DECODER:
        return f"it is not attention of a decoder ({getattr(use, 'value', use)})"
    cache = str(getattr(layer, "kv_cache_dtype", ""))
    if any(name in cache for name in _ROUNDED):
        return f"its cache is in {cache}, so it attends to rounded keys"
    if getattr(layer, "query_quant", None) is not None:
        return "its queries are rounded to fp8"
    if getattr(layer, "kv_sharing_target_layer_name", None) is not None:
        return f"it uses the keys of {layer.kv_sharing_target_layer_name}"
    if "ChunkedLocalAttention" in kinds:
        return "its window is a chunk, which was not tried with vLLM"
    if getattr(getattr(layer, "impl", None), "alibi_slopes", None) is not None:
        return "it adds a bias (ALiBi) to its logits"
    return None


def layout_in_vllm(
    model: str, shape: ModelLayout, small: ModelLayout, layers: Sequence[VllmLayer], ranks: int
) -> ModelLayout:
    """The layout, with what vLLM computes in each layer.

    `shape` has the heads of the model, and `small` the rotary records of a small one.
    """
    found: dict[int, VllmLayer] = {}
    for one in layers:
        if one.layer in found:
            raise ConfigError(
                f"model.name: {model}: vLLM has two attention layers with number {one.layer} "
                f"({found[one.layer].name}, {one.name}); {_HF}"
            )
        found[one.layer] = one
    measured = {facts.layer: facts for facts in small.layers}
    merged = tuple(
        _merged(model, facts, measured.get(facts.layer), found.get(facts.layer), ranks)
        for facts in shape.layers
    )
    return ModelLayout(shape.num_layers, merged, shape.compressed_layers)


def require_whole_key_heads(model: str, layout: ModelLayout, ranks: int) -> None:
    """Refuse ranks that would share a key head."""
    for facts in layout.layers:
        if facts.k_heads % ranks:
            raise ConfigError(
                f"vllm.tensor_parallel: {ranks} GPUs cannot divide the {facts.k_heads} key heads "
                f"of {model}, layer {facts.layer}; give a divisor of {facts.k_heads}, or use "
                "--engine hf with --model.device_map auto"
            )


def window_notes(small: ModelLayout, layout: ModelLayout) -> list[str]:
    """Layers whose window is another one in vLLM than in transformers."""
    other = {facts.layer: facts.window for facts in small.layers}
    found: dict[tuple[int | None, int | None], list[int]] = {}
    for facts in layout.layers:
        if facts.window != other[facts.layer]:
            found.setdefault((facts.window, other[facts.layer]), []).append(facts.layer)
    return [
        f"layers {index_ranges(layers)}: the window is {_tokens(there)} in vLLM and "
        f"{_tokens(here)} in transformers; the dump records that of vLLM"
        for (there, here), layers in found.items()
    ]


def _tokens(window: int | None) -> str:
    return "all earlier tokens" if window is None else f"{window:,} tokens"


def _merged(
    model: str, shape: LayerFacts, small: LayerFacts | None, layer: VllmLayer | None, ranks: int
) -> LayerFacts:
    where = f"model.name: {model}: layer {shape.layer}"
    if layer is None or small is None:
        raise ConfigError(f"{where}: vLLM has no attention layer with this number; {_HF}")
    if layer.refused is not None:
        raise ConfigError(f"{where} cannot be captured with vLLM: {layer.refused}; {_HF}")
    if small.chunked or small.selective or (small.logits is not None and small.logits.biased):
        raise ConfigError(
            f"{where} cannot be captured with vLLM: which keys its queries see, or a bias of its "
            f"logits, is not known there; {_HF}"
        )
    expected = {
        "query heads": (layer.q_heads * ranks, shape.q_heads),
        "key heads": (layer.k_heads * ranks, shape.k_heads),
        "width of heads": (layer.width, shape.width),
        "learned sinks": (layer.sinks, small.logits is not None and small.logits.sinks),
    }
    for name, (there, here) in expected.items():
        if there != here:
            raise ConfigError(
                f"{where}: {name}: {there} in vLLM, and {here} in transformers; {_HF}"
            )
    logits = Logits(softcap=layer.softcap, sinks=layer.sinks)
    return replace(
        small,
        type="full_attention" if layer.window is None else "sliding_attention",
        window=layer.window,
        q_heads=shape.q_heads,
        k_heads=shape.k_heads,
        scale=layer.scale,
        softcap=layer.softcap,
        logits=logits,
    )
