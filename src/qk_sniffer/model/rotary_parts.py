"""Find the rotary call, and its tensor, that became the queries or keys of an attention call."""

from __future__ import annotations

import torch
from torch import Tensor

from qk_sniffer.model.layout import RotaryPart
from qk_sniffer.model.probe_forward import ProbedCall


def rotary_part(call: ProbedCall, target: Tensor, order: int) -> RotaryPart | None:
    """Find the result of a rotary function that became `target` (1, heads, s, d)."""
    rotated = [
        (number, index, after)
        for number, (_, results) in enumerate(call.rotary)
        for index, after in enumerate(results)
    ]
    if len(rotated) != 2:  # one call for queries and keys, or one for each
        return None
    number, index, after = rotated[order]
    heads, length, width = target.shape[1:]
    if after.dim() != 4 or after.shape[3] > width:
        return None
    if after.shape[2] == length and after.shape[1] in (heads, 1):
        heads_last = False
    elif after.shape[1] == length and after.shape[2] in (heads, 1):
        heads_last = True
        after = after.transpose(1, 2)
    else:
        return None
    start = _matching_start(after, target)
    return None if start is None else RotaryPart(number, index, heads_last, start, after.shape[3])


def _matching_start(after: Tensor, target: Tensor) -> int | None:
    """The first dimension of `target` that holds `after` (1, heads or 1, s, r)."""
    width, part = target.shape[3], after.shape[3]
    if part == width:  # the model may still scale or normalise the vectors
        return 0
    if after.is_meta:  # there are no values to compare
        return 0
    for start in (0, width - part):
        if torch.equal(after.expand(1, target.shape[1], -1, -1), target[..., start : start + part]):
            return start
    return None
