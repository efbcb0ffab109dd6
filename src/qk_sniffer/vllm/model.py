"""A model in vLLM: how it is started, and how its workers give the rows of texts.

One request of one generated token is made for every text. Eager mode, no prefix cache and no
asynchronous steps make sure that every token of a text passes every layer once.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from qk_dump.heads import HeadId
from qk_dump.rows import Rows
from qk_sniffer.config import CaptureConfig, ModelSettings
from qk_sniffer.engines.engine import ModelLayout
from qk_sniffer.engines.hf.layout import decoder_config
from qk_sniffer.engines.hf.loading import (
    commit_of,
    context_of,
    load_model_config,
    precision_of,
    quiet_transformers,
)
from qk_sniffer.engines.hf.memory import is_out_of_memory
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.engines.hf.unloaded import shape_of, small_model
from qk_sniffer.rows.layer_tables import Part, with_heads
from qk_sniffer.rows.plan import ForwardTexts, RowPlan
from qk_sniffer.vllm.layers import VllmLayer, layout_in_vllm, require_whole_key_heads, window_notes
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import user_path
from qk_toolkit.model_files import Note, files_hash

_WORKER = "qk_sniffer.vllm.worker.CaptureWorker"
_TEXT = "attention_plasticity_text"  # as in the worker, which is imported by vLLM only
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # without ranks, the model is in this process
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the worker reads the batch of the other one
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # one token more than the context, which is not run
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_MEMORY = 0.8  # of a GPU


@dataclass(frozen=True)
class VllmModel:
    """A model that vLLM has loaded."""

    llm: Any = field(repr=False)
    title: str
    commit: str | None
    files: str | None
    text_config: Any = field(repr=False)
    dtype: str
    attention: str
    device: str
    layout: ModelLayout
    engine_record: Mapping[str, Any]
    angles_depend_on_batch: bool = False

    @property
    def vocabulary(self) -> int:
        """The number of tokens that have an embedding."""
        return int(self.text_config.vocab_size)

    @property
    def context(self) -> int | None:
        """The context length in the model's config."""
        return context_of(self.text_config)

    def row_source(self, plan: RowPlan) -> VllmRows:
        """Takes the rows of a plan."""
        return VllmRows(self.llm, plan)


def open_vllm(config: CaptureConfig, note: Note, most_tokens: int | None) -> VllmModel:
    """Load the model of the settings into vLLM; `most_tokens` is more than any text has."""
    settings = config.model
    folder = user_path(settings.name)
    files = files_hash(folder, None, note)
    model_config = load_model_config(settings)
    text_config = decoder_config(model_config)
    # vLLM has another meaning of auto
    dtype = str(precision_of(settings, model_config)).removeprefix("torch.")
    _refuse_architecture(settings, text_config)
    shape, small = _measured(settings)
    require_whole_key_heads(settings.name, shape, config.vllm.tensor_parallel)
    length = config.tokenizer.max_length or context_of(text_config) or most_tokens
    if length is None:
        raise ConfigError(
            "tokenizer.max_length: is required: the model's config names no context length"
        )
    length = min(length, most_tokens or length)
    llm = _started(config, dtype, length)
    facts = json.loads(llm.collective_rpc("capture_layers")[0])
    layers = [VllmLayer(**one) for one in facts["layers"]]
    layout = layout_in_vllm(settings.name, shape, small, layers, config.vllm.tensor_parallel)
    for text in window_notes(small, layout):
        note(text)
    import vllm

    return VllmModel(
        llm=llm,
        title=settings.name,
        commit=commit_of(settings),
        files=files,
        text_config=text_config,
        dtype=dtype,
        attention=facts["attention"],
        device=facts["device"],
        layout=layout,
        engine_record={
            "engine": "vllm",
            "vllm": config.vllm.model_dump() | {"version": vllm.__version__},
        },
    )


def _refuse_architecture(settings: ModelSettings, text_config: Any) -> None:
    """Refuse models whose keys are compressed, before any weight is loaded."""
    if getattr(text_config, "kv_lora_rank", None):
        raise ConfigError(
            f"model.name: {settings.name}: cannot be captured with vLLM: its keys are compressed "
            "(MLA), and vLLM has no keys per head; use --engine hf"
        )


def _measured(settings: ModelSettings) -> tuple[ModelLayout, ModelLayout]:
    """The heads of the model, and the layout of a small one with the same rope."""
    with quiet_transformers():
        _, shape = shape_of(settings, heads_only=True)
        small = probe(small_model(settings))
    if small.rotary_tables:
        raise ConfigError(
            f"model.name: {settings.name}: cannot be captured with vLLM: its rotary angles depend "
            "on the length of a text (rope type dynamic or longrope), and vLLM chooses others than "
            "transformers; use --engine hf"
        )
    return shape, small


def _started(config: CaptureConfig, dtype: str, length: int) -> Any:
    """The model in vLLM, for texts of at most `length` tokens."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    settings, vllm_settings = config.model, config.vllm
    with _starting(settings.name):
        from vllm import LLM

        return LLM(
            model=str(user_path(settings.name))
            if user_path(settings.name).is_dir()
            else settings.name,
            revision=settings.revision,
            dtype=dtype,
            trust_remote_code=settings.trust_remote_code,
            skip_tokenizer_init=True,
            tensor_parallel_size=vllm_settings.tensor_parallel,
            gpu_memory_utilization=vllm_settings.memory or _MEMORY,
            max_model_len=length + 1,
            max_num_seqs=config.inference.batch_size,
            max_num_batched_tokens=length + 1,
            enable_chunked_prefill=False,  # a text is one step
            enable_prefix_caching=False,
            enforce_eager=True,
            async_scheduling=False,
            worker_extension_cls=_WORKER,
            **(vllm_settings.options or {}),
        )


@contextmanager
def _starting(name: str) -> Iterator[None]:
    """Turn an error of vLLM into one line."""
    try:
        yield
    except (ToolkitError, ModuleNotFoundError):
        raise
    except Exception as error:  # vLLM and the code of models raise errors of all types
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:400]
        raise ConfigError(f"model.name: {name}: vLLM cannot load it: {reason}") from error


class VllmRows:
    """The rows of texts, which vLLM's workers take."""

    def __init__(self, llm: Any, plan: RowPlan) -> None:
        self._llm = llm
        llm.collective_rpc("capture_begin", args=(pickle.dumps(plan),))

    def take(self, texts: ForwardTexts, token_ids: Sequence[Sequence[int]]) -> VllmTaken:
        """Run these texts, each as one request."""
        from vllm import SamplingParams

        numbers = texts.examples.tolist()
        ids = [[int(token) for token in one] for one in token_ids]
        expected = json.dumps(list(zip(numbers, ids, strict=True)))
        self._llm.collective_rpc("capture_expect", args=(expected,))
        parameters = [
            SamplingParams(max_tokens=1, detokenize=False, extra_args={_TEXT: number})
            for number in numbers
        ]
        prompts = [{"prompt_token_ids": one} for one in ids]
        self._llm.generate(prompts, parameters, use_tqdm=False)
        replies = [pickle.loads(one) for one in self._llm.collective_rpc("capture_take")]  # noqa: S301
        for reply in replies:
            if reply.out_of_memory:
                raise MemoryError(reply.error)
            if reply.error is not None:
                raise ToolkitError(reply.error)
        rows = {head: part for reply in replies for head, part in reply.rows.items()}
        known = {layer for reply in replies for layer in reply.known_attention}
        return VllmTaken(rows, known)


@dataclass(frozen=True)
class VllmTaken:
    """The rows of all ranks."""

    heads: dict[HeadId, Rows]
    known_attention: set[int]

    def parts(self) -> Iterator[tuple[Part, Rows]]:
        """The rows of every part, with the column `head`; keys come before queries."""
        yield from with_heads(self.heads).items()

    def rows(self) -> dict[HeadId, Rows]:
        """The rows of every head."""
        return {head: self.heads[head] for head in sorted(self.heads)}
