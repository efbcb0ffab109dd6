"""A model whose key heads lose keys, and how far its predictions move: torch code.

Every key head has keys that are kept for all queries, and a number of last tokens that each query
sees in any case. The full model runs first. It records what rankings of keys need: keys, lengths of
values, and the attention that keys receive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import log_softmax, scaled_dot_product_attention
from transformers import AttentionInterface, AutoModelForCausalLM

ATTENTION = "compression_evidence"
_ROWS = 1024  # positions whose logits are computed together
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Eviction:
    """What every key head keeps."""

    kept: npt.NDArray[np.bool_]  # (layers, k_heads, n) keys that all later queries see
    near: npt.NDArray[np.int64]  # (layers, k_heads) last tokens that a query sees, its own included


@dataclass
class Received:
    """What the full model records in one pass. Lists have one entry per layer."""

    first: int  # position of the first query whose attention is counted
    near: int  # distance at which keys are no longer seen in any case
    sinks: int  # first tokens that are not counted
    keys: list[Floats] = field(default_factory=list)  # (k_heads, n, d) after RoPE
    value_norm: list[Floats] = field(default_factory=list)  # (k_heads, n)
    attention: list[Floats] = field(default_factory=list)  # (k_heads, n) sums over queries

    def add(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> None:
        """Record a layer: query (k_heads, group, n, d), key and value (k_heads, n, d)."""
        n = key.shape[1]
        distance = torch.arange(self.first, n, device=key.device)[:, None] - torch.arange(
            n, device=key.device
        )  # (m, n)
        counted = distance >= self.near
        counted[:, : self.sinks] = False
        sums = []
        for of_head, own in zip(query, key, strict=True):
            logits = (of_head[:, self.first :] @ own.T) * scale  # (group, m, n)
            weights = logits.masked_fill_(distance < 0, -torch.inf).softmax(dim=-1)
            sums.append((weights * counted).sum(dim=(0, 1), dtype=torch.float64))
        self.keys.append(key.cpu().numpy())
        self.value_norm.append(value.norm(dim=-1).cpu().numpy())
        self.attention.append(torch.stack(sums).float().cpu().numpy())


class _Visible:
    """Attention masks of an eviction on the device of the model."""

    def __init__(self, eviction: Eviction, device: torch.device) -> None:
        n = eviction.kept.shape[-1]
        self._changed = (eviction.near < n).any(axis=1) & ~eviction.kept.all(axis=(1, 2))
        self._kept = torch.from_numpy(eviction.kept).to(device)  # (layers, k_heads, n)
        self._near = torch.from_numpy(eviction.near).to(device)  # (layers, k_heads)
        place = torch.arange(n, dtype=torch.int32, device=device)
        self._distance = place[:, None] - place  # (n, n)

    def mask(self, layer: int) -> torch.Tensor | None:
        """(k_heads, 1, n, n) added to logits; None if the layer sees all earlier keys."""
        if not self._changed[layer]:
            return None
        near = self._distance < self._near[layer][:, None, None]  # (k_heads, n, n)
        visible = (near | self._kept[layer][:, None]) & (self._distance >= 0)
        hidden = torch.zeros(visible.shape, device=visible.device)
        return hidden.masked_fill_(~visible, -torch.inf)[:, None]


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    visible: _Visible | None = None,
    received: Received | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one text: query (1, heads, n, d), key and value (1, k_heads, n, d)."""
    assert attention_mask is None or visible is None
    q = query[0].reshape(key.shape[1], -1, *query.shape[2:])  # (k_heads, group, n, d)
    if received is not None:
        received.add(q, key[0], value[0], scaling)
    mask = None if visible is None else visible.mask(module.layer_idx)
    k, v = (one[0][:, None].expand(-1, q.shape[1], -1, -1) for one in (key, value))
    found = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling
    )  # (k_heads, group, n, d)
    return found.flatten(0, 1).transpose(0, 1)[None].contiguous(), None


AttentionInterface.register(ATTENTION, _attend)


@dataclass(frozen=True)
class Outcome:
    """Means over the evaluated positions of a text, in nats per token."""

    kl: float  # of the evicted model's prediction from the full model's
    loss_change: float


class EvaluatedText:
    """One text, with the predictions of the full model at the evaluated positions."""

    def __init__(self, model: Any, tokens: npt.NDArray[np.int64], first: int) -> None:
        self._model, self._first = model, first
        self._ids = torch.from_numpy(tokens)[None].to(model.device)  # (1, n)
        with torch.inference_mode():
            rows = [log_softmax(one, dim=-1) for one in self._logits({})]
            self._full = torch.cat(rows)  # (m, vocabulary)
        self._targets = self._ids[0, first + 1 :, None]  # (m, 1)

    def outcome(self, eviction: Eviction) -> Outcome:
        """How far the predictions move if keys are evicted."""
        visible = _Visible(eviction, self._ids.device)
        kl = loss = 0.0
        with torch.inference_mode():
            for number, logits in enumerate(self._logits({"visible": visible})):
                rows = slice(number * _ROWS, number * _ROWS + len(logits))
                full, targets = self._full[rows], self._targets[rows]
                evicted = log_softmax(logits, dim=-1)  # (b, vocabulary)
                moved = full - evicted
                kl += float((full.exp() * moved).sum(dim=-1).sum(dtype=torch.float64))
                loss += float(moved.gather(1, targets).sum(dtype=torch.float64))
        return Outcome(kl / len(self._full), loss / len(self._full))

    def _logits(self, options: dict[str, Any]) -> Any:
        """(b, vocabulary) logits of the evaluated positions, block by block."""
        model = self._model
        hidden = model.model(self._ids, use_cache=False, **options).last_hidden_state[0]
        for rows in hidden[self._first : -1].split(_ROWS):
            yield model.lm_head(rows).float()


def recorded(model: Any, tokens: npt.NDArray[np.int64], received: Received) -> Received:
    """One pass of the full model over a text."""
    ids = torch.from_numpy(tokens)[None].to(model.device)
    with torch.inference_mode():
        model.model(ids, use_cache=False, received=received)
    return received


def load_model(folder: Path, device: str) -> Any:
    """The model in float32 with the attention of this file."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=ATTENTION, dtype=torch.float32
    )
    return model.to(device).eval()
