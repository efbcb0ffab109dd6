"""What a model's attention looks like, learnt from a forward of a few tokens.

Configs mislead (a head_dim that is the rotary part, a window on layers that have none), so heads,
widths, windows and rotary embeddings are taken from the calls themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from qk_dump.errors import ConfigError
from qk_dump.layout import Kind
from qk_sniffer.attention import AttentionCall, hearing_calls, hearing_rotary

LayerType = Literal["full_attention", "sliding_attention", "chunked_attention"]

_PROBE_LENGTHS = (5, 7, 11, 13)  # a length that is no number of heads tells the axes apart


@dataclass(frozen=True)
class RotaryPart:
    """Where the rotary function sees a query or key, and which dimensions of it."""

    call: int  # of the layer's rotary calls
    tensor: int  # of that call's tensors
    heads_last: bool  # (b, s, heads, d) instead of (b, heads, s, d)
    start: int
    width: int


@dataclass(frozen=True)
class LayerFacts:
    """One layer's attention."""

    layer: int
    module: nn.Module = field(repr=False, compare=False)
    q_heads: int
    k_heads: int
    width: int
    type: LayerType
    window: int | None  # tokens a query can reach back; None for all
    scale: float | None
    softcap: float | None
    calls: int
    rope: bool  # False on NoPE layers and in models without rotary embedding
    q_rotary: RotaryPart | None  # None also where the rotary input cannot be matched
    k_rotary: RotaryPart | None

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.q_heads // self.k_heads

    def rotary(self, kind: Kind) -> RotaryPart | None:
        """Where the rotary function sees queries or keys."""
        return self.q_rotary if kind == "q" else self.k_rotary

    @property
    def pre_rope_known(self) -> bool:
        """Whether vectors before the rotary embedding can be taken."""
        return not self.rope or (self.q_rotary is not None and self.k_rotary is not None)


@dataclass(frozen=True)
class ModelLayout:
    """All layers that make attention calls, by layer."""

    num_layers: int
    layers: tuple[LayerFacts, ...]

    def __getitem__(self, layer: int) -> LayerFacts:
        return next(facts for facts in self.layers if facts.layer == layer)

    @property
    def silent_layers(self) -> list[int]:
        """Layers without a self-attention call: linear attention, cross-attention."""
        heard = {facts.layer for facts in self.layers}
        return [layer for layer in range(self.num_layers) if layer not in heard]


def decoder_of(model: nn.Module) -> nn.Module:
    """The part of a model that reads text."""
    found = getattr(model, "get_decoder", lambda: model)()
    return model if found is None else cast(nn.Module, found)


def run_backbone(decoder: nn.Module, tokens: Tensor) -> None:
    """One forward without cache and without the logits; tokens (b, s) lie on any device."""
    options: dict[str, Any] = {"use_cache": False}
    if getattr(decoder, "lm_head", None) is not None:  # a decoder that keeps its head
        options["logits_to_keep"] = 1
    device = input_device(decoder)
    empty = device.type == "meta"
    if empty:  # a ready mask, so that nobody asks for values
        length = tokens.shape[1]
        options["attention_mask"] = torch.zeros(1, 1, length, length, device=device)
    with torch.inference_mode(), _no_autocast_on_meta() if empty else nullcontext():
        decoder(input_ids=tokens.to(device, non_blocking=True), **options)


@contextmanager
def _no_autocast_on_meta() -> Iterator[None]:
    """Answer models that ask whether autocast is on for the meta device.

    Those of transformers before 5.4 do, and torch raises instead of saying no.
    """
    torch_answers = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda *device: device != ("meta",) and torch_answers(*device)
    try:
        yield
    finally:
        torch.is_autocast_enabled = torch_answers


def input_device(decoder: nn.Module) -> torch.device:
    """Where the decoder takes its tokens."""
    embeddings = getattr(decoder, "get_input_embeddings", lambda: None)()
    weights = (embeddings if embeddings is not None else decoder).parameters()
    device = next(weights).device
    hook = getattr(embeddings, "_hf_hook", None)  # a weight that accelerate keeps elsewhere
    execution = getattr(hook, "execution_device", None)
    return torch.device(execution) if execution is not None else device


_probed: set[tuple[nn.Module, int]] = set()  # a decoder, and the thread that probes it


def is_probed(decoder: nn.Module) -> bool:
    """Whether the forward that this thread runs is a probe's, which is nobody's text."""
    return (decoder, threading.get_ident()) in _probed


def probe(model: nn.Module) -> ModelLayout:
    """Run a few tokens and read the layout off the attention calls.

    Models that are not causal decoders are refused: plasticity compares the keys before a query.
    """
    _refuse_encoder_decoder(model)
    decoder = decoder_of(model)
    mine = (decoder, threading.get_ident())
    _probed.add(mine)
    training = {module: module.training for module in decoder.modules()}
    decoder.eval()  # dropout would draw random numbers that the caller's forwards expect to get
    try:
        for length in _PROBE_LENGTHS:
            heard = _listen(decoder, length)
            layout = _layout(model, decoder, heard)
            if not any(length in (facts.q_heads, facts.k_heads) for facts in layout.layers):
                break
    finally:
        _probed.discard(mine)
        for module, flag in training.items():
            module.training = flag
    _check_groups(model, layout)
    return layout


@dataclass
class _Heard:
    """The first attention call of a layer, and the rotary calls before it."""

    module: nn.Module
    query: Tensor
    key: Tensor
    options: Mapping[str, Any]
    rotary: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]
    looks_ahead: bool
    calls: int = 1


def _listen(decoder: nn.Module, length: int) -> dict[int, _Heard]:
    owned = set(decoder.modules())
    heard: dict[int, _Heard] = {}
    pending: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []

    def on_rotary(before: tuple[Tensor, ...], after: tuple[Tensor, ...]) -> None:
        if is_probed(decoder):
            pending.append((before, after))

    def on_attention(call: AttentionCall) -> None:
        if not is_probed(decoder):  # somebody else's forward, in another thread
            return
        module, query, key = call.module, call.query, call.key
        turned = list(pending)
        pending.clear()
        if module not in owned or not query.dim() == key.dim() == 4:
            return
        if not query.shape[2] == key.shape[2] == length:
            return
        layer = getattr(module, "layer_idx", None)
        layer = len(heard) if layer is None else int(layer)
        if layer in heard:
            heard[layer].calls += 1
            return
        kept = {
            name: None if torch.is_tensor(value) else value for name, value in call.options.items()
        }
        heard[layer] = _Heard(module, query, key, kept, turned, _looks_ahead(call))

    vocabulary = decoder.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    tokens = torch.arange(length)[None] % vocabulary  # (1, length)
    with hearing_calls(on_attention), hearing_rotary(owned, on_rotary):
        run_backbone(decoder, tokens)
    return heard


def _looks_ahead(call: AttentionCall) -> bool:
    if call.query.shape[1] % call.key.shape[1]:  # refused later, by these numbers
        return False
    if not call.query.is_meta:
        return call.looks_ahead()
    if getattr(call.module, "is_causal", True):
        return False
    raise NotImplementedError("without values nobody can tell whether attention looks ahead")


def _refuse_encoder_decoder(model: nn.Module) -> None:
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ConfigError(
            f"{type(model).__name__}: is an encoder-decoder: its decoder reads a text together "
            "with what the encoder made of another, and there is only one. Choose a decoder-only "
            "model."
        )


def _layout(model: nn.Module, decoder: nn.Module, heard: dict[int, _Heard]) -> ModelLayout:
    if not heard:
        raise ConfigError(
            f"{type(model).__name__}: its attention does not go through transformers' attention "
            "registry, so queries and keys cannot be seen. Known to be so: bloom, codegen, falcon, "
            "gpt_neo, gptj, mpt, xglm, and models without attention. Choose another model."
        )
    if any(call.looks_ahead for call in heard.values()):
        raise ConfigError(
            f"{type(model).__name__}: its attention looks ahead: what a token gets depends on "
            "later ones, as in encoders. Plasticity compares the keys before a query. Choose a "
            "causal model."
        )
    config = text_config(decoder)
    layers = tuple(_facts(layer, heard[layer], config) for layer in sorted(heard))
    declared = getattr(config, "num_hidden_layers", None) or 0
    return ModelLayout(max(declared, layers[-1].layer + 1), layers)


def text_config(model: nn.Module) -> Any:
    """The part of a model's config that speaks of its decoder."""
    return decoder_config(model.config)


def decoder_config(config: Any) -> Any:
    """The part of a config that speaks of the decoder."""
    try:
        return config.get_text_config(decoder=True)
    except (AttributeError, ValueError):
        return config


def _facts(layer: int, heard: _Heard, config: Any) -> LayerFacts:
    q_heads, k_heads = heard.query.shape[1], heard.key.shape[1]
    width = heard.query.shape[3]
    kind, window = _reach(layer, heard.options, config)
    return LayerFacts(
        layer=layer,
        module=heard.module,
        q_heads=q_heads,
        k_heads=k_heads,
        width=width,
        type=kind,
        window=window,
        scale=_number(heard.options.get("scaling", width**-0.5)),  # attention's own default
        softcap=_number(heard.options.get("softcap")),
        calls=heard.calls,
        rope=bool(heard.rotary),
        q_rotary=_rotary_part(heard, heard.query, 0),
        k_rotary=_rotary_part(heard, heard.key, 1),
    )


def _reach(layer: int, options: Mapping[str, Any], config: Any) -> tuple[LayerType, int | None]:
    """How far back a layer sees: told by the call, else by the config's type of the layer."""
    types = getattr(config, "layer_types", None) or ()
    declared = types[layer] if layer < len(types) else None
    if declared == "chunked_attention" and getattr(config, "attention_chunk_size", None):
        return "chunked_attention", int(config.attention_chunk_size)
    window = options.get("sliding_window")
    if not window and declared == "sliding_attention":
        window = getattr(config, "sliding_window", None)
    return ("sliding_attention", int(window)) if window else ("full_attention", None)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _rotary_part(heard: _Heard, target: Tensor, order: int) -> RotaryPart | None:
    """Find the tensor a rotary function turned that became `target` (1, heads, s, d)."""
    turned = [
        (call, index, after)
        for call, (_, results) in enumerate(heard.rotary)
        for index, after in enumerate(results)
    ]
    if len(turned) != 2:  # one call for queries and keys, or one for each
        return None
    call, index, after = turned[order]
    heads, length, width = target.shape[1:]
    if after.dim() != 4 or after.shape[3] > width:
        return None
    if after.shape[2] == length and after.shape[1] in (heads, 1):
        heads_last = False
    elif after.shape[1] == length and after.shape[2] in (heads, 1):
        heads_last = True
        after = after.transpose(1, 2)
    else:
        return None
    start = _matching_start(after, target)
    return None if start is None else RotaryPart(call, index, heads_last, start, after.shape[3])


def _matching_start(after: Tensor, target: Tensor) -> int | None:
    """First of the target's dimensions that `after` (1, heads or 1, s, r) became."""
    width, part = target.shape[3], after.shape[3]
    if part == width:  # also where the model scales or normalises afterwards
        return 0
    if after.is_meta:  # a shape without values; only the layout is wanted
        return 0
    for start in (0, width - part):
        if torch.equal(after.expand(1, target.shape[1], -1, -1), target[..., start : start + part]):
            return start
    return None


def _check_groups(model: nn.Module, layout: ModelLayout) -> None:
    for facts in layout.layers:
        if facts.q_heads % facts.k_heads:
            raise ConfigError(
                f"{type(model).__name__}: layer {facts.layer} has {facts.q_heads} query and "
                f"{facts.k_heads} key heads, which do not divide"
            )
