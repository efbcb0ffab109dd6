"""Load and check the inputs of a capture before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from qk_sniffer.capture.ranks import Ranks
from qk_sniffer.config import CaptureConfig, CaptureSettings
from qk_sniffer.engines.engine import rotary_problems
from qk_sniffer.engines.hf.layout import decoder_of
from qk_sniffer.engines.hf.loading import LoadedModel, load_model, load_tokenizer
from qk_sniffer.engines.hf.unloaded import shape_of
from qk_sniffer.rows.plan import RowPlan
from qk_sniffer.rows.source import HfRows, RowSource
from qk_sniffer.sampling.attended_keys import AttendedSampler, default_number, recorded_number
from qk_sniffer.sampling.bucket_counts import TEXTS_LOOKED_AT, AutoChoice, choose, recorded_choice
from qk_sniffer.sampling.heads import choose_heads
from qk_sniffer.sampling.positions import PositionSampler
from qk_sniffer.texts.encoding import TextEncoder
from qk_sniffer.texts.sources import tokenize
from qk_sniffer.texts.synthetic import TextSource, open_source
from qk_sniffer.vllm.model import VllmModel, open_vllm
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import index_ranges
from qk_toolkit.model_files import Note
from qk_toolkit.watcher import Watcher

Model = LoadedModel | VllmModel

_MOST_SPECIAL = 64  # special tokens that a tokenizer adds to a text


@dataclass(frozen=True)
class Setup:
    """The inputs of a capture, loaded and checked."""

    config: CaptureConfig
    texts: TextSource
    tokenizer: Any
    loaded: Model
    encoder: TextEncoder
    row_plan: RowPlan  # what is kept of every forward
    choice: AutoChoice | None = None  # of the sampler auto

    @cached_property
    def row_source(self) -> RowSource:
        """What runs the model and takes rows."""
        if isinstance(self.loaded, VllmModel):
            return self.loaded.row_source(self.row_plan)
        return HfRows(
            decoder_of(self.loaded.model),
            self.loaded.layout,
            self.row_plan,
            pre_rope=self.config.capture.capture_pre_rope,
            padding=self._padding,
        )

    @property
    def half(self) -> bool:
        """Whether vectors are stored as float16."""
        return self.config.output.vector_dtype == "float16"

    @property
    def max_length(self) -> int | None:
        """The most tokens of a text."""
        return self.encoder.max_length

    @property
    def batch_size(self) -> int:
        """Texts per batch: 1 if rotary angles would depend on the other texts of the batch."""
        return 1 if self.loaded.angles_depend_on_batch else self.config.inference.batch_size

    @cached_property
    def special_tokens(self) -> str:
        """A message that names the special tokens of every text."""
        made = self.config.dataset.made
        if made is not None and made.texts is None:
            return "special tokens added: none"
        ids = tokenize(self.tokenizer, "a", None, self.config.tokenizer.add_special_tokens)
        begins = ids[:1] == [self.tokenizer.bos_token_id]
        ends = ids[-1:] == [self.tokenizer.eos_token_id]
        added = [name for name, flag in (("BOS", begins), ("EOS", ends)) if flag]
        return f"special tokens added: {' and '.join(added) or 'none'}"

    @property
    def _padding(self) -> int:
        """The padding token; the tokens of a text do not attend to it."""
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        return next((int(token) for token in known if token is not None), 0)


def prepare(
    config: CaptureConfig,
    ranks: Ranks,
    note: Note = lambda text: None,
    begun: Mapping[str, Any] | None = None,
    *,
    weights: bool = True,
) -> Setup:
    """Load texts, tokenizer and model, and choose heads and sampler.

    `note` is called with a message before each slow step. `begun` is the plan of a capture with
    these settings; what the sampler auto chose for it is kept, and the default number
    of keys drawn by attention. Without `weights`, the model cannot run.
    """
    texts = open_source(config.dataset)
    tokenizer = load_tokenizer(config.tokenizer, config.model)
    if weights:
        most = _most_tokens(texts)
        loaded = open_model(config, ranks.device, note, processes=ranks.world, most_tokens=most)
    else:
        loaded = unloaded_model(config)
    settings = config.capture
    encoder = _encoder(config, tokenizer, loaded)
    choice = None
    if settings.sampler.type == "auto":
        choice = recorded_choice(begun) or auto_choice(texts, encoder)
    return Setup(
        config=config,
        texts=texts,
        tokenizer=tokenizer,
        loaded=loaded,
        encoder=encoder,
        row_plan=RowPlan(
            wanted=choose_heads(loaded.layout, settings),
            sampler=sampler_of(settings, choice),
            attention=settings.attention,
            tokens=settings.tokens,
            attended=attended_sampler_of(settings, number_of_texts(config, texts), begun),
        ),
        choice=choice,
    )


def open_model(
    config: CaptureConfig, device: str, note: Note, *, processes: int, most_tokens: int | None
) -> Model:
    """The model of the settings, on `device` unless they name another one.

    `processes` share the capture. `most_tokens` is more than any text has, if that is known.
    """
    if config.engine != "vllm":
        return load_model(config.model, device, note)
    if processes > 1:
        raise ConfigError(
            "engine: vllm starts its own processes; start this command once, without torchrun, "
            "accelerate or srun"
        )
    return open_vllm(config, note, most_tokens)


def unloaded_model(config: CaptureConfig) -> LoadedModel:
    """The model of the settings without the values of its weights."""
    return LoadedModel(shape_of(config.model)[0], commit=None)


def texts_and_encoder(config: CaptureConfig) -> tuple[TextSource, TextEncoder]:
    """The texts of a capture, and what turns them into tokens. Weights are not loaded."""
    texts = open_source(config.dataset)
    tokenizer = load_tokenizer(config.tokenizer, config.model)
    return texts, _encoder(config, tokenizer, unloaded_model(config))


def _encoder(config: CaptureConfig, tokenizer: Any, loaded: Model) -> TextEncoder:
    max_length = config.tokenizer.max_length or loaded.context
    return TextEncoder(config, tokenizer, max_length, loaded.vocabulary)


def _most_tokens(texts: TextSource) -> int | None:
    """More tokens than any text has, if the sizes of texts are known."""
    if not texts.has_index:
        return None
    return max(texts.sizes(), default=0) + _MOST_SPECIAL  # a token has a byte or more


def sampler_of(settings: CaptureSettings, choice: AutoChoice | None = None) -> PositionSampler:
    """The sampler of positions; the sampler auto needs its choice."""
    chosen = settings.sampler
    if chosen.type == "auto":
        if choice is None:
            raise ConfigError(
                "capture.sampler.type: auto needs the texts of a data set; choose log_uniform, "
                "uniform or all"
            )
        return choice.sampler(chosen.seed)
    default = PositionSampler()
    return PositionSampler(
        chosen.type,
        settings.min_bucket_size or default.min_bucket_size,
        chosen.base_rate or default.base_rate,
        chosen.seed,
        chosen.key_base_rate,
    )


def number_of_texts(config: CaptureConfig, texts: TextSource) -> int | None:
    """The number of texts; `dataset.max_samples` if the data set does not tell it."""
    return texts.total if texts.total is not None else config.dataset.max_samples


def auto_choice(texts: TextSource, encoder: TextEncoder) -> AutoChoice:
    """What the sampler auto chooses for these texts."""
    config = encoder.config
    number = number_of_texts(config, texts)
    if number is None:
        raise ConfigError(
            "dataset.max_samples: is required, because the sampler auto needs the number of texts, "
            "which a streamed data set does not tell; or name a capture.sampler.type"
        )
    longest = 0
    for text in islice(texts, TEXTS_LOOKED_AT):
        longest = max(longest, len(encoder.tokens(text)))
        if longest == encoder.max_length:
            break
    if not longest:
        raise ConfigError(f"dataset.path: {config.dataset.path}: holds no texts")
    return choose(number, longest, config.capture.min_bucket_size)


def attended_sampler_of(
    settings: CaptureSettings, texts: int | None, begun: Mapping[str, Any] | None = None
) -> AttendedSampler | None:
    """How keys are drawn by attention, given the number of texts; None if they are not drawn.

    Without a setting, the plan of a capture that has begun keeps its number.
    """
    number = settings.attended_keys
    if number is None:
        number = recorded_number(begun) or default_number(texts)
    if not number or not settings.attention or not settings.capture_keys:
        return None
    return AttendedSampler(number, settings.attended_queries, settings.sampler.seed)


def note_setup(setup: Setup, watcher: Watcher) -> None:
    """Say which model, heads and texts the capture has, and what is special about them."""
    layers = [layer.facts.layer for layer in setup.row_plan.wanted]
    q = sum(len(layer.q) for layer in setup.row_plan.wanted)
    k = sum(len(layer.k) for layer in setup.row_plan.wanted)
    context = f"{setup.max_length:,} tokens" if setup.max_length else "whole texts"
    watcher.note(
        f"{setup.config.model.name} ({setup.loaded.dtype}, {setup.loaded.attention}): "
        f"{q} query and {k} key heads of layers {index_ranges(layers)}; {context}; "
        f"{setup.special_tokens}"
    )
    for note in _notes(setup):
        watcher.note(note)


def _notes(setup: Setup) -> Iterator[str]:
    layout = setup.loaded.layout
    if setup.texts.total is not None:
        yield from setup.texts.notes
        cut = setup.encoder.cut(islice(setup.texts, TEXTS_LOOKED_AT))
        if cut is not None:
            yield cut.describe()
    if setup.choice is not None:
        yield setup.choice.describe(setup.config.capture.min_bucket_size)
    silent, compressed = layout.layers_without_attention, layout.compressed_layers
    selective = [layer.facts.layer for layer in setup.row_plan.wanted if layer.facts.selective]
    if silent:
        yield f"layers {index_ranges(silent)} have no self-attention and are left out"
    if compressed:
        yield (
            f"layers {index_ranges(compressed)} attend to compressed keys, which are not tokens, "
            "and are left out"
        )
    if selective:
        yield (
            f"layers {index_ranges(selective)} choose by content which keys a query sees; "
            "dump.json records them as selective"
        )
    facts = [layer.facts for layer in setup.row_plan.wanted]
    for problem, layers in rotary_problems(facts, setup.config.capture.capture_pre_rope).items():
        yield f"layers {index_ranges(layers)} have no rotary record: {problem}"
    unknown = [layer.facts.layer for layer in setup.row_plan.wanted if layer.facts.logits is None]
    is_eager = setup.loaded.attention == "eager"
    remedy = "" if is_eager else "; try model.attn_implementation: eager"
    if unknown and setup.config.capture.attention:
        yield (
            f"layers {index_ranges(unknown)}: the attention function computes its weights in an "
            f"unknown way ({setup.loaded.attention}), so the attention columns are null{remedy}"
        )
    if setup.batch_size < setup.config.inference.batch_size:
        yield (
            "rotary angles of this model depend on the longest text of a batch; texts are run one "
            "at a time, and inference.batch_size has no effect"
        )
