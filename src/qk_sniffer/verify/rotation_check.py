"""Compare queries and keys at shifted positions with the rotary records of their layers.

The text is run twice, the second time with shifted `position_ids`. Attention modules get the same
hidden states in both runs. The queries and keys of the first run, turned as the record says, must
be those of the second, up to a factor.

Compare the attention columns of captured queries with the weights of the attention function.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from qk_dump.attention_columns import MASS_BINS, SINK_TOKENS, AttentionRows, first_distances
from qk_dump.rotary import RotaryRecord, rotate
from qk_sniffer.model.attention_hooks import AttentionCall, attention_hook
from qk_sniffer.model.behaviour import ROUNDING
from qk_sniffer.model.layout import LayerFacts, ModelLayout, run_backbone
from qk_sniffer.model.rotation_fit import misfit
from qk_sniffer.model.rotation_probe import same_hidden_states
from qk_toolkit.arrays import Array

SHIFT = 101
_MOST_HEADS = 8  # of queries and of keys that are compared


@dataclass(frozen=True)
class RotationCheck:
    """How far queries and keys of a layer are from what its rotary record predicts."""

    difference: float  # the largest of all pairs of dimensions, relative to the length of the pair
    agrees: bool


def check_rotations(
    decoder: nn.Module, layout: ModelLayout, layers: Sequence[LayerFacts], tokens: Sequence[int]
) -> dict[int, RotationCheck]:
    """The checks of layers that have a rotary record, by layer.

    There are none if the model cannot run the text at shifted positions.
    """
    known = [facts for facts in layers if facts.rotations.after.record is not None]
    if not known:
        return {}
    modules = list(dict.fromkeys(facts.module for facts in known))
    runs = []
    try:
        with same_hidden_states(modules) as begin:
            for shift in (0, SHIFT):
                layout.rotary_tables.reset()
                begin()
                runs.append(_vectors(decoder, known, tokens, shift))
    except (RuntimeError, IndexError, ValueError):  # a table of positions ends before them
        return {}
    finally:
        layout.rotary_tables.reset()
    return {facts.layer: _check(facts, *(run[facts.layer] for run in runs)) for facts in known}


def _vectors(
    decoder: nn.Module, layers: Sequence[LayerFacts], tokens: Sequence[int], shift: int
) -> dict[int, tuple[Tensor, Tensor]]:
    """Queries and keys (heads, n, d) of some heads of every layer."""
    wanted = {(facts.module, facts.call): facts.layer for facts in layers}
    modules = {facts.module for facts in layers}
    calls: Counter[nn.Module] = Counter()
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(call: AttentionCall) -> None:
        if call.module not in modules or not call.is_self_attention:
            return
        layer = wanted.get((call.module, calls[call.module]))
        calls[call.module] += 1
        if layer is not None:
            found[layer] = (_some_heads(call.query), _some_heads(call.key))

    with attention_hook(keep):
        run_backbone(decoder, torch.tensor([list(tokens)]), shift)
    return found


def _some_heads(tensor: Tensor) -> Tensor:
    step = max(1, tensor.shape[1] // _MOST_HEADS)
    return tensor[0, ::step][:_MOST_HEADS].detach().cpu()


def _check(
    facts: LayerFacts, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]
) -> RotationCheck:
    length = first[0].shape[1]
    found, shifted = (_record(facts, size) for size in (length, length + SHIFT))
    rounding = ROUNDING.get(first[0].dtype, max(ROUNDING.values()))
    errors = []
    for here, there in zip(first, second, strict=True):
        source, target = _rows(here), _rows(there)
        at = np.tile(np.arange(length, dtype=np.float64), len(here))  # (heads · n,)
        plain = np.asarray(rotate(source, at, 0, found), np.float64)
        kept = np.logical_and(source.any(1), target.any(1))  # (n,); padding may be zero
        fit = misfit(plain[kept], (at + SHIFT)[kept], target[kept], shifted, rounding)
        errors.append(fit.error)
    return RotationCheck(rounding * max(errors), max(errors) <= 1)


def _record(facts: LayerFacts, length: int) -> RotaryRecord:
    """The record of a text of this length, of which there is always one."""
    record = facts.rotations.after.for_texts([length]).record
    assert record is not None
    return record


def _rows(tensor: Tensor) -> Array:
    rows: Array = tensor.double().reshape(-1, tensor.shape[2]).numpy()  # (heads · n, d)
    return rows


def weight_sums(call: AttentionCall, tokens: Sequence[int]) -> Array:
    """(heads, n, 6 + bins) of the weights that the function applies to values.

    Largest weight, entropy relative to its maximum, weight of the first tokens, weights by
    distance, weight of token 0, of duplicate keys and of induction keys. `tokens` (n,) is the text.
    """
    weights = call.weights().double()  # (heads, n, n)
    n = weights.shape[-1]
    entropy = -torch.xlogy(weights, weights).sum(dim=-1)  # (heads, n)
    place = torch.arange(n, device=weights.device)
    starts = torch.tensor(first_distances(), device=weights.device)  # (bins,)
    number = torch.bucketize((place[:, None] - place).clamp(min=0), starts, right=True) - 1
    masses = weights.new_zeros((*weights.shape[:2], MASS_BINS))
    masses.scatter_add_(2, number.expand_as(weights), weights)
    sums = [weights.amax(dim=-1), entropy / _most(n), weights[..., :SINK_TOKENS].sum(dim=-1)]
    ids = torch.tensor(list(tokens), device=weights.device)  # (n,)
    same = ids[:, None] == ids  # (n, n)
    duplicate = same & (place[:, None] > place)
    induction = torch.nn.functional.pad(same[:, :-1], (1, 0))
    others = [weights[..., 0], (weights * duplicate).sum(dim=-1), (weights * induction).sum(dim=-1)]
    parts = [torch.stack(sums, dim=-1), masses, torch.stack(others, dim=-1)]
    return _array(torch.cat(parts, dim=-1))


def captured_sums(found: AttentionRows) -> Array:
    """(n, 6 + bins), the same sums from the attention columns of one head."""
    assert found.first_mass is not None
    assert found.duplicate_mass is not None
    assert found.induction_mass is not None
    largest = np.exp(found.max_logit.astype(np.float64) - found.lse)
    relative = found.entropy / _most(len(found.lse))
    sums = np.stack([largest, relative, found.sink_mass], axis=1)
    others = np.stack([found.first_mass, found.duplicate_mass, found.induction_mass], axis=1)
    return np.concatenate([sums, found.mass_by_distance, others], axis=1)


def _most(n: int) -> float:
    """The largest entropy of n weights."""
    return math.log(max(n, 2))


def _array(tensor: Tensor) -> Array:
    return tensor.cpu().numpy()
