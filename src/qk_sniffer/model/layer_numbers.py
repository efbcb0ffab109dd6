"""Which decoder layer makes an attention call.

Attention modules are no sure guide: several layers may share one, its `layer_idx` may be missing or
the same in two of them. So the decoder's own lists of layers are watched while they run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from torch import nn

from qk_toolkit.errors import ConfigError


@dataclass(frozen=True)
class LayerRun:
    """One run of a decoder layer: an element of one of the decoder's lists of modules."""

    layers: int  # which list
    index: int  # in that list


@dataclass(frozen=True)
class PlacedCall:
    """A module's attention call and the layer run in which it was made."""

    module: nn.Module
    number: int  # among the module's calls of one forward
    run: int | None  # in `LayerWatch.runs`; None outside of any list


class LayerWatch:
    """While open, records the decoder layers that run, in order."""

    def __init__(self, decoder: nn.Module) -> None:
        self.runs: list[LayerRun] = []
        self._lists = list(_outermost_lists(decoder))
        self._running: list[int] = []
        self._stack = ExitStack()

    @property
    def current(self) -> int | None:
        """The layer run that is under way, as an index of `runs`."""
        return self._running[-1] if self._running else None

    def __enter__(self) -> Self:
        known: set[nn.Module] = set()
        for number, layers in enumerate(self._lists):
            for index, layer in enumerate(layers):
                if layer not in known:  # one layer may stand in a list several times
                    known.add(layer)
                    self._watch(layer, LayerRun(number, index))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _watch(self, layer: nn.Module, run: LayerRun) -> None:
        def begin(*_: object) -> None:
            self._running.append(len(self.runs))
            self.runs.append(run)

        def end(*_: object) -> None:
            self._running.pop()

        self._stack.callback(layer.register_forward_pre_hook(begin).remove)
        self._stack.callback(layer.register_forward_hook(end, always_call=True).remove)


def _outermost_lists(module: nn.Module) -> Iterator[Sequence[nn.Module]]:
    """Lists of modules that are not part of an element of another list."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential) and len(child):
            if isinstance(child[0], nn.ModuleList | nn.ModuleDict):
                yield from _outermost_lists(child)
            else:
                yield list(child)
        else:
            yield from _outermost_lists(child)


def number_layers(
    name: str, runs: Sequence[LayerRun], calls: Sequence[PlacedCall]
) -> tuple[list[int], int]:
    """The layer of every call, and the number of layers; `name` is the model's, for messages.

    A layer's number is its place in the decoder's list. Where layers run several times, every run
    is a layer of its own, numbered in the order in which they run. Where one decoder layer holds
    several attention modules, their own `layer_idx` tells them apart.
    """
    lists = {runs[call.run].layers for call in calls if call.run is not None}
    counted = [at for at, run in enumerate(runs) if run.layers in lists]
    repeated = len({runs[at] for at in counted}) < len(counted)
    if repeated or len(lists) > 1:
        layer_of_run = {at: number for number, at in enumerate(counted)}
    else:
        layer_of_run = {at: runs[at].index for at in counted}
    placed = [layer_of_run[call.run] for call in calls if call.run is not None]
    if len(set(placed)) == len(calls):
        return placed, max(len(counted), max(placed) + 1)
    own = [getattr(call.module, "layer_idx", None) for call in calls]
    known = [number for number in own if isinstance(number, int) and number >= 0]
    if len(set(known)) == len(calls):
        return known, max(known) + 1
    lost = _lost(calls, Counter(placed), layer_of_run)
    raise ConfigError(
        f"{name}: the attention module {type(lost.module).__name__} has no layer number: it is "
        "called outside of the decoder's list of layers, or one layer has several attention "
        "modules with the same layer_idx. The model cannot be captured."
    )


def _lost(
    calls: Sequence[PlacedCall], uses: Counter[int], layer_of_run: dict[int, int]
) -> PlacedCall:
    return next(call for call in calls if call.run is None or uses[layer_of_run[call.run]] > 1)
