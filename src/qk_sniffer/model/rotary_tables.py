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
from functools import cached_property
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


_ModuleCall = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class FrequencyTable:
    """A list of numbers in a rotary module that may be its frequencies."""

    state: _ModuleState
    name: str  # of the buffer or attribute
    calls: tuple[_ModuleCall, ...] = field(repr=False)  # of the module in a forward
    sign: int = 1  # -1 for vectors that turn in the other direction

    def frequencies(self, length: int) -> tuple[float, ...]:
        """The numbers that the module uses for a text of `length` tokens, with its initial state.

        Raises a `RuntimeError` or similar if the module cannot run such a text.
        """
        trial = copy.deepcopy(self.state.module)
        _ModuleState(trial, self.state.buffers, self.state.values).restore()
        for arguments, options in self.calls:
            changed = [_up_to(value, length - 1) for value in arguments]
            named = {name: _up_to(value, length - 1) for name, value in options.items()}
            with torch.inference_mode():
                type(trial).forward(trial, *changed, **named)  # without hooks
        found = trial._buffers.get(self.name, vars(trial).get(self.name))
        return self._signed(found)

    @cached_property
    def initial(self) -> tuple[float, ...]:
        """The numbers before any text."""
        return self._signed(self.state.buffers.get(self.name, self.state.values.get(self.name)))

    def _signed(self, numbers: Tensor | None) -> tuple[float, ...]:
        return () if numbers is None else tuple((self.sign * numbers.double()).tolist())

    @cached_property
    def depends_on_length(self) -> bool:
        """Whether long texts have other frequencies than short ones."""
        try:
            return self.initial != self.frequencies(_FAR)
        except (RuntimeError, IndexError, ValueError):  # a table of fixed size
            return False

    @property
    def scalings(self) -> list[float]:
        """Numbers of the module that may be the factor on its cos and sin.

        A module with tables for several layer types has one for each, with the same prefix as the
        table. The one that belongs to this table is the first.
        """
        prefix = self.name.removesuffix("inv_freq")
        named = {
            name: float(value)
            for name, value in self.state.values.items()
            if name.endswith("attention_scaling") and isinstance(value, int | float)
        }
        own = [value for name, value in named.items() if name == f"{prefix}attention_scaling"]
        return [*own, 1.0, *named.values()]


class RotaryRecorder:
    """Records the arguments of the rotary modules of a decoder."""

    def __init__(self, decoder: nn.Module) -> None:
        self._states = [_ModuleState.of(module) for module in _candidates(decoder)]
        self._calls: dict[nn.Module, list[_ModuleCall]] = {}

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

    def reset(self) -> None:
        """Restore the initial state of all rotary modules."""
        for state in self._states:
            state.restore()

    def frequency_tables(self) -> list[FrequencyTable]:
        """The tables that may hold frequencies, those that depend on the length first.

        Of several equal tables, such as one in every layer, only the first is returned.
        """
        found: dict[tuple[object, ...], FrequencyTable] = {}
        for state in self._states:
            calls = tuple(self._calls.get(state.module, ()))
            for name, tensor in {**state.values, **state.buffers}.items():
                if not _may_be_frequencies(tensor):
                    continue
                table = FrequencyTable(state, name, calls)
                found.setdefault((table.initial, table.depends_on_length, table.scalings[0]), table)
        return sorted(found.values(), key=lambda table: not table.depends_on_length)


def _may_be_frequencies(tensor: object) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.dim() == 1
        and tensor.is_floating_point()
        and not tensor.is_meta
        and tensor.numel() > 0
        and bool(tensor.isfinite().all())
        and bool((tensor != 0).any())
    )


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


def _up_to(value: Any, last: int) -> Any:
    """Positions that end with `last`; other values as they are."""
    if not _is_positions(value):
        return value
    changed = value.detach().clamp(max=last)
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
