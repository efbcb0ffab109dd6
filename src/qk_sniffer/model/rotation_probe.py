"""Measure how queries and keys of every layer turn with position.

The same tokens are run with shifted `position_ids`. Attention modules get the hidden states of the
first run again, so that only positions differ. Lists of numbers in the model that may be rotary
frequencies are tried, in both pairings, until one predicts the new queries and keys from the old
ones. Names in configs and modules are not used for this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from qk_dump.rotary import Pairing, RotaryError, RotaryRecord, rotate
from qk_sniffer.model.behaviour import ROUNDING, copy_without_hooks
from qk_sniffer.model.layout import RotaryPart, text_config
from qk_sniffer.model.probe_forward import (
    ForwardFailedError,
    ProbedCall,
    probe_forward,
    probe_mode,
)
from qk_sniffer.model.rotary_parts import rotary_part
from qk_sniffer.model.rotary_tables import FrequencyTable, RotaryRecorder
from qk_sniffer.model.rotation_fit import NO_FIT, Misfit, Rotation, Rotations, misfit
from qk_toolkit.arrays import Array

_LENGTH = 13  # tokens
_SHIFT = 3
_LARGEST_SHIFT = 2**15
_USUAL_CONTEXT = 1024
_MOST_HEADS = 8  # that are compared
_PAIRINGS: tuple[Pairing, ...] = get_args(Pairing)


def rotations_of(decoder: nn.Module, attention: Sequence[nn.Module]) -> list[Rotations]:
    """The rotations of every attention call of a forward, in the order of the calls.

    `attention` are the modules that make attention calls.
    """
    try:
        runs, tables = _shifted_runs(decoder, attention)
    except ForwardFailedError as error:
        problem = Rotation(
            problem=f"the model does not run with shifted position_ids ({error.reason})"
        )
        return [Rotations(problem, problem)]
    return [
        _rotations([(run.shift, run.calls[index]) for run in runs], tables)
        for index in range(len(runs[0].calls))
    ]


@dataclass(frozen=True)
class _Run:
    """A forward with shifted positions."""

    shift: int
    calls: Sequence[ProbedCall]


def _shifted_runs(
    decoder: nn.Module, attention: Sequence[nn.Module]
) -> tuple[list[_Run], list[FrequencyTable]]:
    """Forwards of the same tokens at shifted positions, the first without a shift."""
    names = {module: name for name, module in decoder.named_modules()}
    copy = copy_without_hooks(decoder)
    modules = [copy.get_submodule(names[module]) for module in dict.fromkeys(attention)]
    recorder = RotaryRecorder(copy)
    with probe_mode(copy), same_hidden_states(modules) as begin:

        def run(shift: int) -> _Run:
            recorder.reset()
            begin()
            return _Run(shift, probe_forward(copy, _LENGTH, first_position=shift).calls)

        with recorder.recording():
            runs = [run(0)]
        tables = recorder.frequency_tables()
        failure = None
        for shift in _shifts(copy, tables):
            try:
                runs.append(run(shift))
            except ForwardFailedError as error:  # a table of positions ends before it
                failure = failure or error
        recorder.reset()
        if failure is not None and len(runs) == 1:
            raise failure
    if len({len(run.calls) for run in runs}) > 1:
        reason = "the number of attention calls changes"
        raise ForwardFailedError(reason, reason)
    return runs, tables


def _shifts(decoder: nn.Module, tables: Sequence[FrequencyTable]) -> list[int]:
    """A small shift, one near the end of the context, and one beyond which frequencies change."""
    context = getattr(text_config(decoder), "max_position_embeddings", None) or _USUAL_CONTEXT
    largest = min(int(context), _LARGEST_SHIFT) - _LENGTH
    shifts = {_SHIFT, max(_SHIFT, largest - 1 + largest % 2)}  # odd
    for table in tables:
        if table.depends_on_length:
            short = table.frequencies(_LENGTH)
            far = (2**k + 1 for k in range(4, 25) if table.frequencies(_LENGTH + 2**k + 1) != short)
            shifts |= {next(far, _SHIFT)}
    return sorted(shifts)


@contextmanager
def same_hidden_states(modules: Sequence[nn.Module]) -> Iterator[Callable[[], None]]:
    """Give the modules the hidden states of the first forward again in all others.

    Yields a function to call before every forward.
    """
    first: dict[nn.Module, list[Tensor]] = {}
    calls: Counter[nn.Module] = Counter()
    forwards = 0

    def begin() -> None:
        nonlocal forwards
        forwards += 1
        calls.clear()

    def replay(
        module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        states = options.get("hidden_states", arguments[0] if arguments else None)
        if not isinstance(states, Tensor) or states.dim() != 3:
            return None
        number, calls[module] = calls[module], calls[module] + 1
        if forwards == 1:
            first.setdefault(module, []).append(states)
        known = first.get(module, ())
        if number >= len(known) or known[number].shape != states.shape:
            return None
        return (
            tuple(known[number] if value is states else value for value in arguments),
            {name: known[number] if value is states else value for name, value in options.items()},
        )

    with ExitStack() as stack:
        for module in modules:
            hook = module.register_forward_pre_hook(replay, with_kwargs=True)
            stack.callback(hook.remove)
        yield begin


def _rotations(
    calls: Sequence[tuple[int, ProbedCall]], tables: Sequence[FrequencyTable]
) -> Rotations:
    """The rotations of one attention call from its runs (shift, call)."""
    after, before = _stored_vectors(calls), _rotary_input(calls)
    if after is None:
        problem = Rotation(problem="queries or keys are zero or not finite")
        return Rotations(problem, problem)
    rotation = _found(after, tables)
    if before is None:
        unknown = Rotation(problem="the input of the rotary function is not known")
        return Rotations(rotation, rotation if rotation.record is None else unknown)
    earlier = _found(before, tables)
    if rotation.record is None and earlier.record is not None:
        changed = Rotation(
            problem="after RoPE the model changes queries and keys by more than a factor, such as "
            "a norm with weights"
        )
        return Rotations(changed, earlier)
    if rotation.record is not None and earlier.record is not None:
        record = replace(rotation.record, scaling=earlier.record.scaling)
        rotation = replace(rotation, record=record)
    return Rotations(rotation, earlier)


@dataclass(frozen=True)
class _Vectors:
    """Queries or keys of one run: `target` (n, d) at `positions`, made from `source` (n, d)."""

    source: Array
    source_positions: Array | None  # (n,); None before RoPE
    target: Array
    positions: Array  # (n,)
    length: int  # of a text whose last token has the last position

    def only(self, rows: npt.NDArray[np.bool_]) -> _Vectors:
        """Some of the rows."""
        places = self.source_positions
        return _Vectors(
            self.source[rows],
            None if places is None else places[rows],
            self.target[rows],
            self.positions[rows],
            self.length,
        )


@dataclass(frozen=True)
class _Measured:
    """The vectors of all runs; `start` is the place of the tensor in the stored vectors."""

    runs: Sequence[_Vectors]
    rounding: float
    width: int
    start: int = 0

    @property
    def before_rope(self) -> bool:
        return self.runs[0].source_positions is None

    @property
    def turns(self) -> bool:
        """Whether a target differs from its source by more than a factor."""
        for run in self.runs:
            lengths = [np.linalg.norm(v, axis=1, keepdims=True) for v in (run.source, run.target)]
            unit = run.source / lengths[0], run.target / lengths[1]  # (n, d) each
            if np.abs(unit[0] - unit[1]).max() > self.rounding:
                return True
        return False

    def starts(self, dimensions: int) -> list[int]:
        """First rotary dimensions to try."""
        run = self.runs[0]
        changed = np.abs(run.target - run.source).max(0)  # (d,)
        first = int(np.argmax(changed > self.rounding * np.abs(run.target).max()))
        found = {0, self.width - dimensions, first}
        return sorted(start for start in found if 0 <= start <= self.width - dimensions)


def _stored_vectors(calls: Sequence[tuple[int, ProbedCall]]) -> _Measured | None:
    """Queries and keys as stored by a capture: those of the first run turn into the others."""
    runs = []
    for kind in ("query", "key"):
        (_, first), *others = calls
        source = _rows(getattr(first, kind))
        place = _places(source, 0)
        for shift, call in others:
            target = _rows(getattr(call, kind))
            runs.append(_Vectors(source, place, target, place + shift, _LENGTH + shift))
    return _measured(runs, calls[0][1].query)


def _rotary_input(calls: Sequence[tuple[int, ProbedCall]]) -> _Measured | None:
    """Input and result of the rotary function."""
    runs, start = [], 0
    for kind, order in (("query", 0), ("key", 1)):
        for shift, call in calls[1:]:
            part = rotary_part(call, getattr(call, kind), order)
            if part is None:
                return None
            source, target = (_rows(_tensor(call, part, side)) for side in (0, 1))
            runs.append(_Vectors(source, None, target, _places(source, shift), _LENGTH + shift))
            start = part.start
    found = _measured(runs, calls[0][1].query)
    return None if found is None else replace(found, start=start)


def _measured(runs: Sequence[_Vectors], query: Tensor) -> _Measured | None:
    kept = []
    for run in runs:
        if not (np.isfinite(run.source).all() and np.isfinite(run.target).all()):
            return None
        rows = np.logical_and(
            run.source.any(1), run.target.any(1)
        )  # (n,); those of a padding token may be zero
        if not rows.any():
            return None
        kept.append(run.only(rows))
    rounding = ROUNDING.get(query.dtype, max(ROUNDING.values()))
    return _Measured(kept, rounding, kept[0].source.shape[1])


def _tensor(call: ProbedCall, part: RotaryPart, side: int) -> Tensor:
    tensor = call.rotary[part.call][side][part.tensor]
    return tensor.transpose(1, 2) if part.heads_last else tensor


def _rows(tensor: Tensor) -> Array:
    """Vectors (n, d) of some heads of a (1, heads, s, d) tensor; tokens run fastest."""
    heads = tensor[0, :: max(1, tensor.shape[1] // _MOST_HEADS)][:_MOST_HEADS]
    rows: Array = heads[:, :_LENGTH].double().cpu().reshape(-1, tensor.shape[3]).numpy()
    return rows


def _places(rows: Array, shift: int) -> Array:
    return np.tile(np.arange(_LENGTH, dtype=np.float64) + shift, len(rows) // _LENGTH)  # (n,)


def _found(measured: _Measured, tables: Sequence[FrequencyTable]) -> Rotation:
    """The best record that fits all runs."""
    if not measured.turns:
        return Rotation(problem=UNCHANGED)
    best, chosen = NO_FIT, None
    for table in (replace(table, sign=sign) for sign in (1, -1) for table in tables):
        initial = table.initial
        if 2 * len(initial) > measured.width:
            continue
        for start in measured.starts(2 * len(initial)):
            for pairing in _PAIRINGS:
                for arranged in _PAIRINGS if measured.before_rope else (pairing,):
                    try:
                        record = RotaryRecord(initial, start, pairing)
                        fit = _fit(measured, table, record, arranged)
                    except RotaryError:
                        continue
                    if fit.error < best.error:
                        best, chosen = fit, (table, record)
    if chosen is None or best.error > 1:
        return Rotation(
            problem="queries and keys do not turn with position_ids by any frequencies of the model"
        )
    table, record = chosen
    record = replace(
        record,
        start=measured.start + record.start,
        scaling=_scaling(table, best.factor if measured.before_rope else None, measured.rounding),
    )
    return Rotation(record, table=table if table.depends_on_length else None)


UNCHANGED = "queries and keys do not change with position_ids"


def _fit(
    measured: _Measured, table: FrequencyTable, record: RotaryRecord, arranged: Pairing
) -> Misfit:
    """The largest misfit of all runs."""
    worst = Misfit(0.0, 1.0)
    for run in measured.runs:
        source = run.source
        if run.source_positions is not None:  # undo the rotation of the first run
            source = np.asarray(rotate(source, run.source_positions, 0, record), np.float64)
        now = record
        if table.depends_on_length:
            now = replace(record, frequencies=table.frequencies(run.length))
        fit = misfit(source, run.positions, run.target, now, measured.rounding, arranged)
        if fit.error >= worst.error:
            worst = fit
        if worst.error > 1:
            break
    return worst


def _scaling(table: FrequencyTable, measured: float | None, rounding: float) -> float:
    """The factor on cos and sin; the model's own number if it agrees with the measured one."""
    if measured is None:
        return table.scalings[0]
    nearest = min(table.scalings, key=lambda value: abs(value - measured))
    return nearest if abs(nearest - measured) <= rounding * measured else measured
