"""Seconds of a forward on this machine, measured with the first layers of the model.

The layers get zeros as weights, so no checkpoint is read. They run over a text of the length of the
capture, or a part of it. The time is scaled by the number of floating-point operations.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from qk_sniffer.config import ModelSettings
from qk_sniffer.engines.engine import LayerFacts
from qk_sniffer.engines.hf.layer_numbers import outermost_lists
from qk_sniffer.engines.hf.layout import decoder_of, run_backbone
from qk_sniffer.engines.hf.loading import (
    built_model,
    load_model_config,
    loading_errors,
    precision_of,
)

_LAYERS = 2
_TIMES = 5  # the first forward also compiles and allocates, and others may share the machine
_TOKENS = {"cpu": 512, "cuda": 4096}  # at most, of a forward on such a device
_OTHER_DEVICES = 512
_OF_VALUES = {"random_weights": False, "random_seed": 0, "device_map": None}
"""Settings on which the time does not depend."""


def weights_of(decoder: Any) -> int:
    """The number of weights, without those of the embedding."""
    embedding = {id(one) for one in decoder.get_input_embeddings().parameters()}
    return sum(one.numel() for one in decoder.parameters() if id(one) not in embedding)


def operations(weights: int, layers: Sequence[LayerFacts], lengths: Sequence[int]) -> float:
    """Floating-point operations of the forwards of texts of these lengths.

    Every weight takes two per token; of a mixture of experts all weights are counted, so it is too
    many. A pair of a query and a key that it sees takes four per dimension: half for the logit,
    half for the weighted sum of values.
    """
    total = 2.0 * weights * sum(lengths)
    for layer in layers:
        for length in lengths:
            seen = min(layer.window or length, length)  # keys of a late query
            total += 4.0 * layer.q_heads * layer.width * (length * seen - seen**2 / 2)
    return total


def speed(settings: ModelSettings, layers: Sequence[LayerFacts], device: str, tokens: int) -> float:
    """Operations per second of a forward of this model over a text of so many tokens."""
    length = max(1, min(tokens, _TOKENS.get(device.partition(":")[0], _OTHER_DEVICES)))
    shape = settings.model_copy(update=_OF_VALUES).model_dump_json()
    weights, seconds = _measured(shape, device, length)
    return operations(weights, layers[:_LAYERS], [length]) / seconds


@lru_cache(maxsize=64)
def _measured(shape: str, device: str, tokens: int) -> tuple[int, float]:
    """The weights of the first layers, and the seconds of a forward over a text."""
    decoder = _first_layers(ModelSettings.model_validate_json(shape), device)
    text = torch.zeros(1, tokens, dtype=torch.int64)  # (1, n)
    seconds = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        run_backbone(decoder, text)
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return weights_of(decoder), min(seconds)


def _first_layers(settings: ModelSettings, device: str) -> nn.Module:
    """The decoder with its first layers alone, on a device."""
    with loading_errors("model.name", settings.name):
        config = load_model_config(settings)
        with torch.device("meta"):
            model = built_model(settings, config, precision_of(settings, config))
    decoder = decoder_of(model.eval())
    for layers in outermost_lists(decoder):
        del layers[_LAYERS:]
    decoder.to_empty(device=device)
    for tensor in (*decoder.parameters(), *decoder.buffers()):
        tensor.data.zero_()
    return decoder
