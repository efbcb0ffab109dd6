"""Measure how queries and keys of every layer turn with position.

The same tokens are run with shifted `position_ids`. Attention modules get the hidden states of the
first run again, so that only positions differ. Lists of numbers in the model that may be rotary
frequencies are tried, in both pairings, until one predicts the new queries and keys from the old
ones. Names in configs and modules are not used for this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from qk_dump.heads import Kind
from qk_dump.layers import Pairing, RotaryRecord
from qk_dump.rotary import pair_dimensions, rotate
from qk_sniffer.engines.engine import Rotation, Rotations
from qk_sniffer.engines.hf.behaviour import ROUNDING, replaced_states
from qk_sniffer.engines.hf.layout import HfLayout, text_config
from qk_sniffer.engines.hf.probe_forward import (
    ForwardFailedError,
    ProbedCall,
    probe_forward,
    probe_mode,
    probe_tokens,
)
from qk_sniffer.engines.hf.rotary_tables import FrequencyTable, frequency_tables, recorded_modules
from qk_toolkit.arrays import Array

UNCHANGED = "queries and keys do not change with position_ids"
_LENGTH = 13  # tokens
_SHIFT, _TEXT_SHIFT = 3, 101
_LARGEST_SHIFT = 2**15
_USUAL_CONTEXT = 1024
_MOST_TOKENS = 64  # of a text, for `check_rotations`
_MOST_HEADS = 8  # that are compared
_ANGLE_ROUNDING = 2.0**-22  # of an angle that the model computes in float32, relative to it
_SMALL = 0.1  # share of the mean length of a pair that counts where a pair is shorter
_PAIRINGS: tuple[Pairing, ...] = get_args(Pairing)


def rotations_of(decoder: nn.Module, attention: Sequence[nn.Module]) -> list[Rotations]:
    """The rotations of every attention call of a forward, in the order of the calls.

    `attention` are the modules that make attention calls.
    """
    try:
        runs, tables = _shifted_runs(decoder, attention, probe_tokens(decoder, _LENGTH), _shifts)
    except ForwardFailedError as error:
        problem = Rotation(
            problem=f"the model does not run with shifted position_ids ({error.reason})"
        )
        return [Rotations(problem, problem)] * len(attention)
    return [_rotations(calls, tables) for calls in zip(*runs, strict=True)]


@dataclass(frozen=True)
class RotationCheck:
    """How far queries and keys of a layer are from what its rotary record predicts."""

    difference: float  # the largest of all pairs of dimensions, relative to the length of the pair
    agrees: bool


def check_rotations(
    decoder: nn.Module, layout: HfLayout, tokens: Sequence[int]
) -> dict[int, RotationCheck]:
    """The checks of layers that have a rotary record, by layer, with the first tokens of a text.

    There are none if the model cannot run them at shifted positions.
    """
    layers = {(place.module, place.call): layout[layer] for layer, place in layout.places.items()}
    attention = [module for module, _ in layers]
    ids = torch.tensor([list(tokens[:_MOST_TOKENS])])
    try:
        runs, _ = _shifted_runs(decoder, attention, ids, lambda *_: [_TEXT_SHIFT])
    except ForwardFailedError:
        return {}
    found = {}
    for first, *others in zip(*runs, strict=True):
        site = first.call.site
        facts = layers.get((site.module, site.number))
        if facts is not None and facts.rotations.after.record is not None:
            turns = _stored(first, others)  # none if a vector is not finite
            error = _misfit(turns, facts.rotations.after).error if turns else np.inf
            found[facts.layer] = RotationCheck(error * _rounding(first.call.query), error <= 1)
    return found


class _Shifted(NamedTuple):
    """An attention call of a run whose tokens begin at position `shift`."""

    shift: int
    call: ProbedCall


def _shifted_runs(
    decoder: nn.Module,
    attention: Sequence[nn.Module],
    tokens: Tensor,
    choose_shifts: Callable[[nn.Module, list[FrequencyTable]], list[int]],
) -> tuple[list[list[_Shifted]], list[FrequencyTable]]:
    """Forwards of the same tokens at shifted positions, the first without a shift."""
    first: dict[tuple[nn.Module, int], Tensor] = {}  # (module, number of its call) → hidden states
    number: Counter[nn.Module] = Counter()

    def same_states(module: nn.Module, states: Tensor) -> Tensor:
        number[module] += 1
        return first.setdefault((module, number[module]), states)

    with probe_mode(decoder), replaced_states({*attention}, same_states):

        def run(shift: int) -> list[_Shifted]:
            for module in rotary:
                module.restore()
            number.clear()
            calls = probe_forward(decoder, tokens, first_position=shift).calls
            return [_Shifted(shift, call) for call in calls]

        with recorded_modules(decoder) as rotary:
            runs = [run(0)]
        tables = frequency_tables(rotary)
        failure = None
        for shift in choose_shifts(decoder, tables):
            try:
                runs.append(run(shift))
            except ForwardFailedError as error:  # a table of positions ends before it
                failure = failure or error
        for module in rotary:
            module.restore()
    if failure is not None and len(runs) == 1:
        raise failure
    if len({len(calls) for calls in runs}) > 1:
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


@dataclass(frozen=True)
class _Turn:
    """Queries or keys of a run: `source` (n, d) at positions `origin` became `target` (n, d)."""

    source: Array
    origin: Array  # (n,); zero before RoPE
    target: Array
    positions: Array  # (n,) of the targets
    lengths: tuple[int, int]  # of a text that ends with the last position of origin, of positions
    rounding: float

    @property
    def is_none(self) -> bool:
        """Whether a target is its source times a factor."""
        one, other = (v / np.linalg.norm(v, axis=1)[:, None] for v in (self.source, self.target))
        return bool(np.abs(one - other).max() <= self.rounding)

    @property
    def first_changed(self) -> int:
        """The first dimension that changes."""
        changed = np.abs(self.target - self.source).max(0)  # (d,)
        return int(np.argmax(changed > self.rounding * np.abs(self.target).max()))


def _turn(source: Tensor, target: Tensor, shifts: tuple[int, int], before: bool) -> _Turn | None:
    """The turn of (1, heads, s, d) tensors; None if they are zero or not finite."""
    length = target.shape[2]
    place = np.tile(np.arange(length, dtype=np.float64), min(target.shape[1], _MOST_HEADS))
    rows, turned = (_rows(tensor, length) for tensor in (source, target))
    kept = np.logical_and(rows.any(1), turned.any(1))  # (n,); those of a padding token may be zero
    if not kept.any() or not (np.isfinite(rows).all() and np.isfinite(turned).all()):
        return None
    return _Turn(
        rows[kept],
        np.zeros(kept.sum()) if before else place[kept] + shifts[0],
        turned[kept],
        place[kept] + shifts[1],
        (length + shifts[0], length + shifts[1]),
        _rounding(target),
    )


def _rounding(tensor: Tensor) -> float:
    return ROUNDING.get(tensor.dtype, max(ROUNDING.values()))


def _rows(tensor: Tensor, length: int) -> Array:
    """Vectors (n, d) of some heads of a (1, heads, s, d) tensor; tokens run fastest."""
    heads = tensor[0, :: max(1, tensor.shape[1] // _MOST_HEADS)][:_MOST_HEADS, :length]
    rows: Array = heads.double().cpu().reshape(-1, tensor.shape[3]).numpy()
    return rows


def _stored(first: _Shifted, others: Sequence[_Shifted]) -> list[_Turn]:
    """Queries and keys as stored by a capture; an empty list if some are zero or not finite."""
    pairs = [
        (getattr(first.call, kind), getattr(other.call, kind), (first.shift, other.shift))
        for kind in ("query", "key")
        for other in others
    ]
    found = [_turn(source, target, shifts, False) for source, target, shifts in pairs]
    return [] if None in found else [turn for turn in found if turn is not None]


def _rotary_input(calls: Sequence[_Shifted]) -> tuple[list[_Turn], int]:
    """Input and result of the rotary function, and their first dimension; none if not known."""
    found, start = [], 0
    for kind in get_args(Kind):
        for shift, call in calls:
            part = call.rotary_part(kind)
            if part is None:
                return [], 0
            both = [side[part.tensor] for side in call.rotary[part.call]]
            source, target = (one.transpose(1, 2) if part.heads_last else one for one in both)
            found.append(_turn(source, target, (shift, shift), True))
            start = part.start
    return ([] if None in found else [turn for turn in found if turn is not None]), start


def _rotations(calls: Sequence[_Shifted], tables: Sequence[FrequencyTable]) -> Rotations:
    """The rotations of one attention call from its runs."""
    turns = _stored(calls[0], calls[1:])
    if not turns:
        problem = Rotation(problem="queries or keys are zero or not finite")
        return Rotations(problem, problem)
    after = _found(turns, tables)
    inputs, start = _rotary_input(calls[1:])
    if not inputs:
        unknown = Rotation(problem="the input of the rotary function is not known")
        return Rotations(after, after if after.record is None else unknown)
    before = _found(inputs, tables, start, before=True)
    if before.record is not None and after.record is None:
        changed = "after RoPE the model changes queries and keys by more than a factor, such as a "
        return Rotations(Rotation(problem=f"{changed}norm with weights"), before)
    if before.record is not None and after.record is not None:
        record = replace(after.record, scaling=before.record.scaling)
        after = replace(after, record=record)
    return Rotations(after, before)


def _found(
    turns: Sequence[_Turn], tables: Sequence[FrequencyTable], start: int = 0, before: bool = False
) -> Rotation:
    """The best record that fits all runs; the vectors begin at dimension `start`."""
    if all(turn.is_none for turn in turns):
        return Rotation(problem=UNCHANGED)
    width, rounding = turns[0].source.shape[1], turns[0].rounding
    best, chosen = _NO_FIT, None
    for table in (replace(table, sign=sign) for sign in (1, -1) for table in tables):
        last = width - 2 * len(table.initial)  # start of the rotary dimensions
        for first in sorted({0, last, turns[0].first_changed}):
            for pairing in _PAIRINGS if 0 <= first <= last else ():
                record = RotaryRecord(table.initial, first, pairing)
                rotation = Rotation(record, table=table if table.depends_on_length else None)
                for arranged in _PAIRINGS if before else (pairing,):
                    fit = _misfit(turns, rotation, arranged)
                    if fit.error < best.error:
                        best, chosen = fit, (table, rotation, record)
    if chosen is None or best.error > 1:
        return Rotation(
            problem="queries and keys do not turn with position_ids by any frequencies of the model"
        )
    table, rotation, record = chosen
    scaling = table.scalings[0]
    if before:  # the model's own number, if it agrees with the measured one
        nearest = min(table.scalings, key=lambda value: abs(value - best.factor))
        agrees = abs(nearest - best.factor) <= rounding * best.factor
        scaling = nearest if agrees else best.factor
    return replace(rotation, record=replace(record, start=start + record.start, scaling=scaling))


class _Misfit(NamedTuple):
    """How far vectors are from a rotation."""

    error: float  # the largest of all pairs, relative to the allowed error; above 1: no fit
    factor: float  # median length of a vector relative to its rotated source


_NO_FIT = _Misfit(np.inf, 1.0)


def _misfit(turns: Sequence[_Turn], rotation: Rotation, arranged: Pairing | None = None) -> _Misfit:
    """The largest misfit of all turns, up to the first that does not fit."""
    worst = _Misfit(0.0, 1.0)
    for turn in turns:
        worst = max(worst, _turn_misfit(turn, rotation, arranged), key=lambda fit: fit.error)
        if worst.error > 1:
            break
    return worst


def _turn_misfit(turn: _Turn, rotation: Rotation, arranged: Pairing | None) -> _Misfit:
    """Compare the targets with the sources, rotated from their positions to those of the targets.

    Each row may have a factor of its own, such as that of a norm after RoPE. The pairs of the
    targets may be `arranged` in another way than those of the sources.
    """
    here, there = (rotation.for_texts([length]).record for length in turn.lengths)
    if here is None or there is None:
        return _NO_FIT
    plain = np.asarray(rotate(turn.source, turn.origin, 0, here), np.float64)  # (n, d)
    turned = np.asarray(rotate(plain, 0, turn.positions, there), np.float64)
    order = replace(there, pairing=arranged or there.pairing)
    predicted = turned.copy()
    for one, other in zip(pair_dimensions(there), pair_dimensions(order), strict=True):
        predicted[:, other] = turned[:, one]
    with np.errstate(all="ignore"):
        factors = (predicted * turn.target).sum(1) / (predicted**2).sum(1)  # (n,)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            return _NO_FIT
        error = turn.target - factors[:, None] * predicted  # (n, d)
    errors, lengths = _by_pair(error, order), _by_pair(turn.target, order)  # (pairs + 1,) each
    frequencies = np.array([*there.frequencies, 0.0])  # (pairs + 1,); the rest does not turn
    angles = np.abs(turn.positions).max() * np.abs(frequencies) * _ANGLE_ROUNDING
    usual = np.sqrt((lengths**2).mean())
    allowed = (turn.rounding + angles) * np.maximum(lengths, _SMALL * usual)
    return _Misfit(float((errors / allowed).max()), float(np.median(factors)))


def _by_pair(vectors: Array, record: RotaryRecord) -> Array:
    """Lengths (pairs + 1,) over all rows of every pair, and of the dimensions that do not turn."""
    squares = (vectors**2).sum(0)  # (d,)
    first, second = pair_dimensions(record)
    pairs = squares[first] + squares[second]  # (pairs,)
    rest = np.delete(squares, slice(record.start, record.end)).sum()
    lengths: Array = np.sqrt(np.append(pairs, rest))
    return lengths
