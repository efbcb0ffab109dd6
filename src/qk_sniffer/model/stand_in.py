"""A model with the shape of another one and random weights that take hardly any memory.

Every weight matrix has rank one. This is enough to see how queries and keys turn with position: the
rotation of a layer does not depend on its weights. Norms have random weights, because a norm after
RoPE with unequal weights changes more than a factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qk_sniffer.config import ModelSettings
from qk_sniffer.model.loading import unloaded_model

_SEED = 0
_LARGE = 1 << 26  # values of a tensor
_FACTORIES = (torch.empty, torch.ones, torch.rand, torch.randn, torch.zeros)


def stand_in_model(settings: ModelSettings) -> nn.Module:
    """The model that the config describes, in float32, with random weights of rank one."""
    model = unloaded_model(settings, torch.float32, _without_weights())
    generator = torch.Generator().manual_seed(_SEED)
    known: dict[int, nn.Parameter] = {}  # layers may share weights
    for module in model.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None and weight.is_meta:
                values = known.get(id(weight))
                if values is None:
                    values = nn.Parameter(_random(module, weight, generator), requires_grad=False)
                known[id(weight)] = module._parameters[name] = values
        if type(module) is nn.Linear:
            _use_rank_one(module, generator)
        elif "expert" in type(module).__name__.lower():
            _pass_through(module)
    return model


@contextmanager
def _without_weights() -> Iterator[None]:
    """Make parameters on the meta device, and buffers with their values."""
    with init_empty_weights(include_buffers=False), _LargeTensorsOnMeta():
        yield


class _LargeTensorsOnMeta(TorchFunctionMode):
    """Makes large tensors on the meta device at once: those of experts may not fit in memory."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        if func in _FACTORIES:
            size = options.get("size", args)
            numbers = size[0] if size and isinstance(size[0], tuple | list) else size
            if math.prod(number for number in numbers if isinstance(number, int)) > _LARGE:
                options["device"] = "meta"
        return func(*args, **options)


def _random(module: nn.Module, weight: Tensor, generator: torch.Generator) -> Tensor:
    """Random values of one axis, repeated over the others without memory."""
    shape = weight.shape
    if weight.dim() < 2:
        return torch.rand(shape, generator=generator) + 0.5
    if isinstance(module, nn.Linear):
        rows = torch.randn(shape[0], 1, generator=generator)  # (out, 1)
        return rows.expand(shape)
    columns: Tensor = torch.randn(shape[-1], generator=generator) / shape[-2] ** 0.5
    return columns.expand(shape)


def _use_rank_one(module: nn.Linear, generator: torch.Generator) -> None:
    """Compute the product with a weight of rank one from its two factors."""
    rows = module.weight[:, 0].detach()  # (out,)
    columns = torch.randn(module.in_features, generator=generator) / module.in_features**0.5

    def forward(states: Tensor) -> Tensor:
        result: Tensor = (states @ columns.to(states.dtype))[..., None] * rows.to(states.dtype)
        return result if module.bias is None else result + module.bias.to(states.dtype)

    replaced: Any = module
    replaced.forward = forward


def _pass_through(module: nn.Module) -> None:
    """Let the experts of a layer return their input: their weights would be copied in memory."""
    if not any(weight is not None and weight.dim() > 2 for weight in module._parameters.values()):
        return

    def forward(states: Tensor, *_: Any, **__: Any) -> Tensor:
        return states

    replaced: Any = module
    replaced.forward = forward
