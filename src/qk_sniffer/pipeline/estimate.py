"""What a capture would keep and compute, from the model's shape and the first texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from qk_dump.attention_columns import MASS_BINS, MASSES, SINK_TOKENS
from qk_dump.layout import Kind
from qk_dump.received_columns import INCLUSION, RECEIVED
from qk_sniffer.config import CaptureConfig, ModelSettings
from qk_sniffer.model.gguf import conversion_time, converted_model, gguf_path
from qk_sniffer.model.layout import ModelLayout, decoder_of, text_config, vocabulary_of
from qk_sniffer.model.loading import context_of, empty_model, load_tokenizer, zero_weight_model
from qk_sniffer.model.probe_forward import ForwardFailedError
from qk_sniffer.model.probing import WeightsNeededError, probe
from qk_sniffer.pipeline.encoding import TextEncoder
from qk_sniffer.pipeline.expected_heads import optional_columns
from qk_sniffer.pipeline.setup import (
    attended_sampler_of,
    auto_choice,
    number_of_texts,
    sampler_of,
    wanted_heads,
)
from qk_sniffer.pipeline.synthetic import open_source
from qk_sniffer.pipeline.work_folder import plan_in
from qk_sniffer.sampling.attended_keys import AttendedSampler
from qk_sniffer.sampling.bucket_counts import (
    TEXTS_LOOKED_AT,
    AutoChoice,
    bucket_counts,
    recorded_choice,
)
from qk_sniffer.sampling.heads import KINDS, WantedLayer
from qk_sniffer.sampling.positions import PositionSampler
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path
from qk_toolkit.urls import is_remote

_BYTES = {"float32": 4, "float16": 2}
_OTHER_COLUMNS = 16  # bytes of bucket, example, position and window in a row
_OPTIONAL_COLUMN = 4  # bytes; an inclusion has twice as many


@dataclass(frozen=True)
class Estimate:
    """What a capture would keep, extrapolated from the first texts."""

    layout: ModelLayout
    wanted: tuple[WantedLayer, ...]
    texts: int | None  # None when the number is not known
    looked_at: int
    tokens_per_text: float  # mean
    shortest: int  # tokens, of texts that are not empty
    longest: int  # tokens
    empty: int  # texts without tokens
    rows_per_text: dict[Kind, float]  # of one query head, and of one key head
    value_bytes: int
    columns: dict[Kind, tuple[str, ...]]  # the optional ones
    operations_per_text: float  # floating-point operations of a forward, on average
    choice: AutoChoice | None = None  # of the sampler auto
    few_rows: str | None = None  # in which buckets too few queries are expected
    attended_per_text: float | None = None  # keys of a key head drawn by attention; None if off
    conversion: str | None = None  # how long the capture takes to convert the GGUF file first

    @property
    def heads(self) -> int:
        """Heads that would be written; keys drawn by attention have files of their own."""
        return sum(len(layer.q) + len(layer.k) for layer in self.wanted)

    @property
    def bytes_per_text(self) -> float:
        """Bytes of all heads' rows, before compression."""
        return sum(
            len(layer.heads(kind)) * self._rows_of_head(kind) * self._row_bytes(layer, kind)
            for layer in self.wanted
            for kind in KINDS
        )

    def _row_bytes(self, layer: WantedLayer, kind: Kind) -> int:
        """Bytes of a row."""
        lists = {MASSES: MASS_BINS, RECEIVED: layer.facts.group, INCLUSION: 2}
        values = sum(lists.get(name, 1) for name in self.columns[kind])
        vector = layer.facts.width * self.value_bytes
        return vector + _OTHER_COLUMNS + _OPTIONAL_COLUMN * values

    def _rows_of_head(self, kind: Kind) -> float:
        """Rows of one head per text, with keys drawn by attention."""
        drawn = self.attended_per_text if kind == "k" else None
        return self.rows_per_text[kind] + (drawn or 0.0)

    @property
    def rows_of_all_heads(self) -> float:
        """Rows of all heads per text, without keys drawn by attention."""
        return sum(
            len(layer.heads(kind)) * self.rows_per_text[kind]
            for layer in self.wanted
            for kind in KINDS
        )

    @property
    def attended_of_all_heads(self) -> float:
        """Keys of all key heads per text that are drawn by attention."""
        return sum(len(layer.k) for layer in self.wanted) * (self.attended_per_text or 0.0)


def estimate(config: CaptureConfig) -> Estimate:
    """Look at the model's shape, without its weights, and at the first texts."""
    texts = open_source(config.dataset, first_only=True)
    tokenizer = load_tokenizer(config.tokenizer, config.model, convert_now=False)
    try:
        model = empty_model(config.model)
        layout = probe(model)
    except (ForwardFailedError, WeightsNeededError, RuntimeError):  # its code looks at values
        model = zero_weight_model(config.model)
        layout = probe(model)
    max_length = config.tokenizer.max_length or context_of(text_config(model))
    vocabulary = vocabulary_of(decoder_of(model))
    encoder = TextEncoder(config, tokenizer, max_length, vocabulary)
    choice, begun = None, None
    if not (config.overwrite or is_remote(config.data_root)):
        begun = plan_in(user_path(config.data_root))
    if config.capture.sampler.type == "auto":
        choice = recorded_choice(begun) or auto_choice(texts, encoder)
    sampler = sampler_of(config.capture, choice)
    lengths = [len(encoder.tokens(text)) for text in islice(texts, TEXTS_LOOKED_AT)]
    if not lengths:
        raise ConfigError(f"dataset.path: {config.dataset.path}: holds no texts")
    number = number_of_texts(config, texts)
    attended = attended_sampler_of(config.capture, number, begun)
    return Estimate(
        layout=layout,
        wanted=wanted_heads(layout, config.capture),
        texts=texts.total,
        looked_at=len(lengths),
        tokens_per_text=sum(lengths) / len(lengths),
        shortest=min(filter(None, lengths), default=0),
        longest=max(lengths),
        empty=lengths.count(0),
        rows_per_text={
            kind: sum(sampler.expected_rows(length, kind) for length in lengths) / len(lengths)
            for kind in KINDS
        },
        value_bytes=_BYTES[config.output.vector_dtype],
        columns={
            kind: optional_columns(config.capture, kind, received=attended is not None)
            for kind in KINDS
        },
        operations_per_text=_operations(decoder_of(model), layout, lengths) / len(lengths),
        choice=choice,
        few_rows=_few_rows(sampler, lengths, number if config.capture.capture_queries else None),
        attended_per_text=_attended_per_text(attended, sampler, lengths),
        conversion=_conversion(config.model),
    )


def _few_rows(sampler: PositionSampler, lengths: Sequence[int], texts: int | None) -> str | None:
    """A message about buckets with too few queries, if all texts are like the first ones."""
    if texts is None:
        return None
    return bucket_counts(sampler, lengths, max(1.0, texts / len(lengths))).warning()


def _attended_per_text(
    attended: AttendedSampler | None, sampler: PositionSampler, lengths: Sequence[int]
) -> float | None:
    """Keys of a key head that are drawn by attention and not in the base sample, on average.

    The share of the base sample is that of all positions of a text.
    """
    if attended is None:
        return None
    total = 0.0
    for length in filter(None, lengths):
        drawn = min(length, attended.number + SINK_TOKENS)
        total += drawn * (1 - sampler.expected_rows(length, "k") / length)
    return total / len(lengths)


def _operations(decoder: Any, layout: ModelLayout, lengths: Sequence[int]) -> float:
    """Floating-point operations of forwards of texts with these lengths.

    Every weight takes two per token, except those of the embedding; of a mixture of experts all
    weights are counted, so it is too many. A pair of a query and a key that it sees takes four per
    dimension: half for the logit, half for the weighted sum of values.
    """
    embedding = {id(one) for one in decoder.get_input_embeddings().parameters()}
    weights: int = sum(one.numel() for one in decoder.parameters() if id(one) not in embedding)
    total = 2.0 * weights * sum(lengths)
    for layer in layout.layers:
        for length in lengths:
            seen = min(layer.window or length, length)  # keys of a late query
            pairs = length * seen - seen**2 / 2
            total += 4.0 * layer.q_heads * layer.width * pairs
    return total


def _conversion(model: ModelSettings) -> str | None:
    """How long the conversion of a GGUF file may take; None if none is needed."""
    if model.gguf_file is None or converted_model(model, convert_now=False) != model:
        return None
    return conversion_time(gguf_path(model))
