"""CPU time of a capture with vLLM, against plain vLLM prefills of the same text, in turns.

The model has random weights, the text is random tokens. `make bench-vllm` runs it in an environment
of its own.
"""

from __future__ import annotations

import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.capture import kept
from benchmarks.models import SMALL
from benchmarks.timing import best_in_turn, show
from qk_sniffer.capture.setup import sampler_of
from qk_sniffer.config import make_config
from qk_sniffer.rows.plan import RowPlan, texts_of_forward
from qk_sniffer.sampling.attended_keys import AttendedSampler
from qk_sniffer.sampling.heads import choose_heads
from qk_sniffer.vllm.model import open_vllm

PLAIN = "nothing"


def benchmark(options: Namespace) -> None:
    """Print CPU times of all threads; vLLM is in this process."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    tokens = options.tokens or 4096
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(
            model={"name": _saved_model(Path(folder), tokens)},
            dataset={"path": "unused"},
            output={"data_root": "unused"},
            tokenizer={"max_length": tokens},
            engine="vllm",
        )
        model = open_vllm(config, lambda text: None, None)
    ids = np.random.default_rng(0).integers(0, SMALL["vocab_size"], tokens).tolist()
    things = {PLAIN: _plain(model.llm, ids)}
    for name, changes in kept(64).items():
        capture = make_config(config.model_dump(exclude={"capture"}), capture=changes).capture
        wanted = choose_heads(model.layout, capture)
        drawn = capture.attention and capture.attended_keys is None
        attended = AttendedSampler(128) if drawn else None
        plan = RowPlan(wanted, sampler_of(capture), capture.attention, True, attended)
        texts = texts_of_forward(plan, [0], [ids])
        things[name] = partial(_rows, model.row_source(plan), texts, ids)
    best_in_turn(things, 1)  # warms up
    best = best_in_turn(things, options.rounds, time.process_time)
    rows = [[name, f"{took:.2f} s", f"{took / best[PLAIN]:.2f}"] for name, took in best.items()]
    show([f"kept of {tokens:,} tokens", "CPU time", "over plain vLLM"], rows)


def _plain(llm: Any, ids: list[int]) -> Callable[[], object]:
    from vllm import SamplingParams

    parameters = SamplingParams(max_tokens=1, detokenize=False)
    return lambda: llm.generate([{"prompt_token_ids": ids}], parameters, use_tqdm=False)


def _rows(source: Any, texts: Any, ids: list[int]) -> object:
    return source.take(texts, [ids]).rows()


def _saved_model(folder: Path, tokens: int) -> str:
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(LlamaConfig(**SMALL, max_position_embeddings=tokens))
    model.save_pretrained(folder / "model")
    return str(folder / "model")
