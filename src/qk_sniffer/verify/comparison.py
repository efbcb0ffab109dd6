"""Whether captured queries and keys give the attention weights that the model itself computes.

One text is run with eager attention while a tap keeps every position. Softmax of q·k, recomputed
from what the tap kept, is then held against what the model's own attention function returned. It
agrees only if vectors, their order, the pairing of query and key heads, scale, window and the
rotary embedding are all what a dump says they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from qk_sniffer.model.hearing import AttentionCall, hearing_calls
from qk_sniffer.model.layout import LayerFacts, decoder_of, run_backbone
from qk_sniffer.notebook import Tap, tap
from qk_toolkit.errors import ConfigError, ToolkitError

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

TOLERANCES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""How far the model's own rounding may move a weight, per precision, where scores are small."""

_HIDDEN = -1e4  # a mask adds this or less to the score of a key that is not seen

_ROUNDING = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""How far, relative to a score, rounding may move it: half of that reaches a weight at most."""


@dataclass(frozen=True)
class LayerCheck:
    """How far a layer's recomputed weights are from the model's."""

    facts: LayerFacts
    difference: float  # the largest one; NaN where either side is
    head: int  # the query head it is found in
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether the difference is within the tolerance; NaN is not."""
        return self.difference <= self.tolerance


@dataclass(frozen=True)
class Verification:
    """The checked layers of a model, for one text."""

    layers: tuple[LayerCheck, ...]
    tokens: int
    dtype: str

    @property
    def worst(self) -> LayerCheck:
        """The layer that differs most."""
        return max(self.layers, key=lambda layer: (math.isnan(layer.difference), layer.difference))

    @property
    def failed(self) -> list[LayerCheck]:
        """Layers beyond the tolerance."""
        return [layer for layer in self.layers if not layer.agrees]

    @property
    def untested_windows(self) -> list[LayerFacts]:
        """Layers whose window or chunk holds the whole text, so that it hid nothing."""
        found = [layer.facts for layer in self.layers]
        return [facts for facts in found if facts.window and facts.window >= self.tokens]


def verify_model(
    model: nn.Module,
    tokens: Sequence[int],
    *,
    layers: Sequence[int] | None = None,
    tolerance: float | None = None,
) -> Verification:
    """Run the tokens through a model loaded with eager attention, and compare layer by layer.

    Without a tolerance each layer gets the one of the model's precision, see `allowed`.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    with tap(model, layers=layers) as tapped:
        facts = [layer.facts for layer in tapped.wanted]
        own = OwnWeights(facts)
        with hearing_calls(own.hear):
            _run(model, tokens)
    checks = tuple(_check(tapped, layer, own.of(layer), dtype, tolerance) for layer in facts)
    return Verification(checks, len(tokens), dtype)


def _run(model: nn.Module, tokens: Sequence[int]) -> None:
    try:
        run_backbone(decoder_of(model), torch.tensor([list(tokens)]))  # (1, n)
    except (RuntimeError, IndexError, ValueError) as error:  # memory that runs out among them
        raise ToolkitError(
            f"the model failed on the text ({len(tokens):,} tokens), try a smaller --max_length: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error


@dataclass(frozen=True)
class Heard:
    """What a layer's attention function returned, and what it was given beside q and k."""

    weights: Tensor  # (heads, n, n)
    sinks: Tensor | None  # (heads,) a score per head that takes its share and gives nothing
    bias: Tensor | None  # (heads or 1, n, n), added to the scores
    mask: Tensor | None  # (heads or 1, n, n), added as well; keys that are not seen are below -1e4


class OwnWeights:
    """Hears what the attention functions of some layers return in one forward."""

    def __init__(self, layers: Iterable[LayerFacts]) -> None:
        self._wanted = {(facts.module, facts.call): facts.layer for facts in layers}
        self._modules = {facts.module for facts in layers}
        self._calls: Counter[nn.Module] = Counter()
        self._heard: dict[int, Heard] = {}

    def hear(self, call: AttentionCall) -> None:
        """Ask the function itself, with the very arguments of the call."""
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
                f"layer {layer}: its attention function returns no weights to compare with; load "
                "the model with eager attention"
            )
        sinks = call.options.get("s_aux")  # (heads,)
        if isinstance(sinks, Tensor) and _sums_to_one(weights):  # they scale the output instead
            sinks = None
        mask = call.others[0] if call.others else call.options.get("attention_mask")
        self._heard[layer] = Heard(
            weights=weights[0].detach().cpu(),
            sinks=sinks.detach().cpu() if isinstance(sinks, Tensor) else None,
            bias=_first(call.options.get("position_bias")),
            mask=_first(mask),
        )

    def of(self, facts: LayerFacts) -> Heard:
        """What was heard of a layer; the tap refuses forwards in which it said nothing."""
        return self._heard[facts.layer]


def _first(tensor: object) -> Tensor | None:
    """Of a tensor (1, heads or 1, n, n) what belongs to the one text."""
    return tensor[0].detach().cpu() if isinstance(tensor, Tensor) and tensor.dim() == 4 else None


def _sums_to_one(weights: Tensor) -> bool:
    return bool((weights.float().sum(dim=-1) - 1).abs().max() < 1e-2)


def _check(
    tapped: Tap, facts: LayerFacts, heard: Heard, dtype: str, tolerance: float | None
) -> LayerCheck:
    """Compare one layer, a head at a time, so that memory holds one head's weights in float64."""
    whole = visible(facts, heard.weights.shape[-1])  # (n, n)
    differences, largest = [], 0.0
    for head in range(facts.q_heads):
        q = tapped.queries(facts.layer, head).vectors  # (n, d)
        k = tapped.keys(facts.layer, head // facts.group).vectors  # (n, d)
        seen, bias = whole, _of_head(heard.bias, head)  # (n, n) each
        if facts.selective:  # what the layer chose is in its mask
            seen, bias = _chosen(heard, head, whole)
        sink = -math.inf if heard.sinks is None else float(heard.sinks[head])
        with np.errstate(invalid="ignore"):  # a model that overflows shows as NaN in the table
            scores = attention_scores(q, k, seen, scale_of(facts), facts.softcap, bias)  # (n, n)
            ours, theirs = softmax(scores, sink), _array(heard.weights[head])  # (n, n) each
        differences.append(float(np.max(np.abs(ours - theirs))))
        largest = max(largest, float(np.max(np.abs(scores[seen]))))
    worst = int(np.argmax(differences))  # the first NaN, where there is one
    limit = allowed(dtype, largest) if tolerance is None else tolerance
    return LayerCheck(facts, differences[worst], worst, limit)


def _of_head(tensor: Tensor | None, head: int) -> Floats | None:
    return None if tensor is None else _array(tensor[head % len(tensor)])


def _chosen(heard: Heard, head: int, seen: Flags) -> tuple[Flags, Floats | None]:
    """Keys that the mask of a selective layer lets through, and what it adds to their scores."""
    mask = _of_head(heard.mask, head)  # (n, n)
    if mask is None:
        return seen, None
    chosen = seen & (mask > _HIDDEN)
    return chosen, np.where(chosen, mask, 0.0)


def allowed(dtype: str, largest_score: float) -> float:
    """How far weights may differ by rounding alone: large scores are rounded by more."""
    known = dtype if dtype in TOLERANCES else "float32"
    return max(TOLERANCES[known], _ROUNDING[known] * largest_score / 2)


def visible(facts: LayerFacts, length: int) -> Flags:
    """Which key (column) a query (row) sees, by what the layer's layout says."""
    query, key = np.arange(length)[:, None], np.arange(length)[None]  # (n, 1), (1, n)
    seen: Flags = key <= query  # (n, n)
    if facts.window is None:
        return seen
    if facts.type == "chunked_attention":
        seen &= query // facts.window == key // facts.window
    else:
        seen &= query - key < facts.window
    return seen


def scale_of(facts: LayerFacts) -> float:
    """The factor of q·k; attention's own default where the call gives none."""
    return facts.width**-0.5 if facts.scale is None else facts.scale


def attention_scores(
    queries: npt.NDArray[np.floating],
    keys: npt.NDArray[np.floating],
    seen: Flags,
    scale: float,
    softcap: float | None = None,
    bias: Floats | None = None,
) -> Floats:
    """Scores (n, n) of one head in float64; -inf where a query (row) does not see a key."""
    scores = queries.astype(np.float64) @ keys.astype(np.float64).T * scale  # (n, n)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    return np.where(seen, scores, -np.inf)


def softmax(scores: Floats, sink: float = -math.inf) -> Floats:
    """Weights (n, n) of each row; a sink takes its share of every row and is left out."""
    top = np.maximum(scores.max(axis=1, keepdims=True), sink)  # (n, 1)
    powers = np.exp(scores - top)  # (n, n)
    weights: Floats = powers / (powers.sum(axis=1, keepdims=True) + np.exp(sink - top))
    return weights


def _array(tensor: Tensor) -> Floats:
    return tensor.double().numpy()
