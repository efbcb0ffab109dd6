"""Draw keys in proportion to the attention they receive.

The draw of a key depends on (seed, example, layer, key head, position) and on its probability. It
does not depend on the base sample, the device, or the other texts of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from qk_dump.columns import SINK_TOKENS
from qk_dump.heads import MOST_POSITIONS
from qk_toolkit.arrays import Ints

_ALL_TEXTS, _FEWEST = 2048, 16  # wanted keys of a key head: of all texts, and of every text
_GOLDEN = 0x9E3779B97F4A7C15  # the increment of SplitMix64
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_WORD = 1 << 64
_DRAW_BITS = 53  # as many as float64 has

IntArray = TypeVar("IntArray", Ints, Tensor)


def default_number(texts: int | None) -> int:
    """The number of keys per text and key head, from the number of texts if it is known."""
    return _FEWEST if not texts else max(_FEWEST, math.ceil(_ALL_TEXTS / texts))


def recorded_number(plan: Mapping[str, Any] | None) -> int | None:
    """The number of keys in the plan of a capture; None if the plan has no valid one."""
    try:
        number = (plan or {})["capture"]["attended_keys"]
    except (KeyError, TypeError):
        return None
    return number if type(number) is int and 0 < number <= MOST_POSITIONS else None


@dataclass(frozen=True)
class AttendedSampler:
    """How keys are drawn by attention."""

    number: int  # expected keys per text and key head, besides the first tokens
    queries: int = 64  # queries per text that measure the attention of keys
    seed: int = 0
    first_key_head: int = 0  # from which key heads are counted; ranks have heads of their own

    def query_positions(self, length: int, window: int | None) -> Ints:
        """Evenly spaced positions of a text; the last one is its last token.

        With a window there are at least two queries per window, so that every key is seen.
        """
        wanted = self.queries
        if window is not None:
            wanted = max(wanted, -(-2 * length // window))
        number = min(length, wanted)
        return np.arange(1, number + 1) * length // max(1, number) - 1

    def capacity(self, length: int) -> int:
        """The most keys that are taken of a text; the draw exceeds it with probability 1e-30."""
        spread = 12 * math.isqrt(self.number) + 44
        return min(length, SINK_TOKENS + self.number + spread)

    def streams(self, example: int, layer: int, key_heads: Sequence[int]) -> Ints:
        """The streams (key heads,) of random numbers of the key heads of a text."""
        numbers = (self.first_key_head + head for head in key_heads)
        found = [stream(self.seed, example, layer, number) for number in numbers]
        return np.array(found, np.int64)

    def draw(self, received: Tensor, streams: Tensor) -> Draw:
        """Draw keys of a text by the attention `received` (key heads, group, s) of each key."""
        weights = received.double().sum(dim=1)  # (key heads, s)
        chance = inclusion(weights, self.number)  # (key heads, s)
        length = chance.shape[1]
        position = torch.arange(length, device=received.device)  # (s,)
        numerator = random_numerators(streams[:, None], position[None])  # (key heads, s)
        drawn = numerator.double() * 2.0**-_DRAW_BITS < chance
        order = torch.where(
            drawn, (length - position).int()[None], 0
        )  # the first positions are largest
        places = length - order.topk(self.capacity(length), dim=1).values.long()  # (k, capacity)
        return Draw(chance, drawn.sum(dim=1), places.clamp(max=length - 1))


class Draw(NamedTuple):
    """The keys that were drawn of one text."""

    chance: Tensor  # (key heads, s) the probability of every key
    drawn: Tensor  # (key heads,) number of drawn keys
    position: Tensor  # (key heads, capacity) ascending; only the first `drawn` are meant


def inclusion(weights: Tensor, number: int) -> Tensor:
    """Probabilities min(1, c · weight) of `weights` (…, s) in float64, with a sum of `number`.

    The first tokens have probability 1 and are outside the number. If no more than `number` other
    keys have a weight above 0, all of these have probability 1.
    """
    chance = torch.ones_like(weights)
    later = weights[..., SINK_TOKENS:]  # (…, m)
    if later.shape[-1]:
        chance[..., SINK_TOKENS:] = _with_sum(later, number)
    return chance


def _with_sum(weights: Tensor, number: int) -> Tensor:
    """min(1, c · weight) with c such that the sum is `number`.

    At most `number` keys have probability 1, so only the largest weights are sorted.
    """
    ordered, index = weights.topk(min(number + 1, weights.shape[-1]), dim=-1)  # (…, n)
    others = weights.scatter(-1, index, 0.0).sum(dim=-1, keepdim=True)  # (…, 1)
    rest = others + ordered.flip(-1).cumsum(-1).flip(-1)  # this weight and all smaller ones
    capped = torch.arange(ordered.shape[-1], device=weights.device)  # (n,) keys with probability 1
    factor = (number - capped) / rest.clamp(min=torch.finfo(rest.dtype).tiny)  # (…, n)
    fits = factor * ordered <= 1  # the largest key that is not capped has at most probability 1
    first = fits.to(torch.int8).argmax(dim=-1, keepdim=True)  # (…, 1)
    scale = factor.gather(-1, first)  # (…, 1)
    few = (weights > 0).sum(dim=-1, keepdim=True) <= number
    return torch.where(few, (weights > 0).to(weights), (scale * weights).clamp(max=1.0))


def stream(*parts: int) -> int:
    """A number of int64 that stands for the parts; other parts give an unrelated number."""
    state = 0
    for part in parts:
        state = _mixed((state + _GOLDEN + part) % _WORD)
    return _signed(state)


def random_numerators(streams: IntArray, position: IntArray) -> IntArray:
    """Integers below 2^53, uniform and independent for all streams and positions (SplitMix64).

    The arithmetic is that of int64 with overflow, so numpy and torch give the same numbers.
    """
    mixed: Any = streams + (position + 1) * _signed(_GOLDEN)
    for shift, factor in zip(_SHIFTS, (*_FACTORS, 1), strict=True):
        mixed = (mixed ^ _right_shift(mixed, shift)) * _signed(factor)
    found: IntArray = _right_shift(mixed, 64 - _DRAW_BITS)
    return found


def _mixed(value: int) -> int:
    """The same function for one number of 64 bits without a sign."""
    for shift, factor in zip(_SHIFTS, (*_FACTORS, 1), strict=True):
        value = (value ^ (value >> shift)) * factor % _WORD
    return value


def _right_shift(values: Any, bits: int) -> Any:
    """Shift of int64 without its sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - _WORD if value >= _WORD // 2 else value
