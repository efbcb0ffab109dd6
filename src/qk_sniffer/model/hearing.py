"""Hearing every attention call of a transformers model without touching the model.

Models ask `AttentionInterface.get_interface` for their attention function at every call. While
somebody listens, that method hands out the same function behind one that first shows queries and
keys to the listeners. Config, masks and weights stay as they are, so outputs are bit-identical.
Rotary functions are heard in the same way, where the model's own file looks them up.

When the last listener leaves, the original functions are back in place.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from qk_toolkit.errors import ConfigError

_ROTARY_NAME = re.compile(r"_?apply_\w*(rotary|rope)")


@dataclass(frozen=True)
class AttentionCall:
    """An attention call that is about to be made."""

    module: nn.Module
    query: Tensor  # (b, heads, s, d)
    key: Tensor  # (b, key heads, s, d)
    value: Tensor  # (b, key heads, s, d of values)
    others: tuple[Any, ...]
    options: Mapping[str, Any]
    function: Callable[..., Any]

    @property
    def is_self_attention(self) -> bool:
        """Whether there is one key per query, which a cache or a second text would change."""
        if not self.query.dim() == self.key.dim() == 4:
            return False
        return self.query.shape[2] == self.key.shape[2]

    def visible_keys(self) -> Tensor:
        """(heads, s, s): True where the mask lets a query (row) see a key (column).

        With zero queries and keys the mask alone decides the weights. Values that are one-hot
        rows carry the weights to the output, for as many keys at a time as a value has dimensions.
        """
        length, width = self.key.shape[2], self.value.shape[3]
        query, key = torch.zeros_like(self.query), torch.zeros_like(self.key)
        parts = []
        for start in range(0, length, width):
            here = torch.arange(start, min(start + width, length), device=key.device)
            value = torch.zeros_like(self.value)
            value[:, :, here, here - start] = 1
            result = self.function(self.module, query, key, value, *self.others, **self.options)
            output = result[0] if isinstance(result, tuple) else result  # (b, s, heads, width)
            parts.append(output[0, :, :, : len(here)])
        weights = torch.cat(parts, dim=2)  # (s, heads, s)
        return torch.nan_to_num(weights).transpose(0, 1) > 0


CallListener = Callable[[AttentionCall], None]


class AttentionListener(Protocol):
    """Called with the attention module, its query and key and the other keywords of the call."""

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, options: Mapping[str, Any]
    ) -> None:
        """Look, and leave everything as it is."""


class RotaryListener(Protocol):
    """Called with the tensors a rotary function turned, before and after."""

    def __call__(self, before: tuple[Tensor, ...], after: tuple[Tensor, ...]) -> None:
        """Look, and leave everything as it is."""


@contextmanager
def hearing_attention(listener: AttentionListener) -> Iterator[None]:
    """Call `listener` before every attention call of any model, until the block ends."""
    with hearing_calls(lambda call: listener(call.module, call.query, call.key, call.options)):
        yield


@contextmanager
def hearing_calls(listener: CallListener) -> Iterator[None]:
    """The same for a listener that wants all of a call."""
    if not hasattr(AttentionInterface, "get_interface"):
        raise ConfigError(
            "this version of transformers has no AttentionInterface.get_interface; "
            "install transformers 5.1 or newer"
        )
    with _replaced(AttentionInterface, "get_interface", _listening_interface, listener):
        yield


@contextmanager
def hearing_rotary(modules: Iterable[nn.Module], listener: RotaryListener) -> Iterator[None]:
    """Call `listener` after every rotary function that the modules' own code calls.

    A function that calls another one counts once, from outside.
    """
    with ExitStack() as stack:
        for file, name in _rotary_functions(modules):
            stack.enter_context(_replaced(file, name, _listening_rotary, listener))
        yield


def _listening_interface(
    original: Callable[..., Any], listeners: list[CallListener]
) -> Callable[..., Any]:
    def get_interface(*arguments: Any, **options: Any) -> Callable[..., Any]:
        function = original(*arguments, **options)

        def attention(
            module: nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            *others: Any,
            **options: Any,
        ) -> Any:
            call = AttentionCall(module, query, key, value, others, options, function)
            for listener in tuple(listeners):
                listener(call)
            return function(module, query, key, value, *others, **options)

        return attention

    return get_interface


def _listening_rotary(
    original: Callable[..., Any], listeners: list[RotaryListener]
) -> Callable[..., Any]:
    def rotary(*arguments: Any, **options: Any) -> Any:
        if _depth.inside:
            return original(*arguments, **options)
        _depth.inside = True
        try:
            result = original(*arguments, **options)
        finally:
            _depth.inside = False
        after = result if isinstance(result, tuple) else (result,)
        given = [value for value in (*arguments, *options.values()) if torch.is_tensor(value)]
        for listener in tuple(listeners):
            listener(tuple(given[: len(after)]), after)
        return result

    return rotary


class _Depth(threading.local):
    inside = False


_depth = _Depth()


def _rotary_functions(modules: Iterable[nn.Module]) -> list[tuple[ModuleType, str]]:
    """Rotary functions in the files whose code the modules' forward methods run."""
    files = {}
    for kind in {type(module) for module in modules}:
        scope = getattr(inspect.unwrap(kind.forward), "__globals__", {})
        file = sys.modules.get(scope.get("__name__", ""))
        if file is not None and vars(file) is scope:
            files[file.__name__] = file
    return [
        (file, name)
        for file in files.values()
        for name, value in vars(file).items()
        if _ROTARY_NAME.match(name) and callable(value)
    ]


Listener = TypeVar("Listener")


class _Replacement(Generic[Listener]):
    def __init__(self, original: Any) -> None:
        self.original = original
        self.listeners: list[Listener] = []


_replacements: dict[tuple[int, str], _Replacement[Any]] = {}


@contextmanager
def _replaced(
    place: type | ModuleType,
    name: str,
    listening: Callable[[Callable[..., Any], list[Listener]], Callable[..., Any]],
    listener: Listener,
) -> Iterator[None]:
    """Add a listener to the function, replacing it for the first and restoring it after the last.

    Blocks may end in any order, as they do when a notebook holds two taps.
    """
    key = (id(place), name)
    if key not in _replacements:
        replacement: _Replacement[Listener] = _Replacement(getattr(place, name))
        setattr(place, name, listening(replacement.original, replacement.listeners))
        _replacements[key] = replacement
    replacement = _replacements[key]
    replacement.listeners.append(listener)
    try:
        yield
    finally:
        replacement.listeners.remove(listener)
        if not replacement.listeners:
            setattr(place, name, replacement.original)
            del _replacements[key]
