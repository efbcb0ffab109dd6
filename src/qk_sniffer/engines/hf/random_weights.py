"""Models with random weights, as a baseline: the same weights for one seed on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_STD = 0.02  # of weights that the code of a model does not initialise


def random_model(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The model that `build` makes on the CPU, with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]), _uninitialised_is_nan():
        torch.manual_seed(seed)
        model = build()
        for weight in model.parameters():
            if not torch.isfinite(weight).all():
                nn.init.normal_(weight, std=_STD)
    return model


def spread_over(model: nn.Module, device_map: str) -> nn.Module:
    """The model on several devices."""
    kind: Any = type(model)
    config: Any = model.config
    weights = {"config": config, "state_dict": model.state_dict(), "dtype": model.dtype}
    attention = config._attn_implementation
    spread: nn.Module = kind.from_pretrained(
        None, attn_implementation=attention, device_map=device_map, **weights
    )
    return spread


@contextmanager
def _uninitialised_is_nan() -> Iterator[None]:
    """Fill uninitialised memory with NaN, so that it can be found."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
