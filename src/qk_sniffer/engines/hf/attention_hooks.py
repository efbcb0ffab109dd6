"""Hooks that run at every attention call and every rotary call of a transformers model.

A model requests its attention function from `AttentionInterface.get_interface` at every call. While
a hook is active, this method returns a wrapper. The wrapper calls the hooks with the queries and
keys, then calls the original function. Config, masks and weights stay unchanged, so outputs are
bit-identical. Rotary functions are wrapped in the same way, in the module that calls them.

When the last hook is removed, the original functions are restored.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from qk_toolkit.errors import ConfigError

_ROTARY_NAME = re.compile(r"_?apply_\w*(rotary|rope)")


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of an attention call, before it runs."""

    module: nn.Module
    query: Tensor  # (b, heads, s, d)
    key: Tensor  # (b, key heads, s, d)
    value: Tensor  # (b, key heads, s, d of values)
    others: tuple[Any, ...]
    options: Mapping[str, Any]
    function: Callable[..., Any]

    @property
    def is_self_attention(self) -> bool:
        """Whether there is one key per query. A cache and cross-attention have other numbers."""
        if not self.query.dim() == self.key.dim() == 4:
            return False
        return self.query.shape[2] == self.key.shape[2]

    def visible_keys(self) -> Tensor:
        """(heads, s, s): True where the mask lets a query (row) see a key (column).

        Queries and keys are set to zero, so that the weights depend on the mask alone.
        """
        query, key = torch.zeros_like(self.query), torch.zeros_like(self.key)
        return torch.nan_to_num(replace(self, query=query, key=key).weights()) > 0

    def weights(self) -> Tensor:
        """(heads, s, s): the attention weights of the first text.

        The values are one-hot rows, so that the output holds the weights of as many keys as a value
        has dimensions. The function is called once for each such group of keys.
        """
        length, width = self.key.shape[2], self.value.shape[3]
        parts = []
        for start in range(0, length, width):
            keys = torch.arange(start, min(start + width, length), device=self.key.device)
            value = torch.zeros_like(self.value)
            value[:, :, keys, keys - start] = 1
            result = self.function(
                self.module, self.query, self.key, value, *self.others, **self.options
            )
            output = result[0] if isinstance(result, tuple) else result  # (b, s, heads, width)
            parts.append(output[0, :, :, : len(keys)])
        return torch.cat(parts, dim=2).transpose(0, 1)


AttentionHook = Callable[[AttentionCall], None]
RotaryHook = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], None]
"""Called with the input tensors of a rotary function and with its results."""


@contextmanager
def attention_hook(hook: AttentionHook) -> Iterator[None]:
    """Call `hook` before every attention call of any model, until the block ends."""
    if not hasattr(AttentionInterface, "get_interface"):
        raise ConfigError(
            "this version of transformers has no AttentionInterface.get_interface; "
            "install transformers 5.1 or newer"
        )
    with _wrapped(AttentionInterface, "get_interface", _hooked_interface, hook):
        yield


@contextmanager
def rotary_hook(modules: Iterable[nn.Module], hook: RotaryHook) -> Iterator[None]:
    """Call `hook` after every rotary function that the code of the modules calls.

    If a rotary function calls another one, only the outer call counts.
    """
    with ExitStack() as stack:
        for file, name in _rotary_functions(modules):
            stack.enter_context(_wrapped(file, name, _hooked_rotary, hook))
        yield


def _hooked_interface(
    original: Callable[..., Any], hooks: list[AttentionHook]
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
            for hook in tuple(hooks):
                hook(call)
            return function(module, query, key, value, *others, **options)

        return attention

    return get_interface


def _hooked_rotary(original: Callable[..., Any], hooks: list[RotaryHook]) -> Callable[..., Any]:
    def rotary(*arguments: Any, **options: Any) -> Any:
        if _rotary_call.running:
            return original(*arguments, **options)
        _rotary_call.running = True
        try:
            result = original(*arguments, **options)
        finally:
            _rotary_call.running = False
        after = result if isinstance(result, tuple) else (result,)
        before = [value for value in (*arguments, *options.values()) if torch.is_tensor(value)]
        for hook in tuple(hooks):
            hook(tuple(before[: len(after)]), after)
        return result

    return rotary


class _RotaryCall(threading.local):
    running = False


_rotary_call = _RotaryCall()


def _rotary_functions(modules: Iterable[nn.Module]) -> list[tuple[ModuleType, str]]:
    """(file, name) of the rotary functions in the files that define the modules' forwards."""
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


Hook = TypeVar("Hook")


class _Wrapper(Generic[Hook]):
    def __init__(self, original: Any) -> None:
        self.original = original
        self.hooks: list[Hook] = []


_wrappers: dict[tuple[int, str], _Wrapper[Any]] = {}


@contextmanager
def _wrapped(
    owner: type | ModuleType,
    name: str,
    wrap: Callable[[Callable[..., Any], list[Hook]], Callable[..., Any]],
    hook: Hook,
) -> Iterator[None]:
    """Add a hook to a function. The first hook wraps the function, the last one restores it.

    Blocks may end in any order: a notebook may have two taps open.
    """
    key = (id(owner), name)
    if key not in _wrappers:
        wrapper: _Wrapper[Hook] = _Wrapper(getattr(owner, name))
        setattr(owner, name, wrap(wrapper.original, wrapper.hooks))
        _wrappers[key] = wrapper
    wrapper = _wrappers[key]
    wrapper.hooks.append(hook)
    try:
        yield
    finally:
        wrapper.hooks.remove(hook)
        if not wrapper.hooks:
            setattr(owner, name, wrapper.original)
            del _wrappers[key]
