"""Find the decoder layer of every attention call.

The attention module is not enough: several layers may share one, and `layer_idx` may be missing or
repeated. So the runs of the decoder's layers are recorded during the forward.
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
    """One run of a decoder layer, which is an element of one of the decoder's module lists."""

    layers: int  # number of the module list
    index: int  # index in that list


@dataclass(frozen=True)
class CallSite:
    """Where an attention call was made: the module, and the layer run."""

    module: nn.Module
    number: int  # of the call among the module's calls of one forward
    run: int | None  # index in `LayerRecorder.runs`; None outside all lists


class LayerRecorder:
    """Records the decoder layers that run, in order, while it is open."""

    def __init__(self, decoder: nn.Module) -> None:
        self.runs: list[LayerRun] = []
        self._lists = list(outermost_lists(decoder))
        self._running: list[int] = []
        self._stack = ExitStack()

    @property
    def current(self) -> int | None:
        """The index in `runs` of the layer that is running now."""
        return self._running[-1] if self._running else None

    def __enter__(self) -> Self:
        known: set[nn.Module] = set()
        for number, layers in enumerate(self._lists):
            for index, layer in enumerate(layers):
                if layer not in known:  # a list may hold one layer several times
                    known.add(layer)
                    self._record(layer, LayerRun(number, index))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _record(self, layer: nn.Module, run: LayerRun) -> None:
        def begin(*_: object) -> None:
            self._running.append(len(self.runs))
            self.runs.append(run)

        def end(*_: object) -> None:
            self._running.pop()

        self._stack.callback(layer.register_forward_pre_hook(begin).remove)
        self._stack.callback(layer.register_forward_hook(end, always_call=True).remove)


def outermost_lists(module: nn.Module) -> Iterator[nn.ModuleList | nn.Sequential]:
    """The module lists that are not inside an element of another list."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential) and len(child):
            if isinstance(child[0], nn.ModuleList | nn.ModuleDict):
                yield from outermost_lists(child)
            else:
                yield child
        else:
            yield from outermost_lists(child)


def number_layers(
    name: str, runs: Sequence[LayerRun], calls: Sequence[CallSite]
) -> tuple[list[int], int]:
    """The layer of every call, and the number of layers; `name` is the model's name for messages.

    The number of a layer is its index in the decoder's list. If layers run several times, every run
    counts as a layer, numbered in running order. If one decoder layer has several attention
    modules, their `layer_idx` is used.
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
    unnumbered = _first_unnumbered(calls, Counter(placed), layer_of_run)
    raise ConfigError(
        f"{name}: the attention module {type(unnumbered.module).__name__} has no layer number: it "
        "is called outside the decoder's list of layers, or one layer has several attention "
        "modules with the same layer_idx. The model cannot be captured. Choose another model."
    )


def _first_unnumbered(
    calls: Sequence[CallSite], uses: Counter[int], layer_of_run: dict[int, int]
) -> CallSite:
    return next(call for call in calls if call.run is None or uses[layer_of_run[call.run]] > 1)
