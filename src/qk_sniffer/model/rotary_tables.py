"""Find and reset rotary tables that depend on other texts.

The rope types `longrope` and `dynamic` compute their angles from the largest position of a batch.
`dynamic` also uses the largest position of earlier batches. The vectors of a text must not depend
on other texts.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

_FAR, _FARTHER = 2**29, 2**30  # positions beyond every context


@dataclass(frozen=True)
class RotaryTables:
    """Rotary modules whose angles depend on the largest position, with their initial state."""

    states: tuple[_ModuleState, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.states)

    def reset(self) -> None:
        """Restore the initial tables."""
        for state in self.states:
            state.restore()

    def are_initial(self) -> bool:
        """Whether no earlier text has changed the tables."""
        return all(state.is_unchanged() for state in self.states if state.depends_on_past)


@dataclass(frozen=True)
class _ModuleState:
    """The buffers and plain attributes of a module."""

    module: nn.Module
    buffers: dict[str, Tensor | None] = field(repr=False)
    values: dict[str, Any] = field(repr=False)
    depends_on_past: bool = False

    @classmethod
    def of(cls, module: nn.Module) -> _ModuleState:
        buffers = {
            name: None if buffer is None else buffer.clone()
            for name, buffer in module._buffers.items()
        }
        return cls(module, buffers, _plain_values(module))

    def restore(self) -> None:
        for name, buffer in self.buffers.items():
            self.module._buffers[name] = None if buffer is None else buffer.clone()
        for name in _plain_values(self.module).keys() - self.values.keys():
            delattr(self.module, name)
        vars(self.module).update(self.values)

    def is_unchanged(self) -> bool:
        now = self.module._buffers
        return all(_same(now.get(name), buffer) for name, buffer in self.buffers.items())


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _plain_values(module: nn.Module) -> dict[str, Any]:
    kinds = (bool, int, float, str, Tensor)
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and (value is None or isinstance(value, kinds))
    }


class RotaryRecorder:
    """Records the arguments of the rotary modules of a decoder."""

    def __init__(self, decoder: nn.Module) -> None:
        self._states = [_ModuleState.of(module) for module in _candidates(decoder)]
        self._calls: dict[nn.Module, list[tuple[tuple[Any, ...], Mapping[str, Any]]]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record one forward."""

        def record(module: nn.Module, arguments: tuple[Any, ...], options: Any) -> None:
            self._calls.setdefault(module, []).append((arguments, options))

        with ExitStack() as stack:
            for state in self._states:
                hook = state.module.register_forward_pre_hook(record, with_kwargs=True)
                stack.callback(hook.remove)
            yield

    def tables(self) -> RotaryTables:
        """The modules whose angles for a token change with the position of another token."""
        found = []
        for state in self._states:
            calls = self._calls.get(state.module, ())
            dependences = [_dependence(state, *call) for call in calls]  # one call per layer type
            if any(on_batch or on_past for on_batch, on_past in dependences):
                on_past = any(on_past for _, on_past in dependences)
                found.append(replace(state, depends_on_past=on_past))
        return RotaryTables(tuple(found))


def _candidates(decoder: nn.Module) -> Iterable[nn.Module]:
    for module in decoder.modules():
        has_buffers = any(buffer is not None for buffer in module._buffers.values())
        if has_buffers and not any(True for _ in module.parameters()):
            yield module


def _dependence(
    state: _ModuleState, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[bool, bool]:
    """Whether a token's angles depend on other positions of its batch, and on earlier batches.

    A copy of the module is called with the recorded positions and with a very large last position.
    Both calls are repeated after a call with an even larger last position.
    """
    positions = [value for value in (*arguments, *options.values()) if _is_positions(value)]
    if not positions or positions[0].is_meta:
        return False, False
    length = positions[0].shape[-1]
    trial = copy.deepcopy(state.module)
    _ModuleState(trial, state.buffers, state.values).restore()
    trial = trial.cpu()

    def angles(last: int | None) -> list[Tensor]:
        changed = [_with_last(value, last) for value in arguments]
        named = {name: _with_last(value, last) for name, value in options.items()}
        with torch.inference_mode():
            result = type(trial).forward(trial, *changed, **named)  # without hooks
        return [_without_last(tensor, length) for tensor in _tensors(result)]

    try:
        plain, far, _, later, again = map(angles, (None, _FAR, _FARTHER, _FAR, None))
    except (RuntimeError, IndexError, ValueError):  # a table of fixed size has no such position
        return False, False
    return _differ(plain, far), _differ(far, later) or _differ(plain, again)


def _differ(some: list[Tensor], others: list[Tensor]) -> bool:
    return any(not torch.equal(one, other) for one, other in zip(some, others, strict=True))


def _is_positions(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32)


def _with_last(value: Any, last: int | None) -> Any:
    if not isinstance(value, Tensor):
        return value
    changed = value.detach().cpu()
    if _is_positions(value) and last is not None:
        changed = changed.clone()
        changed[..., -1] = last
    return changed


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    parts = result.values() if isinstance(result, Mapping) else result
    return [tensor for part in parts for tensor in _tensors(part)]


def _without_last(tensor: Tensor, length: int) -> Tensor:
    axes = [axis for axis, size in enumerate(tensor.shape[:-1]) if size == length]
    return tensor.narrow(axes[-1], 0, length - 1) if axes else tensor
