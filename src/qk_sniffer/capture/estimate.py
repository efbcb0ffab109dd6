"""What a capture would keep and compute, from the model's shape and the first texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from qk_dump.columns import SINK_TOKENS
from qk_dump.heads import Kind
from qk_sniffer.capture.dump_heads import bytes_of_rows
from qk_sniffer.capture.refusals import refuse_run_folder
from qk_sniffer.capture.setup import (
    attended_sampler_of,
    auto_choice,
    number_of_texts,
    sampler_of,
)
from qk_sniffer.capture.work_folder import plan_in
from qk_sniffer.config import CaptureConfig, ModelSettings
from qk_sniffer.engines.engine import ModelLayout
from qk_sniffer.engines.hf.gguf import conversion_time, converted_model, gguf_path
from qk_sniffer.engines.hf.layout import decoder_of, text_config, vocabulary_of
from qk_sniffer.engines.hf.loading import (
    context_of,
    load_model_config,
    load_tokenizer,
    precision_of,
)
from qk_sniffer.engines.hf.unloaded import shape_of
from qk_sniffer.rows.plan import RowPlan
from qk_sniffer.sampling.bucket_counts import (
    TEXTS_LOOKED_AT,
    AutoChoice,
    bucket_counts,
    recorded_choice,
)
from qk_sniffer.sampling.heads import KINDS, WantedLayer, choose_heads
from qk_sniffer.sampling.positions import PositionSampler
from qk_sniffer.texts.encoding import TextEncoder
from qk_sniffer.texts.synthetic import TextSource, open_source
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path
from qk_toolkit.urls import is_remote


@dataclass(frozen=True)
class Estimate:
    """What a capture would keep, extrapolated from the first texts."""

    layout: ModelLayout
    plan: RowPlan
    half: bool  # vectors are stored as float16
    texts: int | None  # None when the number is not known
    looked_at: int
    tokens_per_text: float  # mean
    shortest: int  # tokens, of texts that are not empty
    longest: int  # tokens
    empty: list[object]  # ids of texts without tokens
    rows_per_text: dict[Kind, float]  # of one query head, and of one key head
    operations_per_text: float  # floating-point operations of a forward, on average
    choice: AutoChoice | None = None  # of the sampler auto
    few_rows: str | None = None  # in which buckets too few queries are expected
    attended_per_text: float | None = None  # keys of a key head drawn by attention; None if off
    conversion: str | None = None  # how long the capture takes to convert the GGUF file first
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes in vLLM, by their use

    @property
    def wanted(self) -> tuple[WantedLayer, ...]:
        """The heads that would be written."""
        return self.plan.wanted

    @property
    def heads(self) -> int:
        """Heads that would be written; keys drawn by attention have files of their own."""
        return sum(len(layer.q) + len(layer.k) for layer in self.wanted)

    @property
    def bytes_per_text(self) -> float:
        """Bytes of all heads' rows, before compression."""
        drawn = {"k": self.attended_per_text or 0.0}
        rows = {kind: n + drawn.get(kind, 0.0) for kind, n in self.rows_per_text.items()}
        return bytes_of_rows(self.plan, rows, half=self.half)

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


def encoder_of(config: CaptureConfig) -> tuple[TextSource, TextEncoder]:
    """The texts of a capture, and what turns them into tokens. Weights are not loaded."""
    return _opened(config)[:2]


def _opened(config: CaptureConfig) -> tuple[TextSource, TextEncoder, Any, ModelLayout]:
    texts = open_source(config.dataset)
    tokenizer = load_tokenizer(config.tokenizer, config.model, convert_now=False)
    model, layout = shape_of(config.model)
    max_length = config.tokenizer.max_length or context_of(text_config(model))
    vocabulary = vocabulary_of(decoder_of(model))
    return texts, TextEncoder(config, tokenizer, max_length, vocabulary), model, layout


def estimate(config: CaptureConfig) -> Estimate:
    """Look at the model's shape, without its weights, and at the first texts."""
    if not is_remote(config.data_root):
        refuse_run_folder(user_path(config.data_root))
    texts, encoder, model, layout = _opened(config)
    choice, begun = None, None
    if not (config.overwrite or is_remote(config.data_root)):
        begun = plan_in(user_path(config.data_root))
    if config.capture.sampler.type == "auto":
        choice = recorded_choice(begun) or auto_choice(texts, encoder)
    looked_at = list(islice(texts, TEXTS_LOOKED_AT))
    lengths = [len(encoder.tokens(text)) for text in looked_at]
    if not lengths:
        raise ConfigError(f"dataset.path: {config.dataset.path}: holds no texts")
    number = number_of_texts(config, texts)
    sampler, settings = sampler_of(config.capture, choice), config.capture
    wanted = choose_heads(layout, settings)
    attended = attended_sampler_of(settings, number, begun)
    plan = RowPlan(wanted, sampler, settings.attention, settings.tokens, attended)
    return Estimate(
        layout=layout,
        plan=plan,
        half=config.output.vector_dtype == "float16",
        texts=texts.total,
        looked_at=len(lengths),
        tokens_per_text=sum(lengths) / len(lengths),
        shortest=min(filter(None, lengths), default=0),
        longest=max(lengths),
        empty=[text.original_id for text, n in zip(looked_at, lengths, strict=True) if not n],
        rows_per_text={
            kind: sum(sampler.expected_rows(length, kind) for length in lengths) / len(lengths)
            for kind in KINDS
        },
        operations_per_text=_operations(decoder_of(model), layout, lengths) / len(lengths),
        choice=choice,
        few_rows=_few_rows(sampler, lengths, number if settings.capture_queries else None),
        attended_per_text=_attended_per_text(plan, lengths),
        conversion=_conversion(config.model),
        memory=_memory_in_vllm(config, model, layout, plan, max(lengths)),
    )


def _memory_in_vllm(
    config: CaptureConfig, model: Any, layout: ModelLayout, plan: RowPlan, longest: int
) -> dict[str, int]:
    """Bytes that vLLM needs, by their use; nothing for other engines."""
    if config.engine != "vllm":
        return {}
    from qk_sniffer.vllm.memory import memory_needs

    dtype = precision_of(config.model, load_model_config(config.model))
    return memory_needs(
        config,
        layout,
        plan,
        weights=sum(one.numel() for one in model.parameters()),
        longest=longest,
        element=dtype.itemsize,
    )


def _few_rows(sampler: PositionSampler, lengths: Sequence[int], texts: int | None) -> str | None:
    """A message about buckets with too few queries, if all texts are like the first ones."""
    if texts is None:
        return None
    return bucket_counts(sampler, lengths, max(1.0, texts / len(lengths))).warning()


def _attended_per_text(plan: RowPlan, lengths: Sequence[int]) -> float | None:
    """Keys of a key head that are drawn by attention and not in the base sample, on average.

    The share of the base sample is that of all positions of a text.
    """
    if plan.attended is None:
        return None
    total = 0.0
    for length in filter(None, lengths):
        drawn = min(length, plan.attended.number + SINK_TOKENS)
        total += drawn * (1 - plan.sampler.expected_rows(length, "k") / length)
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
