"""Compare attention weights from captured queries and keys with the weights of the model.

One text is run while a tap keeps every position. Softmax of q·k is recomputed from these queries
and keys by the rule of the capture, and compared with the weights that the model's attention
function applies to values. Both agree only if the vectors, their order, the pairing of query and
key heads, scale, window and rotary embedding are all correct. The attention columns of the queries
are compared with sums of the same weights. Then the text is run at shifted positions, and its
queries and keys are compared with what the rotary records of the layers predict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from qk_dump.columns import (
    DUPLICATE_MASS,
    ENTROPY,
    FIRST_MASS,
    INDUCTION_MASS,
    LSE,
    MASS_BINS,
    MASSES,
    MAX_LOGIT,
    SINK_MASS,
    SINK_TOKENS,
    first_distances,
)
from qk_dump.rows import Rows
from qk_sniffer.attention.logits import visible_logits
from qk_sniffer.engines.engine import AttentionRule, LayerFacts
from qk_sniffer.engines.hf.attention_hooks import AttentionCall, attention_hook
from qk_sniffer.engines.hf.calls import rule_of
from qk_sniffer.engines.hf.layout import HfLayout, decoder_of, run_backbone
from qk_sniffer.engines.hf.logits import allowed, sinks_of
from qk_sniffer.engines.hf.rotary import RotationCheck, check_rotations
from qk_sniffer.notebook import Tap, tap
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ToolkitError
from qk_toolkit.raised_in import is_our_bug


@dataclass(frozen=True)
class LayerCheck:
    """The difference between a layer's recomputed weights and the model's weights."""

    facts: LayerFacts
    difference: float  # the largest of all; NaN if a weight is NaN
    head: int  # the query head with the largest difference
    tolerance: float
    attention: float | None  # the largest difference of the attention columns; None if not known
    rotation: RotationCheck | None = None  # None if the layer has no rotary record

    @property
    def largest(self) -> float:
        """The largest difference of weights and attention columns; NaN if one is NaN."""
        return float(np.max([self.difference, self.attention or 0.0]))

    @property
    def agrees(self) -> bool:
        """Whether the differences are within the tolerance; False for NaN."""
        turns = self.rotation is None or self.rotation.agrees
        return self.largest <= self.tolerance and turns


@dataclass(frozen=True)
class Verification:
    """The checked layers of a model, for one text."""

    layers: tuple[LayerCheck, ...]
    tokens: int
    dtype: str

    @property
    def worst(self) -> LayerCheck:
        """The layer that differs most."""
        return max(self.layers, key=lambda layer: (math.isnan(layer.largest), layer.largest))

    @property
    def failed(self) -> list[LayerCheck]:
        """The layers whose difference is above the tolerance."""
        return [layer for layer in self.layers if not layer.agrees]


def verify_model(
    model: nn.Module,
    tokens: Sequence[int],
    *,
    layers: Sequence[int] | None = None,
    tolerance: float | None = None,
) -> Verification:
    """Run the tokens through a model, and compare every layer.

    The default tolerance is `allowed` for the model's precision and the scores of the layer.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    with tap(model, layers=layers, sampler="all", say=lambda message: None) as tapped:
        facts = [layer.facts for layer in tapped.plan.wanted]
        recorder = _Recorder(tapped.layout, facts)
        with attention_hook(recorder.record):
            _run(model, tokens)
    rotations = check_rotations(decoder_of(model), tapped.layout, tokens)
    checks = []
    for layer in facts:
        recorded = recorder.found[layer.layer]
        check = _check(tapped, layer, recorded, dtype, tolerance)
        attention = _attention(tapped, layer, recorded.weights, tokens)
        rotation = rotations.get(layer.layer)
        checks.append(replace(check, attention=attention, rotation=rotation))
    return Verification(tuple(checks), len(tokens), dtype)


def _run(model: nn.Module, tokens: Sequence[int]) -> None:
    try:
        run_backbone(decoder_of(model), torch.tensor([list(tokens)]))  # (1, n)
    except (RuntimeError, IndexError, ValueError) as error:  # also out of memory
        if is_our_bug(error):
            raise
        raise ToolkitError(
            f"the model failed on the text ({len(tokens):,} tokens), try a smaller --max_length: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error


class _Recorded(NamedTuple):
    """The weights that a layer's attention function applies to values, and the capture's rule."""

    weights: Tensor  # (heads, n, n)
    rule: AttentionRule


class _Recorder:
    """Records the attention of some layers in one forward."""

    def __init__(self, layout: HfLayout, layers: Iterable[LayerFacts]) -> None:
        places = ((layout.places[facts.layer], facts) for facts in layers)
        self._wanted = {(place.module, place.call): facts for place, facts in places}
        self._calls: Counter[nn.Module] = Counter()
        self.found: dict[int, _Recorded] = {}

    def record(self, call: AttentionCall) -> None:
        """Record a call of a wanted layer."""
        if not call.is_self_attention:
            return
        facts = self._wanted.get((call.module, self._calls[call.module]))
        self._calls[call.module] += 1
        if facts is not None:
            rule = rule_of(facts, call) or facts.rule(sinks_of(call))
            self.found[facts.layer] = _Recorded(call.weights().detach().cpu(), rule)


def _check(
    tapped: Tap, facts: LayerFacts, recorded: _Recorded, dtype: str, tolerance: float | None
) -> LayerCheck:
    """Compare one layer, one head at a time to limit the memory."""
    differences, largest = [], 0.0
    for head in range(facts.q_heads):
        q = torch.from_numpy(tapped.queries(facts.layer, head).vectors)  # (n, d)
        k = torch.from_numpy(tapped.keys(facts.layer, head // facts.group).vectors)  # (n, d)
        logits, weights = rule_weights(q, k, recorded.rule, head)  # (n, n) each
        difference = (weights - recorded.weights[head].double()).abs().max()
        differences.append(float(difference))  # NaN if there is one: the model overflows
        largest = max(largest, float(torch.where(logits.isfinite(), logits.abs(), 0).max()))
    worst = int(np.argmax(differences))  # the first NaN, if there is one
    limit = allowed(dtype, largest) if tolerance is None else tolerance
    return LayerCheck(facts, differences[worst], worst, limit, None)


def rule_weights(q: Tensor, k: Tensor, rule: AttentionRule, head: int) -> tuple[Tensor, Tensor]:
    """Logits and weights (n, n) of the queries and keys (n, d) of one head, in float64."""
    products = q.double() @ k.double().T * rule.scale  # (n, n)
    position, heads = torch.arange(len(q)), torch.tensor([head])
    extra = None if rule.extra is None else rule.extra.cpu()
    host = replace(rule, sinks=None, extra=extra)
    logits = visible_logits(products[None], position, 0, host, 0, heads)[0][0]
    lse = logits.logsumexp(dim=-1, keepdim=True)  # (n, 1)
    if rule.sinks is not None:
        lse = torch.logaddexp(lse, rule.sinks[head].to(lse).expand_as(lse))
    return logits, (logits - lse).exp()


def _attention(
    tapped: Tap, facts: LayerFacts, weights: Tensor, tokens: Sequence[int]
) -> float | None:
    """The largest difference of the attention columns of a layer; None if they are not known."""
    sums = weight_sums(weights, tokens)  # (heads, n, 6 + bins)
    differences = []
    for head in range(facts.q_heads):
        found = tapped.queries(facts.layer, head)
        if np.isnan(found[LSE]).all() and facts.logits is None:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            difference = captured_sums(found) - sums[head]  # (n, 6 + bins)
        differences.append(np.max(np.abs(difference)))  # NaN if there is one
    return float(np.max(differences))


def weight_sums(weights: Tensor, tokens: Sequence[int]) -> Array:
    """(heads, n, 6 + bins) of the weights (heads, n, n) that the function applies to values.

    Largest weight, entropy relative to its maximum, weight of the first tokens, weights by
    distance, weight of token 0, of duplicate keys and of induction keys. `tokens` (n,) is the text.
    """
    weights = weights.double()
    n = weights.shape[-1]
    entropy = -torch.xlogy(weights, weights).sum(dim=-1)  # (heads, n)
    place = torch.arange(n)
    starts = torch.tensor(first_distances())  # (bins,)
    number = torch.bucketize((place[:, None] - place).clamp(min=0), starts, right=True) - 1
    masses = weights.new_zeros((*weights.shape[:2], MASS_BINS))
    masses.scatter_add_(2, number.expand_as(weights), weights)
    sums = [weights.amax(dim=-1), entropy / _most(n), weights[..., :SINK_TOKENS].sum(dim=-1)]
    ids = torch.tensor(list(tokens))  # (n,)
    same = ids[:, None] == ids  # (n, n)
    duplicate = same & (place[:, None] > place)
    induction = torch.nn.functional.pad(same[:, :-1], (1, 0))
    others = [weights[..., 0], (weights * duplicate).sum(dim=-1), (weights * induction).sum(dim=-1)]
    parts = [torch.stack(sums, dim=-1), masses, torch.stack(others, dim=-1)]
    found: Array = torch.cat(parts, dim=-1).numpy()
    return found


def captured_sums(rows: Rows) -> Array:
    """(n, 6 + bins), the same sums from the attention columns of one head."""
    largest = np.exp(rows[MAX_LOGIT].astype(np.float64) - rows[LSE])  # (n,)
    relative = rows[ENTROPY] / _most(len(rows))
    sums = np.stack([largest, relative, rows[SINK_MASS]], axis=1)
    others = [rows[name] for name in (FIRST_MASS, DUPLICATE_MASS, INDUCTION_MASS)]
    return np.concatenate([sums, rows[MASSES], np.stack(others, axis=1)], axis=1)


def _most(n: int) -> float:
    """The largest entropy of n weights."""
    return math.log(max(n, 2))
