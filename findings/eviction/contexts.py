"""Texts in the cache of a model, compressed by presses of kvpress: torch code.

The model reads the contexts once. A press compresses their keys in the hook of a layer, after the
layer has been computed, so nothing that the model computes for the context depends on the press.
The keys of every layer are kept, and every press compresses these keys. A test compares the result
with `with press(model):`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import transformers
from kvpress import BasePress, ScorerPress
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, DynamicCache


class Outcome(NamedTuple):
    """Means over the predictions of a text."""

    kl: float  # KL(full ‖ compressed), nats per token
    loss_change: float  # nats per token
    right: float  # share of tokens that have the largest probability


class _Layer(NamedTuple):
    """What a press sees of a layer."""

    module: Any
    hidden: torch.Tensor  # (texts, context, width)
    keys: torch.Tensor  # (texts, key heads, context, d)
    values: torch.Tensor  # (texts, key heads, context, d)
    arguments: dict[str, Any]


@dataclass
class _Record(BasePress):  # type: ignore[misc]
    """A press that compresses nothing and keeps what it sees."""

    layers: list[_Layer] = field(default_factory=list)

    def compress(self, module: Any, hidden: Any, keys: Any, values: Any, _: Any, kw: Any) -> Any:
        self.layers.append(_Layer(module, hidden, keys, values, kw))
        return keys, values


@dataclass
class KnownScores(ScorerPress):  # type: ignore[misc]
    """A scorer whose scores of every layer were computed before."""

    scores: list[Any] = field(default_factory=list)  # (texts, key heads, context) of each layer

    def score(self, module: Any, *_: Any) -> Any:
        """A copy: AdaKVPress changes it."""
        return self.scores[module.layer_idx].clone()


class Contexts:
    """Texts of one length whose contexts the model has read."""

    def __init__(self, model: Any, tokens: npt.NDArray[np.int64], context: int) -> None:
        self._model = model
        ids = torch.from_numpy(tokens).to(model.device)  # (texts, context + following)
        self._next, self._context = ids[:, context:], context
        record = _Record()
        with torch.inference_mode(), record(model):
            model.model(ids[:, :context], past_key_values=DynamicCache())
        self._layers = record.layers
        self._full = [one.clone() for one in self._predictions(None)]  # (following - 1, vocabulary)

    def scores(self, press: ScorerPress, seed: int) -> list[torch.Tensor]:
        """(texts, key heads, context) scores of every layer."""
        torch.manual_seed(seed)
        press.post_init_from_model(self._model)
        with torch.inference_mode():
            return [
                press.score(one.module, one.hidden, one.keys, one.values, None, one.arguments)
                for one in self._layers
            ]

    def outcomes(self, press: BasePress | None) -> list[Outcome]:
        """The outcome of every text, with its context compressed by a press."""
        targets = self._next[:, 1:, None]  # (texts, following - 1, 1)
        found = []
        for full, own, target in zip(self._full, self._predictions(press), targets, strict=True):
            moved = full - own  # (following - 1, vocabulary)
            kl = (full.exp() * moved).sum(dim=-1)  # (following - 1,)
            right = own.argmax(dim=-1, keepdim=True) == target
            means = (kl, moved.gather(1, target), right)
            found.append(Outcome(*(float(one.double().mean()) for one in means)))
        return found

    def _predictions(self, press: BasePress | None) -> Iterator[torch.Tensor]:
        """(following - 1, vocabulary) log probabilities of the next tokens, text by text.

        kvpress needs one fake key for all queries of a call. If there is none, the following tokens
        are read in shorter pieces.
        """
        piece = self._next.shape[1]
        while True:
            try:
                hidden = self._read(press, piece)  # (texts, following, width)
                break
            except ValueError as error:
                if "fake keys" not in str(error) or piece == 1:
                    raise
                piece = -(-piece // 2)
        for one in hidden[:, :-1]:
            with torch.inference_mode():
                yield log_softmax(self._model.lm_head(one).float(), dim=-1)

    @torch.inference_mode()
    def _read(self, press: BasePress | None, piece: int) -> torch.Tensor:
        """Hidden states of the following tokens, which see the compressed contexts."""
        cache = DynamicCache()
        if press is not None:
            press.post_init_from_model(self._model)
        for number, (module, hidden, keys, values, arguments) in enumerate(self._layers):
            module.masked_key_indices = None
            if press is not None:
                keys, values = press.compress(module, hidden, keys, values, None, arguments)
            cache.update(keys, values, number)
        found, start = [], self._context
        for ids in torch.split(self._next, piece, dim=1):
            positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
            result = self._model.model(ids, past_key_values=cache, position_ids=positions)
            found.append(result.last_hidden_state)
            start += ids.shape[1]
        for one in self._layers:
            one.module.masked_key_indices = None
        return torch.cat(found, dim=1)


def load_model(folder: Path, device: str) -> Any:
    """The model in float32."""
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="sdpa", dtype=torch.float32
    )
    return model.to(device).eval()
