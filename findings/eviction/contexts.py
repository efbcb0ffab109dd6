"""Texts in the cache of a model, compressed by presses of kvpress: torch code.

The model reads the contexts once. A press compresses their keys in the hook of a layer, after the
layer has been computed, so nothing that the model computes for the context depends on the press.
The keys of every layer are kept, and every press compresses these keys. A test compares the result
with `with press(model):`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import transformers
from kvpress import BasePress, KVzipPress, ScorerPress
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

Tokens = npt.NDArray[np.int64]
_MOST_PIECES = 512
_STEPS = 8  # after which it is looked whether all texts have been answered


class Outcome(NamedTuple):
    """Means over the predictions of a text."""

    kl: float  # KL(full ‖ compressed), nats per token
    loss_change: float  # nats per token
    right: float  # share of tokens that have the largest probability, or of right answers


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
    """Texts of one length whose contexts the model has read.

    After the context come the next tokens of the text, or questions that do not see each other.
    """

    def __init__(self, model: Any, tokens: Tokens, context: int) -> None:
        self._model, self._context = model, context
        self._ids = torch.from_numpy(tokens).to(model.device)  # (texts, context + following)
        record = _Record()
        with torch.inference_mode(), record(model):
            model.model(self._ids[:, :context], past_key_values=DynamicCache())
        self._layers = record.layers
        self._full = self._reference()

    def scores(self, press: ScorerPress, seed: int) -> list[torch.Tensor]:
        """(texts, key heads, context) scores of every layer."""
        torch.manual_seed(seed)
        press.post_init_from_model(self._model)
        with torch.inference_mode():
            return [
                press.score(one.module, one.hidden, one.keys, one.values, None, one.arguments)
                for one in self._layers
            ]

    def replayed(self) -> list[torch.Tensor]:
        """(texts, key heads, context) scores of KVzip, which reads every context a second time."""
        found = []
        for ids in torch.split(self._ids[:, : self._context], 1):
            press = _Replayed(compression_ratio=0.5)
            with torch.inference_mode(), press(self._model):
                press.prefix_length = 0  # the contexts have no chat template
                self._model.model(input_ids=ids, past_key_values=DynamicCache())
            found.append(press.known)  # (layers, 1, key heads, context)
        self._forget_masks()
        return list(torch.cat(found, dim=1))

    def outcomes(self, press: BasePress | None) -> list[Outcome]:
        """The outcome of every text, with its context compressed by a press."""
        found = []
        for full, (own, target) in zip(self._full, self._predictions(press), strict=True):
            moved = full - own  # (predictions, vocabulary)
            kl = (full.exp() * moved).sum(dim=-1)  # (predictions,)
            right = self._right(own.argmax(dim=-1) == target)
            change = moved.gather(1, target[:, None])
            found.append(Outcome(*(float(one.double().mean()) for one in (kl, change, right))))
        return found

    def _reference(self) -> list[torch.Tensor]:
        return [own.clone() for own, _ in self._predictions(None)]

    def _right(self, right: torch.Tensor) -> torch.Tensor:
        return right

    def _predictions(self, press: BasePress | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Log probabilities (predictions, vocabulary) and the tokens that came, text by text.

        kvpress needs one fake key for all queries of a call. If there is none, the following tokens
        are read in shorter pieces.
        """
        hidden = self._in_pieces(lambda pieces: self._read(press, pieces))
        self._forget_masks()
        for number, one in enumerate(hidden):
            before, target = self._predicted(number)
            with torch.inference_mode():
                yield log_softmax(self._model.lm_head(one[before]).float(), dim=-1), target

    def _in_pieces(self, read: Callable[[int], torch.Tensor]) -> torch.Tensor:
        pieces = 1
        while True:
            try:
                return read(pieces)
            except ValueError as error:
                if "fake keys" not in str(error) or pieces > _MOST_PIECES:
                    raise
                pieces *= 2

    def _predicted(self, number: int) -> tuple[Any, torch.Tensor]:
        """Which following tokens predict, and the tokens that came."""
        return slice(0, -1), self._ids[number, self._context + 1 :]

    @torch.inference_mode()
    def _read(self, press: BasePress | None, pieces: int) -> torch.Tensor:
        """Hidden states of the following tokens, which see the compressed contexts."""
        cache, following = self._compressed(press), self._ids[:, self._context :]
        found, start = [], self._context
        for ids in torch.split(following, -(-following.shape[1] // pieces), dim=1):
            positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
            result = self._model.model(ids, past_key_values=cache, position_ids=positions)
            found.append(result.last_hidden_state)
            start += ids.shape[1]
        return torch.cat(found, dim=1)

    def _compressed(self, press: BasePress | None) -> DynamicCache:
        """The cache of the contexts. Masked keys are noted in the modules."""
        cache = DynamicCache()
        if press is not None:
            press.post_init_from_model(self._model)
        for number, (module, hidden, keys, values, arguments) in enumerate(self._layers):
            module.masked_key_indices = None
            if press is not None:
                keys, values = press.compress(module, hidden, keys, values, None, arguments)
            cache.update(keys, values, number)
        return cache

    def _forget_masks(self) -> None:
        for one in self._layers:
            one.module.masked_key_indices = None


class Questions(Contexts):
    """Texts with several questions each. Right: every token of the answer is the most probable.

    This is the answer of greedy decoding, because each token of a right answer follows the others.
    """

    def __init__(self, model: Any, tokens: Tokens, questions: Tokens, answers: Tokens) -> None:
        self._asked = torch.from_numpy(questions).to(model.device)  # (texts, questions, m)
        self._answer = torch.from_numpy(answers > 0).to(model.device)  # (texts, questions, m)
        super().__init__(model, tokens, tokens.shape[1])

    def _right(self, right: torch.Tensor) -> torch.Tensor:
        """(questions,) whether all tokens of an answer are right."""
        return torch.stack([one.all() for one in torch.split(right, self._sizes)])

    def _predicted(self, number: int) -> tuple[Any, torch.Tensor]:
        answer = self._answer[number]  # (questions, m)
        self._sizes = answer.sum(dim=-1).tolist()
        before = answer.flatten().nonzero()[:, 0] - 1
        return before, self._asked[number][answer]

    @torch.inference_mode()
    def _read(self, press: BasePress | None, pieces: int) -> torch.Tensor:
        """Hidden states of all questions, one after the other in a row."""
        cache = self._compressed(press)
        kept, found = cache.get_seq_length(), []
        for asked in torch.split(self._asked, -(-self._asked.shape[1] // pieces), dim=1):
            texts, questions, m = asked.shape
            block = torch.arange(questions, device=asked.device).repeat_interleave(m)
            place = torch.arange(m, device=asked.device).repeat(questions)  # (questions · m,)
            own = (block[:, None] == block) & (place[:, None] >= place)
            seen = torch.ones(len(block), kept, dtype=torch.bool, device=asked.device)
            mask = torch.cat([seen, own], dim=1).expand(texts, 1, -1, -1)
            result = self._model.model(
                asked.reshape(texts, -1).clamp_min(0),
                past_key_values=cache,
                position_ids=(self._context + place)[None],
                attention_mask=mask,
            )
            cache.crop(kept)
            found.append(result.last_hidden_state)
        return torch.cat(found, dim=1)


class Answers(Contexts):
    """Texts with one question each, answered by greedy decoding.

    Right: the share of the references that the answer contains, as RULER scores it.
    """

    def __init__(
        self,
        model: Any,
        tokens: Tokens,
        questions: Tokens,
        references: list[list[str]],
        most: int,
    ) -> None:
        self._asked = torch.from_numpy(questions).to(model.device)  # (texts, m), -1 before them
        self._references, self._most = references, most
        self._tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
        ends = model.generation_config.eos_token_id
        ends = self._tokenizer.eos_token_id if ends is None else ends
        self._ends = torch.tensor(ends, device=model.device).reshape(-1)
        super().__init__(model, tokens, tokens.shape[1])

    def _reference(self) -> list[torch.Tensor]:
        return []

    def outcomes(self, press: BasePress | None) -> list[Outcome]:
        """The outcome of every text; KL and loss are not computed."""
        tokens = self._in_pieces(lambda pieces: self._answers(press, pieces))
        self._forget_masks()
        return [Outcome(math.nan, math.nan, share) for share in self._shares(tokens)]

    @torch.inference_mode()
    def _answers(self, press: BasePress | None, pieces: int) -> torch.Tensor:
        """(texts, generated) tokens."""
        cache, real = self._compressed(press), self._asked >= 0  # (texts, m)
        texts, m = real.shape
        place = self._context + (real.cumsum(dim=1) - 1).clamp_min(0)  # (texts, m)
        context = real.new_ones(texts, cache.get_seq_length())
        hidden, start = real, 0
        for columns in torch.arange(m, device=real.device).tensor_split(pieces):
            if not len(columns):
                continue
            end = start + len(columns)
            before = columns[:, None] >= torch.arange(end, device=real.device)  # (columns, end)
            own = before[None] & real[:, None, :end]  # (texts, columns, end)
            known = context[:, None].expand(-1, len(columns), -1)
            hidden = self._model.model(
                self._asked[:, start:end].clamp_min(0),
                past_key_values=cache,
                position_ids=place[:, start:end],
                attention_mask=torch.cat([known, own], dim=2)[:, None],
            ).last_hidden_state
            start = end
        seen, found = torch.cat([context, real], dim=1), []
        ended = seen.new_zeros(texts)
        for step in range(self._most):
            token = self._model.lm_head(hidden[:, -1]).argmax(dim=-1)  # (texts,)
            ended |= torch.isin(token, self._ends)
            found.append(token.masked_fill(ended, self._ends[0]))
            if step % _STEPS == 0 and self._are_over(torch.stack(found, dim=1), ended):
                break
            seen = torch.cat([seen, seen.new_ones(texts, 1)], dim=1)
            hidden = self._model.model(
                token[:, None],
                past_key_values=cache,
                position_ids=place[:, -1:] + 1 + step,
                attention_mask=seen[:, None, None],
            ).last_hidden_state
        return torch.stack(found, dim=1)

    def _are_over(self, tokens: torch.Tensor, ended: torch.Tensor) -> bool:
        """Whether more tokens can change no outcome."""
        known = [share == 1.0 for share in self._shares(tokens)]
        return all(one or end for one, end in zip(known, ended.tolist(), strict=True))

    def _shares(self, tokens: torch.Tensor) -> list[float]:
        """(texts,) shares of the references that the answers (texts, generated) contain."""
        answers = self._tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [
            sum(one.lower() in answer.lower() for one in own) / len(own)
            for answer, own in zip(answers, self._references, strict=True)
        ]


@dataclass
class OneByOne(BasePress):  # type: ignore[misc]
    """Compresses text by text, with a press that is right for one text only."""

    scores: list[Any]  # (texts, key heads, context) of each layer
    make: Any  # scores (1, key heads, context) of each layer → press

    def compress(self, module: Any, hidden: Any, keys: Any, values: Any, _: Any, kw: Any) -> Any:
        """Mask the keys that the press of each text masks."""
        parts = []
        for text in range(len(keys)):
            own = [one[text : text + 1] for one in self.scores]
            rows = (one[text : text + 1] for one in (hidden, keys, values))
            self.make(own).compress(module, *rows, None, kw)
            _, head, place = (one.to(keys.device) for one in module.masked_key_indices)
            parts.append(torch.stack([torch.full_like(head, text), head, place]))
        module.masked_key_indices = tuple(torch.cat(parts, dim=1))
        return keys, values


class _Replayed(KVzipPress):  # type: ignore[misc]
    """KVzip that only computes its scores."""

    known: Any = None  # (layers, 1, key heads, context)

    def compress_post(self, model: Any) -> None:
        self.known = self.score_val


@dataclass
class GlobalTop(BasePress):  # type: ignore[misc]
    """Keeps the keys with the largest scores of all layers and heads of a text, as KVzip does."""

    compression_ratio: float
    scores: list[Any] = field(default_factory=list)  # (texts, key heads, context) of each layer
    sink: int = 4
    _pruned: Any = None  # (layers, texts, key heads, context)

    def post_init_from_model(self, model: Any) -> None:
        """Choose the keys of all layers together."""
        scores = torch.stack(self.scores)  # (layers, texts, key heads, context)
        scores[..., : self.sink] = torch.inf
        flat = scores.transpose(0, 1).flatten(1)  # (texts, layers · key heads · context)
        number = int(flat.shape[1] * self.compression_ratio)
        pruned = torch.zeros_like(flat, dtype=torch.bool)
        pruned.scatter_(1, flat.topk(number, dim=1, largest=False).indices, True)
        layers, texts, *rest = scores.shape
        self._pruned = pruned.view(texts, layers, *rest).transpose(0, 1)

    def compress(self, module: Any, hidden: Any, keys: Any, values: Any, _: Any, kw: Any) -> Any:
        """Mask the keys with the smallest scores."""
        module.masked_key_indices = self._pruned[module.layer_idx].nonzero(as_tuple=True)
        return keys, values


def load_model(folder: Path, device: str) -> Any:
    """The model in float32."""
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="sdpa", dtype=torch.float32
    )
    config = model.config
    if getattr(config, "head_dim", None) is None:  # CriticalAdaKVPress needs it
        config.head_dim = config.hidden_size // config.num_attention_heads
    return model.to(device).eval()
