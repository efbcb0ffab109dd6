"""An engine without a model: attention calls of random vectors, and plain loops over them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from qk_sniffer.engines.engine import AttentionRule, LayerCall, LayerFacts, Logits, ModelLayout

Q_HEADS, K_HEADS, WIDTH, VALUE_WIDTH = 4, 2, 8, 5
GROUP = Q_HEADS // K_HEADS
KINDS = {
    "full": {},
    "window": {"window": 7},
    "chunks": {"window": 6, "type": "chunked_attention"},
    "soft-cap and window": {"window": 9, "softcap": 2.0},
    "learned sinks": {"logits": Logits(sinks=True)},
    "selected keys": {"selective": True, "logits": Logits(biased=True)},
    "not known": {"logits": None},
}
"""What every layer of the engine does."""
LAYER = {kind: number for number, kind in enumerate(KINDS)}
KNOWN = [kind for kind in KINDS if kind != "not known"]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def facts_of(layer, **changes):
    given = {"window": None, "softcap": None, "selective": False, "logits": Logits(), **changes}
    kind = "sliding_attention" if given["window"] else "full_attention"
    sizes = {"q_heads": Q_HEADS, "k_heads": K_HEADS, "width": WIDTH}
    rest = {"type": kind, "scale": 0.3, "rope": True, "pre_rope_known": True}
    return LayerFacts(layer=layer, **{**sizes, **rest, **given})


class FakeEngine:
    """Random vectors that depend on the layer and the tokens of a text.

    With `stored_apart` the stored vectors are others than those that attend.
    """

    def __init__(self, *, stored_apart=False, dtype=torch.float32, device="cpu"):
        layers = tuple(facts_of(LAYER[kind], **changes) for kind, changes in KINDS.items())
        self.layout = ModelLayout(len(layers), layers)
        self.calls = {}
        self._stored_apart = stored_apart
        self._how = {"dtype": dtype, "device": device}

    def run(self, texts, receiver):
        for facts in self.layout.layers:
            self.calls[facts.layer] = self.call(facts, texts)
            receiver.on_call(self.calls[facts.layer])

    def call(self, facts, texts):
        """The call of a layer; the tensors are views of (heads, tokens, d), as in many models."""
        parts = [np.random.default_rng([facts.layer, *ids]) for ids in texts]
        made = []
        for heads, width in ((Q_HEADS, WIDTH), (K_HEADS, WIDTH), (K_HEADS, VALUE_WIDTH)):
            shapes = [(heads, len(ids), width) for ids in texts]
            drawn = [2 * rng.standard_normal(s) for rng, s in zip(parts, shapes, strict=True)]
            whole = np.concatenate([np.zeros((heads, 0, width)), *drawn], axis=1)
            made.append(torch.tensor(whole, **self._how).transpose(0, 1))
        query, key, value = made
        stored = (query + 1, key + 1) if self._stored_apart else (query, key)
        known = facts.logits is not None
        rule = self._rule(facts, [len(ids) for ids in texts]) if known else None
        return LayerCall(facts.layer, query, key, value if known else None, *stored, rule)

    def _rule(self, facts, lengths):
        sinks = torch.linspace(-2, 4, Q_HEADS) if facts.logits.sinks else None
        extra = None
        if facts.selective:  # a bias of every head; a third of the keys is hidden
            rng, most = np.random.default_rng(facts.layer), max([1, *lengths])
            values = rng.standard_normal((1, Q_HEADS, most, most))
            hidden = (rng.random(values.shape) < 0.3) & ~np.eye(most, dtype=bool)
            extra = torch.tensor(np.where(hidden, -np.inf, values), dtype=torch.float32)
        device = self._how["device"]
        return AttentionRule(
            scale=facts.scale,
            softcap=facts.softcap,
            window=facts.window,
            chunked=facts.chunked,
            sinks=None if sinks is None else sinks.to(device),
            extra=None if extra is None else extra.to(device),
        )


class Attention(NamedTuple):
    """The attention of one head to one text."""

    logits: Any  # (s, s) float64; NaN where a query does not see a key
    weights: Any  # (s, s); 0 there


def attention_by_loops(call, head, start, length):
    """Every query of a text with every key, one pair at a time."""
    rule = call.rule
    queries = call.query[start : start + length, head].double().cpu().numpy()  # (s, d)
    keys = call.key[start : start + length, head // GROUP].double().cpu().numpy()  # (s, d)
    extra = None if rule.extra is None else rule.extra[0, head].double().cpu().numpy()
    logits = np.full((length, length), np.nan)
    weights = np.zeros((length, length))
    for i in range(length):
        for j in range(i + 1):
            if not sees(i, j, rule.window, rule.chunked):
                continue
            logit = float(queries[i] @ keys[j]) * rule.scale
            if rule.softcap is not None:
                logit = rule.softcap * math.tanh(logit / rule.softcap)
            if extra is not None:
                logit += extra[i, j]
            if logit > -math.inf:
                logits[i, j] = logit
        powers = {j: math.exp(logits[i, j]) for j in range(i + 1) if not math.isnan(logits[i, j])}
        total = sum(powers.values())
        if rule.sinks is not None:
            total += math.exp(float(rule.sinks[head]))
        for j, power in powers.items():
            weights[i, j] = power / total
    return Attention(logits, weights)


def sees(query, key, window, chunked):
    """Whether the query sees the key, from the words of the model's papers."""
    if key > query:
        return False
    if window is None:
        return True
    return query // window == key // window if chunked else query - key < window
