"""What a capture adds to the worker of vLLM, which is in another process with several ranks.

vLLM adds the methods of `CaptureWorker` to its worker class and calls them by name. The attention
implementation of every layer is wrapped, so that its queries, keys and values are seen before the
attention is computed. An error does not end the worker: `capture_take` reports it.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor
from vllm.config import get_layers_from_vllm_config
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.models.utils import extract_layer_index
from vllm.platforms import current_platform

from qk_dump.heads import HeadId
from qk_dump.rows import Rows
from qk_sniffer.engines.hf.memory import is_out_of_memory
from qk_sniffer.rows.plan import RowPlan
from qk_sniffer.vllm.layers import layer_of
from qk_sniffer.vllm.text_calls import Share, TextCalls
from qk_toolkit.errors import ToolkitError
from qk_toolkit.raised_in import is_our_bug

TEXT = "attention_plasticity_text"  # name of a request's text in its sampling parameters
_METADATA = 8  # groups of layers with metadata of their own, at most


class Span(NamedTuple):
    """Tokens of one text in a step."""

    text: int
    rows: slice
    first: int  # position of the first token


class Reply(NamedTuple):
    """What a rank gives after the texts have run."""

    rows: dict[HeadId, Rows]
    known_attention: set[int]
    error: str | None = None
    out_of_memory: bool = False


class CaptureWorker:
    """Methods that vLLM adds to its worker."""

    vllm_config: Any
    model_runner: Any
    _capture: RankCapture

    def capture_layers(self) -> str:
        """The attention layers of this rank, their backends and the device, as JSON."""
        found = get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase)
        layers = [layer_of(extract_layer_index(name), name, one) for name, one in found.items()]
        backends = sorted({one.get_attn_backend().get_name() for one in found.values()})
        return json.dumps(
            {
                "layers": [one._asdict() for one in layers],
                "attention": " and ".join(backends),
                "device": current_platform.device_type,
            }
        )

    def capture_begin(self, settings: bytes) -> None:
        """Wrap the layers of a plan; `settings` is the pickled plan."""
        plan = pickle.loads(settings)  # noqa: S301 (from the process that started it)
        self._capture = RankCapture(plan, self._capture_texts)
        found = get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase)
        wanted = {layer.facts.layer for layer in plan.wanted}
        for name, one in found.items():
            number = extract_layer_index(name)
            if number in wanted:
                _wrap(one, partial(self._capture.on_forward, number))

    def capture_expect(self, texts: str) -> None:
        """Set the texts of the next requests: their numbers and token ids."""
        self._capture.expect(json.loads(texts))

    def capture_take(self) -> bytes:
        """The rows of these texts, of the heads of this rank."""
        return pickle.dumps(self._capture.take())

    def _capture_texts(self) -> list[int | None]:
        """The texts of the requests of this step, in the order of their tokens."""
        batch, requests = self.model_runner.input_batch, self.model_runner.requests
        given = [requests[name].sampling_params.extra_args for name in batch.req_ids]
        return [(one or {}).get(TEXT) for one in given]


def _wrap(layer: Any, on_forward: Callable[..., None]) -> None:
    """Call `on_forward` before each attention of a layer, and no function of an earlier plan."""
    vars(layer.impl).pop("forward", None)
    original = layer.impl.forward

    def forward(
        of: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: Any,
        metadata: Any,
        *rest: Any,
        **options: Any,
    ) -> Any:
        on_forward(query, key, value, metadata, layer.impl)
        return original(of, query, key, value, cache, metadata, *rest, **options)

    layer.impl.forward = forward


class RankCapture:
    """The texts that run, and the rows of this rank's heads."""

    def __init__(self, plan: RowPlan, texts: Callable[[], list[int | None]]) -> None:
        first = plan.wanted[0].facts
        rank, ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        self._share = Share.of(rank, ranks, first.q_heads, first.k_heads)
        self._plan = self._share.of_plan(plan)
        self._texts_of_step = texts
        self._running: dict[int, TextCalls] = {}
        self._spans: list[tuple[Any, list[Span]]] = []  # of the latest metadata
        self._error: Exception | None = None

    def expect(self, texts: list[tuple[int, list[int]]]) -> None:
        """Forget earlier texts, and expect these."""
        self._error = None
        self._spans.clear()
        self._running = {number: TextCalls(self._plan, number, ids) for number, ids in texts}

    def on_forward(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, metadata: Any, impl: Any
    ) -> None:
        """Take what is needed of a layer in a step of vLLM; other ranks are in the same layer."""
        if metadata is None or not self._running:  # vLLM measures memory, or warms up
            return
        sinks = getattr(impl, "sinks", None)
        if self._error is not None:
            return
        try:
            for text, rows, first in self._spans_of(metadata):
                parts = query[rows], key[rows], value[rows]
                self._running[text].add(layer, first, *parts, sinks)
        except Exception as error:  # `take` reports it; the other ranks would wait for this one
            self._error = error

    def take(self) -> Reply:
        """The rows since `expect`, or the first error."""
        running, self._running = self._running, {}
        self._spans.clear()
        try:
            if self._error is not None:
                raise self._error
            taken = [running[number].take() for number in running]
            parts = [one.rows() for one in taken]
        except ToolkitError as error:
            return Reply({}, set(), str(error))
        except (RuntimeError, IndexError, ValueError, MemoryError) as error:
            if is_our_bug(error) and not is_out_of_memory(error):
                raise
            return Reply({}, set(), " ".join(str(error).split())[:300], is_out_of_memory(error))
        heads = parts[0] if parts else {}
        rows = {head: Rows.joined([part[head] for part in parts]) for head in heads}
        return Reply(self._share.numbered(rows), taken[0].known_attention if taken else set())

    def _spans_of(self, metadata: Any) -> list[Span]:
        """The texts of a step. Layers share metadata, so the numbers are read once."""
        for known, spans in self._spans:
            if known is metadata:
                return spans
        texts = self._texts_of_step()
        starts = metadata.query_start_loc[: len(texts) + 1].tolist()
        lengths = metadata.seq_lens[: len(texts)].tolist()
        found = [
            Span(text, slice(start, end), length - (end - start))
            for text, (start, end), length in zip(texts, pairwise(starts), lengths, strict=True)
            if text is not None and text in self._running
        ]
        self._spans = [*self._spans[1 - _METADATA :], (metadata, found)]
        return found
