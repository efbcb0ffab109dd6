"""What a capture would keep and compute, from the model's shape and the first texts.

The time of a forward is measured on this machine with the first layers of the model, which get
zeros as weights, over a text of the length of the capture, or a part of it. It is scaled by the
number of floating-point operations.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch import nn

from qk_dump.columns import SINK_TOKENS
from qk_dump.heads import Kind
from qk_sniffer.capture.folder import plan_in
from qk_sniffer.capture.ranks import Ranks
from qk_sniffer.capture.refusals import refuse_other_settings, refuse_used_folder
from qk_sniffer.capture.setup import Setup, number_of_texts, prepare
from qk_sniffer.config import CaptureConfig, ModelSettings
from qk_sniffer.engines.engine import LayerFacts
from qk_sniffer.engines.hf.layer_numbers import outermost_lists
from qk_sniffer.engines.hf.layout import decoder_of, run_backbone
from qk_sniffer.engines.hf.loading import (
    LoadedModel,
    built_model,
    load_model_config,
    loading_errors,
    precision_of,
)
from qk_sniffer.rows.plan import bytes_of_rows
from qk_sniffer.sampling.bucket_counts import TEXTS_LOOKED_AT, bucket_counts
from qk_sniffer.sampling.heads import KINDS
from qk_sniffer.texts.encoding import Cut
from qk_sniffer.texts.sources import Text
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path
from qk_toolkit.raised_in import is_our_bug
from qk_toolkit.urls import is_remote

_LAYERS = 2
_TIMES = 5  # the first forward also compiles and allocates, and others may share the machine
_TOKENS = {"cpu": 512, "cuda": 4096}  # at most, of a forward on such a device
_OTHER_DEVICES = 512
_OF_VALUES = {"random_weights": False, "random_seed": 0, "device_map": None}
"""Settings on which the time does not depend."""


@dataclass(frozen=True)
class Estimate:
    """What a capture would keep, extrapolated from the first texts."""

    setup: Setup
    first: Sequence[Text]  # the texts that were looked at
    lengths: Sequence[int]  # their tokens
    cut: Cut | None = None  # how much of them is used

    @property
    def texts(self) -> int | None:
        """The number of texts; None if it is not known."""
        return self.setup.texts.total

    @property
    def tokens_per_text(self) -> float:
        """The mean number of tokens."""
        return sum(self.lengths) / len(self.lengths)

    @property
    def notes(self) -> list[str]:
        """What of the dataset is left out, and how much of long texts is used."""
        return [*self.setup.texts.notes, *([] if self.cut is None else [self.cut.describe()])]

    @property
    def rows_per_text(self) -> dict[Kind, float]:
        """Rows of one query head, and of one key head, without keys drawn by attention."""
        expected = self.setup.row_plan.sampler.expected_rows
        return {
            kind: sum(expected(length, kind) for length in self.lengths) / len(self.lengths)
            for kind in KINDS
        }

    @property
    def attended_per_text(self) -> float | None:
        """Keys of a key head drawn by attention that are not in the base sample; None if off.

        The share of the base sample is that of all positions of a text.
        """
        sampler, attended = self.setup.row_plan.sampler, self.setup.row_plan.attended
        if attended is None:
            return None
        total = 0.0
        for length in filter(None, self.lengths):
            drawn = min(length, attended.number + SINK_TOKENS)
            total += drawn * (1 - sampler.expected_rows(length, "k") / length)
        return total / len(self.lengths)

    @property
    def bytes_per_text(self) -> float:
        """Bytes of all heads' rows, before compression."""
        rows = self.rows_per_text
        rows["k"] += self.attended_per_text or 0.0
        return bytes_of_rows(self.setup.row_plan, rows, half=self.setup.half)

    @property
    def rows_of_all_heads(self) -> float:
        """Rows of all heads per text, without keys drawn by attention."""
        rows = self.rows_per_text
        return sum(
            len(layer.heads(kind)) * rows[kind]
            for layer in self.setup.row_plan.wanted
            for kind in KINDS
        )

    @property
    def attended_of_all_heads(self) -> float:
        """Keys of all key heads per text that are drawn by attention."""
        return sum(len(layer.k) for layer in self.setup.row_plan.wanted) * (
            self.attended_per_text or 0.0
        )

    @property
    def few_rows(self) -> str | None:
        """A message about buckets with too few queries, if all texts are like the first ones."""
        config = self.setup.config
        number = number_of_texts(config, self.setup.texts)
        if number is None or not config.capture.capture_queries:
            return None
        times = max(1.0, number / len(self.lengths))
        return bucket_counts(self.setup.row_plan.sampler, self.lengths, times).warning()

    @property
    def operations_per_text(self) -> float:
        """Floating-point operations of a forward, on average."""
        weights = weights_of(decoder_of(self._model))
        total = operations(weights, self.setup.loaded.layout.layers, self.lengths)
        return total / len(self.lengths)

    @property
    def seconds(self) -> float | None:
        """Time of the forwards of all texts on this machine, from one that is measured.

        None if it is not known: texts are streamed, or a part of the model cannot run alone.
        """
        if self.texts is None:
            return None
        settings, layers = self.setup.config.model, self.setup.loaded.layout.layers
        device = "cpu" if settings.device_map == "cpu" else Ranks().device
        try:
            found = speed(settings, layers, device, round(self.tokens_per_text))
        except Exception as error:  # of any code of the model, which may run as a whole
            if is_our_bug(error):
                raise
            return None
        return self.operations_per_text * self.texts / found

    @property
    def _model(self) -> Any:
        assert isinstance(self.setup.loaded, LoadedModel)
        return self.setup.loaded.model


def estimate(config: CaptureConfig) -> Estimate:
    """Look at the model's shape, without its weights, and at the first texts."""
    begun = None
    if not is_remote(config.data_root):
        folder = user_path(config.data_root)
        refuse_used_folder(folder, config.dataset.path)
        begun = None if config.overwrite else plan_in(folder)
        if begun is not None:
            refuse_other_settings(folder, config, begun)
    setup = prepare(config, Ranks(), begun=begun, weights=False)
    first = list(islice(setup.texts, TEXTS_LOOKED_AT))
    if not first:
        raise ConfigError(f"dataset.path: {config.dataset.path}: holds no texts")
    lengths = [len(setup.encoder.tokens(text)) for text in first]
    cut = setup.encoder.cut(first)
    return Estimate(setup, first, lengths, cut)


def weights_of(decoder: Any) -> int:
    """The number of weights, without those of the embedding."""
    embedding = {id(one) for one in decoder.get_input_embeddings().parameters()}
    return sum(one.numel() for one in decoder.parameters() if id(one) not in embedding)


def operations(weights: int, layers: Sequence[LayerFacts], lengths: Sequence[int]) -> float:
    """Floating-point operations of the forwards of texts of these lengths.

    Every weight takes two per token; of a mixture of experts all weights are counted, so it is too
    many. A pair of a query and a key that it sees takes four per dimension: half for the logit,
    half for the weighted sum of values.
    """
    total = 2.0 * weights * sum(lengths)
    for layer in layers:
        for length in lengths:
            seen = min(layer.window or length, length)  # keys of a late query
            total += 4.0 * layer.q_heads * layer.width * (length * seen - seen**2 / 2)
    return total


def speed(settings: ModelSettings, layers: Sequence[LayerFacts], device: str, tokens: int) -> float:
    """Operations per second of a forward of this model over a text of so many tokens."""
    length = max(1, min(tokens, _TOKENS.get(device.partition(":")[0], _OTHER_DEVICES)))
    shape = settings.model_copy(update=_OF_VALUES).model_dump_json()
    weights, seconds = _measured(shape, device, length)
    return operations(weights, layers[:_LAYERS], [length]) / seconds


@lru_cache(maxsize=64)
def _measured(shape: str, device: str, tokens: int) -> tuple[int, float]:
    """The weights of the first layers, and the seconds of a forward over a text."""
    decoder = _first_layers(ModelSettings.model_validate_json(shape), device)
    text = torch.zeros(1, tokens, dtype=torch.int64)  # (1, n)
    seconds = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        run_backbone(decoder, text)
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return weights_of(decoder), min(seconds)


def _first_layers(settings: ModelSettings, device: str) -> nn.Module:
    """The decoder with its first layers alone, on a device."""
    with loading_errors("model.name", settings.name):
        config = load_model_config(settings)
        with torch.device("meta"):
            model = built_model(settings, config, precision_of(settings, config))
    decoder = decoder_of(model.eval())
    for layers in outermost_lists(decoder):
        del layers[_LAYERS:]
    decoder.to_empty(device=device)
    for tensor in (*decoder.parameters(), *decoder.buffers()):
        tensor.data.zero_()
    return decoder
