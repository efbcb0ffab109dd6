"""Modules of a model that compute rotary angles, and their tables of frequencies.

The rope types `longrope` and `dynamic` choose their frequencies by the largest position of a batch.
`dynamic` also uses the largest position of earlier batches. The vectors of a text must not depend
on other texts, so the initial tables are kept and can be restored.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

_FAR, _FARTHER = 2**29, 2**30  # tokens; more than every context
_KINDS = (bool, int, float, str, Tensor, type(None))  # of plain attributes


@dataclass(frozen=True, eq=False)
class RotaryModule:
    """A module with tables and without weights: its initial state, and its calls of a forward."""

    module: nn.Module
    buffers: Mapping[str, Tensor | None]
    values: Mapping[str, Any]  # plain attributes
    calls: list[tuple[tuple[Any, ...], Mapping[str, Any]]] = field(default_factory=list)

    @classmethod
    def of(cls, module: nn.Module) -> RotaryModule:
        """The state of the module now."""
        return cls(module, _cloned(module._buffers), _plain_values(module))

    def restore(self, module: nn.Module | None = None) -> None:
        """Restore the initial state, in the module itself or in a copy."""
        module = self.module if module is None else module
        module._buffers.update(_cloned(self.buffers))
        for name in _plain_values(module).keys() - self.values.keys():
            delattr(module, name)
        vars(module).update(self.values)

    def after(self, *lengths: int) -> dict[str, Any]:
        """Buffers and plain attributes after texts of these numbers of tokens.

        Raises a `RuntimeError` or similar if the module cannot run such a text.
        """
        trial = copy.deepcopy(self.module)
        self.restore(trial)
        for length in lengths:
            for arguments, options in self.calls:
                given = [_up_to(value, length - 1) for value in arguments]
                named = {name: _up_to(value, length - 1) for name, value in options.items()}
                with torch.inference_mode():
                    type(trial).forward(trial, *given, **named)  # without hooks
        return {**_plain_values(trial), **trial._buffers}

    @cached_property
    def depends_on_length(self) -> bool:
        """Whether long texts have other tables than short ones."""
        try:
            return not self._same_tables(self.after(_FAR), self.buffers)
        except (RuntimeError, IndexError, ValueError):  # a table of fixed size
            return False

    @cached_property
    def depends_on_past(self) -> bool:
        """Whether a text has other tables after a longer text."""
        far = self.after(_FAR) if self.depends_on_length else {}
        return bool(far) and not self._same_tables(self.after(_FARTHER, _FAR), far)

    @property
    def is_unchanged(self) -> bool:
        """Whether the tables are the initial ones."""
        return self._same_tables(self.module._buffers, self.buffers)

    def _same_tables(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        pairs = [(one.get(name), other.get(name)) for name in self.buffers]
        return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


def _cloned(buffers: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if one is None else one.clone() for name, one in buffers.items()}


def _plain_values(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, _KINDS)
    }


def _up_to(value: Any, last: int) -> Any:
    """Positions that end with `last`; other values as they are."""
    if not isinstance(value, Tensor) or value.dtype not in (torch.int64, torch.int32):
        return value
    changed = value.detach().clamp(max=last)
    changed[..., -1] = last
    return changed


@contextmanager
def recorded_modules(decoder: nn.Module) -> Iterator[list[RotaryModule]]:
    """The modules of a decoder that may hold rotary tables; their calls are recorded."""
    found = [RotaryModule.of(module) for module in decoder.modules() if _has_only_tables(module)]
    with ExitStack() as stack:
        for one in found:

            def record(
                _: nn.Module, arguments: tuple[Any, ...], options: Any, calls: Any = one.calls
            ) -> None:
                calls.append((arguments, options))

            hook = one.module.register_forward_pre_hook(record, with_kwargs=True)
            stack.callback(hook.remove)
        yield found


def _has_only_tables(module: nn.Module) -> bool:
    buffers = [buffer for buffer in module._buffers.values() if buffer is not None]
    real = bool(buffers) and not any(buffer.is_meta for buffer in buffers)
    return real and not any(True for _ in module.parameters())


@dataclass(frozen=True)
class RotaryTables:
    """The rotary modules whose angles depend on the length of a text or of earlier texts."""

    modules: tuple[RotaryModule, ...] = ()

    @classmethod
    def of(cls, modules: Sequence[RotaryModule]) -> RotaryTables:
        """Those of the recorded modules."""
        return cls(tuple(module for module in modules if module.depends_on_length))

    def __bool__(self) -> bool:
        return bool(self.modules)

    def reset(self) -> None:
        """Restore the initial tables."""
        for module in self.modules:
            module.restore()

    def are_initial(self) -> bool:
        """Whether no earlier text has changed the tables of the next one."""
        return all(one.is_unchanged for one in self.modules if one.depends_on_past)


@dataclass(frozen=True)
class FrequencyTable:
    """A list of numbers in a rotary module that may be its frequencies."""

    module: RotaryModule
    name: str  # of the buffer or attribute
    sign: int = 1  # -1 for vectors that turn in the other direction

    @cached_property
    def initial(self) -> tuple[float, ...]:
        """The numbers before any text."""
        return self._numbers({**self.module.values, **self.module.buffers})

    def frequencies(self, length: int) -> tuple[float, ...]:
        """The numbers for a text of `length` tokens."""
        return self._numbers(self.module.after(length))

    def _numbers(self, state: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple((self.sign * state[self.name].double()).tolist())

    @cached_property
    def depends_on_length(self) -> bool:
        """Whether long texts have other numbers than short ones."""
        return self.module.depends_on_length and self.frequencies(_FAR) != self.initial

    @property
    def scalings(self) -> list[float]:
        """Numbers of the module that may be the factor on its cos and sin.

        A module with tables for several layer types has one for each, with the same prefix as the
        table. The one that belongs to this table is the first.
        """
        prefix = self.name.removesuffix("inv_freq")
        named = {
            name: float(value)
            for name, value in self.module.values.items()
            if name.endswith("attention_scaling") and isinstance(value, int | float)
        }
        own = [value for name, value in named.items() if name == f"{prefix}attention_scaling"]
        return [*own, 1.0, *named.values()]


def frequency_tables(modules: Sequence[RotaryModule]) -> list[FrequencyTable]:
    """The tables that may hold frequencies, those that depend on the length first.

    Of several equal tables, such as one in every layer, only the first is returned.
    """
    found: dict[tuple[object, ...], FrequencyTable] = {}
    for module in modules:
        for name, value in {**module.values, **module.buffers}.items():
            if _may_be_frequencies(value):
                table = FrequencyTable(module, name)
                found.setdefault((table.initial, table.depends_on_length, table.scalings[0]), table)
    return sorted(found.values(), key=lambda table: not table.depends_on_length)


def _may_be_frequencies(value: object) -> bool:
    if not isinstance(value, Tensor) or value.dim() != 1 or not value.is_floating_point():
        return False
    return not value.is_meta and bool(value.isfinite().all()) and bool(value.any())
