"""Load and check the inputs of a capture before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from qk_sniffer.config import CaptureConfig, CaptureSettings
from qk_sniffer.model.files import Note
from qk_sniffer.model.layout import ModelLayout, decoder_of, vocabulary_of
from qk_sniffer.model.loading import LoadedModel, load_model, load_tokenizer
from qk_sniffer.model.probing import probe
from qk_sniffer.model.tensor_parallel import head_vectors
from qk_sniffer.pipeline.ranks import Ranks
from qk_sniffer.pipeline.texts import Texts, open_texts, tokenize
from qk_sniffer.sampling.attended_keys import AttendedSampler, default_number
from qk_sniffer.sampling.heads import WantedLayer, choose_heads, require_pre_rope
from qk_sniffer.sampling.parallel_heads import ParallelHeads
from qk_sniffer.sampling.positions import PositionSampler


@dataclass(frozen=True)
class Setup:
    """The inputs of a capture, loaded and checked."""

    config: CaptureConfig
    texts: Texts
    tokenizer: Any
    loaded: LoadedModel
    layout: ModelLayout
    wanted: tuple[WantedLayer, ...]  # of this process
    dump_heads: tuple[WantedLayer, ...]  # of all processes
    sampler: PositionSampler
    max_length: int | None
    attended: AttendedSampler | None  # None if no keys are drawn by attention
    attended_layers: frozenset[int]  # layers of which keys can be drawn by attention

    @cached_property
    def decoder(self) -> Any:
        """The part of the model that is run."""
        return decoder_of(self.loaded.model)

    @cached_property
    def vocabulary(self) -> int:
        """The number of tokens that have an embedding."""
        return vocabulary_of(self.decoder)

    @property
    def batch_size(self) -> int:
        """Texts per batch: 1 if rotary angles would depend on the other texts of the batch."""
        return 1 if self.layout.rotary_tables else self.config.inference.batch_size

    @cached_property
    def special_tokens(self) -> str:
        """A message that names the special tokens of every text."""
        ids = tokenize(self.tokenizer, "a", None, self.config.tokenizer.add_special_tokens)
        begins = ids[:1] == [self.tokenizer.bos_token_id]
        ends = ids[-1:] == [self.tokenizer.eos_token_id]
        added = [name for name, flag in (("BOS", begins), ("EOS", ends)) if flag]
        return f"special tokens added: {' and '.join(added) or 'none'}"

    @property
    def padding(self) -> int:
        """The padding token; the tokens of a text do not attend to it."""
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        return next((int(token) for token in known if token is not None), 0)


def prepare(config: CaptureConfig, ranks: Ranks, note: Note = lambda text: None) -> Setup:
    """Load texts, tokenizer and model, and choose the heads.

    `note` is called with a message before each slow step.
    """
    texts = open_texts(config.dataset)
    tokenizer = load_tokenizer(config.tokenizer, config.model, note)
    loaded = load_model(config.model, ranks.device, note, ranks.world)
    part = layout = probe(loaded.model)
    if config.model.tensor_parallel:
        vectors = ranks.gather(head_vectors(decoder_of(loaded.model), part))
        q_heads = getattr(loaded.text_config, "num_attention_heads", None)
        parallel = ParallelHeads(vectors, ranks.rank, q_heads)
        layout = parallel.whole(part)
    wanted = wanted_heads(layout, config.capture)
    return Setup(
        config=config,
        texts=texts,
        tokenizer=tokenizer,
        loaded=loaded,
        layout=layout,
        wanted=parallel.own(wanted, part) if config.model.tensor_parallel else wanted,
        dump_heads=wanted,
        sampler=sampler_of(config.capture),
        max_length=config.tokenizer.max_length or loaded.context,
        attended=attended_sampler_of(config.capture, texts.total),
        attended_layers=attended_layers(wanted, part),
    )


def wanted_heads(layout: ModelLayout, settings: CaptureSettings) -> tuple[WantedLayer, ...]:
    """The heads to capture."""
    sample = settings.head_sampling
    wanted = choose_heads(
        layout,
        layers=settings.layers,
        heads=settings.heads,
        full_attention_only=settings.full_attention_only,
        sample=(sample.count, sample.seed) if sample else None,
        queries=settings.capture_queries,
        keys=settings.capture_keys,
    )
    if settings.capture_pre_rope:
        require_pre_rope(wanted)
    return wanted


def sampler_of(settings: CaptureSettings) -> PositionSampler:
    """The sampler of positions."""
    chosen = settings.sampler
    return PositionSampler(
        chosen.type,
        settings.min_bucket_size,
        chosen.base_rate,
        chosen.seed,
        chosen.key_base_rate,
    )


def attended_sampler_of(settings: CaptureSettings, texts: int | None) -> AttendedSampler | None:
    """How keys are drawn by attention, given the number of texts; None if they are not drawn."""
    number = settings.attended_keys
    if number is None:
        number = default_number(texts)
    if not number or not settings.attention or not settings.capture_keys:
        return None
    return AttendedSampler(number, settings.attended_queries, settings.sampler.seed)


def attended_layers(wanted: Sequence[WantedLayer], part: ModelLayout) -> frozenset[int]:
    """Layers of which keys can be drawn by attention.

    `part` is the layout in this process. Its logits must be known, and a key head must be in the
    process that has all its query heads.
    """
    found = [(layer.facts, part[layer.facts.layer]) for layer in wanted]
    return frozenset(
        whole.layer for whole, own in found if own.logits is not None and own.group == whole.group
    )
