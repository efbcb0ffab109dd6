"""Compare attention weights from captured queries and keys with the weights of the model.

One text is run with eager attention while a tap keeps every position. Softmax of q·k is recomputed
from these queries and keys and compared with the weights that the model's attention function
returned. Both agree only if the vectors, their order, the pairing of query and key heads, scale,
window and rotary embedding are all correct. The attention columns of the queries are compared with
sums of the weights that the function applies to values. Then the text is run at shifted positions,
and its queries and keys are compared with what the rotary records of the layers predict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from qk_dump.columns import LSE
from qk_dump.visible import first_visible
from qk_sniffer.engines.engine import LayerFacts
from qk_sniffer.engines.hf.attention_hooks import AttentionCall, attention_hook
from qk_sniffer.engines.hf.layout import HfLayout, decoder_of, run_backbone
from qk_sniffer.engines.hf.logits import HIDDEN_BELOW, allowed, mask_of, sinks_of
from qk_sniffer.engines.hf.rotary import RotationCheck, check_rotations
from qk_sniffer.notebook import Tap, tap
from qk_sniffer.verify.attention_sums import captured_sums, weight_sums
from qk_toolkit.arrays import Array, Bools
from qk_toolkit.errors import ConfigError, ToolkitError
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

    @property
    def wrong_rotations(self) -> list[LayerFacts]:
        """The layers whose queries and keys do not turn as their rotary record says."""
        return [
            layer.facts for layer in self.layers if layer.rotation and not layer.rotation.agrees
        ]

    @property
    def without_attention(self) -> list[LayerFacts]:
        """The layers whose attention columns are null."""
        return [layer.facts for layer in self.layers if layer.attention is None]

    @property
    def untested_windows(self) -> list[LayerFacts]:
        """The layers whose window or chunk is not shorter than the text, so that it hid no key."""
        found = [layer.facts for layer in self.layers]
        return [facts for facts in found if facts.window and facts.window >= self.tokens]


def verify_model(
    model: nn.Module,
    tokens: Sequence[int],
    *,
    layers: Sequence[int] | None = None,
    tolerance: float | None = None,
) -> Verification:
    """Run the tokens through a model loaded with eager attention, and compare every layer.

    The default tolerance is `allowed` for the model's precision and the scores of the layer.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    with tap(model, layers=layers, attention=True) as tapped:
        facts = [layer.facts for layer in tapped.plan.wanted]
        recorder = AttentionRecorder(tapped.layout, facts, tokens)
        with attention_hook(recorder.record):
            _run(model, tokens)
    rotations = check_rotations(decoder_of(model), tapped.layout, tokens)
    checks = (_check(tapped, layer, recorder.of(layer), dtype, tolerance) for layer in facts)
    return Verification(
        tuple(replace(check, rotation=rotations.get(check.facts.layer)) for check in checks),
        len(tokens),
        dtype,
    )


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


@dataclass(frozen=True)
class RecordedAttention:
    """The weights that a layer's attention function returned, and its other arguments."""

    weights: Tensor  # (heads, n, n)
    sinks: Tensor | None  # (heads,) an extra score per head in the softmax
    bias: Tensor | None  # (heads or 1, n, n), added to the scores
    mask: Tensor | None  # (heads or 1, n, n), also added; hidden keys are below -1e4
    sums: Array  # (heads, n, 6 + bins) of the weights that are applied to values


class AttentionRecorder:
    """Records the attention weights of some layers in one forward."""

    def __init__(
        self, layout: HfLayout, layers: Iterable[LayerFacts], tokens: Sequence[int]
    ) -> None:
        self._tokens = tokens
        places = {facts.layer: layout.places[facts.layer] for facts in layers}
        self._wanted = {(place.module, place.call): layer for layer, place in places.items()}
        self._modules = {place.module for place in places.values()}
        self._calls: Counter[nn.Module] = Counter()
        self._heard: dict[int, RecordedAttention] = {}

    def record(self, call: AttentionCall) -> None:
        """Call the attention function with the arguments of the call, and keep its weights."""
        if call.module not in self._modules or not call.is_self_attention:
            return
        layer = self._wanted.get((call.module, self._calls[call.module]))
        self._calls[call.module] += 1
        if layer is None:
            return
        result = call.function(
            call.module, call.query, call.key, call.value, *call.others, **call.options
        )
        weights = result[1] if isinstance(result, tuple) and len(result) > 1 else None
        if not isinstance(weights, Tensor):
            raise ConfigError(
                f"layer {layer}: its attention function returns no weights; load the model with "
                "eager attention"
            )
        sinks = sinks_of(call)  # (heads,)
        if _sums_to_one(weights):  # sinks are not in these weights
            sinks = None
        self._heard[layer] = RecordedAttention(
            weights=weights[0].detach().cpu(),
            sinks=None if sinks is None else sinks.cpu(),
            bias=_first(call.options.get("position_bias")),
            mask=_first(mask_of(call)),
            sums=weight_sums(call, self._tokens),
        )

    def of(self, facts: LayerFacts) -> RecordedAttention:
        """The record of a layer."""
        return self._heard[facts.layer]


def _first(tensor: object) -> Tensor | None:
    """The only text of a tensor (1, heads or 1, n, n)."""
    return tensor[0].detach().cpu() if isinstance(tensor, Tensor) and tensor.dim() == 4 else None


def _sums_to_one(weights: Tensor) -> bool:
    return bool((weights.float().sum(dim=-1) - 1).abs().max() < 1e-2)


def _check(
    tapped: Tap, facts: LayerFacts, recorded: RecordedAttention, dtype: str, tolerance: float | None
) -> LayerCheck:
    """Compare one layer, one head at a time to limit the memory."""
    causal = visible(facts, recorded.weights.shape[-1])  # (n, n)
    differences, largest = [], 0.0
    for head in range(facts.q_heads):
        q = tapped.queries(facts.layer, head).vectors  # (n, d)
        k = tapped.keys(facts.layer, head // facts.group).vectors  # (n, d)
        seen, bias = causal, _of_head(recorded.bias, head)  # (n, n) each
        if facts.selective:  # the mask holds the selected keys
            seen, bias = _selected_keys(recorded, head, causal)
        sink = -math.inf if recorded.sinks is None else float(recorded.sinks[head])
        with np.errstate(invalid="ignore"):  # an overflow of the model is NaN in the table
            scores = attention_scores(q, k, seen, facts.scale, facts.softcap, bias)  # (n, n)
            difference = softmax(scores, sink) - _array(recorded.weights[head])  # (n, n)
        differences.append(float(np.max(np.abs(difference))))
        largest = max(largest, float(np.max(np.abs(scores[seen]))))
    worst = int(np.argmax(differences))  # the first NaN, if there is one
    limit = allowed(dtype, largest) if tolerance is None else tolerance
    return LayerCheck(facts, differences[worst], worst, limit, _attention(tapped, facts, recorded))


def _attention(tapped: Tap, facts: LayerFacts, recorded: RecordedAttention) -> float | None:
    """The largest difference of the attention columns of a layer; None if they are not known."""
    differences = []
    for head in range(facts.q_heads):
        found = tapped.queries(facts.layer, head)
        if np.isnan(found[LSE]).all() and facts.logits is None:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            difference = captured_sums(found) - recorded.sums[head]  # (n, 6 + bins)
        differences.append(np.max(np.abs(difference)))  # NaN if there is one
    return float(np.max(differences))


def _of_head(tensor: Tensor | None, head: int) -> Array | None:
    return None if tensor is None else _array(tensor[head % len(tensor)])


def _selected_keys(
    recorded: RecordedAttention, head: int, seen: Bools
) -> tuple[Bools, Array | None]:
    """The keys that the mask of a selective layer does not hide, and their bias."""
    mask = _of_head(recorded.mask, head)  # (n, n)
    if mask is None:
        return seen, None
    selected = seen & (mask > HIDDEN_BELOW)
    return selected, np.where(selected, mask, 0.0)


def visible(facts: LayerFacts, length: int) -> Bools:
    """(n, n) which keys (columns) a query (row) sees, by the layer's type and window."""
    query, key = np.arange(length), np.arange(length)[None]  # (n,), (1, n)
    first = first_visible(query, facts.window, facts.chunked)  # (n,)
    seen: Bools = (key <= query[:, None]) & (key >= first[:, None])
    return seen


def attention_scores(
    queries: npt.NDArray[np.floating],
    keys: npt.NDArray[np.floating],
    seen: Bools,
    scale: float,
    softcap: float | None = None,
    bias: Array | None = None,
) -> Array:
    """Scores (n, n) of one head in float64; -inf if a query (row) does not see a key (column)."""
    scores = queries.astype(np.float64) @ keys.astype(np.float64).T * scale  # (n, n)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    return np.where(seen, scores, -np.inf)


def softmax(scores: Array, sink: float = -math.inf) -> Array:
    """Weights (n, n); each row is normalised together with the sink, which is not returned."""
    top = np.maximum(scores.max(axis=1, keepdims=True), sink)  # (n, 1)
    powers = np.exp(scores - top)  # (n, n)
    weights: Array = powers / (powers.sum(axis=1, keepdims=True) + np.exp(sink - top))
    return weights


def _array(tensor: Tensor) -> Array:
    return tensor.double().numpy()
