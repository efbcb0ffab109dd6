"""CPU time of a capture with vLLM, over plain vLLM prefills of the same texts in the same run.

    .venv-vllm/bin/python -m benchmarks.vllm_capture

The model has random weights (8 layers of hidden size 512) and the texts are random tokens. The two
take turns. `none` keeps queries and keys alone; the others have all attention columns.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

SHAPE: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
KEPT: dict[str, dict[str, Any]] = {
    "1 of 64 positions, no attention columns": {"attention": False},
    "1 of 64 positions": {"attended_keys": 0},
    "1 of 64 positions, and keys drawn by attention": {},
}
SAMPLER = {"sampler": {"type": "uniform", "base_rate": 2.0}, "min_bucket_size": 128}


def main() -> None:
    """Print one line per setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="timings of each thing, in turn")
    parser.add_argument("--length", type=int, default=4096, help="tokens per text")
    parser.add_argument("--tokens_per_step", type=int, help="run texts in pieces")
    options = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with tempfile.TemporaryDirectory() as folder:
        _compare(Path(folder), options.rounds, options.length, options.tokens_per_step)


def _compare(folder: Path, rounds: int, length: int, step: int | None) -> None:
    import numpy as np

    from qk_sniffer.capture.setup import sampler_of
    from qk_sniffer.config import make_config
    from qk_sniffer.rows.plan import RowPlan, texts_of_forward
    from qk_sniffer.sampling.attended_keys import AttendedSampler
    from qk_sniffer.sampling.heads import choose_heads
    from qk_sniffer.vllm.model import open_vllm

    config = make_config(
        model={"name": str(_saved_model(folder, length))},
        dataset={"path": "unused"},
        output={"data_root": "unused"},
        tokenizer={"max_length": length},
        engine="vllm",
        vllm={"tokens_per_step": step},
    )
    model = open_vllm(config, lambda text: None, None)
    ids = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], length).tolist()
    print(f"{length:,} tokens, {'whole' if step is None else f'in pieces of {step:,}'}; CPU time")
    for name, changes in KEPT.items():
        settings = make_config(
            config.model_dump(exclude={"capture"}), capture=SAMPLER | changes
        ).capture
        wanted = choose_heads(model.layout, settings)
        layers = frozenset(layer.facts.layer for layer in wanted)
        drawn = settings.attention and settings.attended_keys is None
        attended = AttendedSampler(128) if drawn else None
        plan = RowPlan(wanted, sampler_of(settings), settings.attention, True, attended, layers)
        source, texts = model.row_source(plan), texts_of_forward(plan, [0], [ids])
        plain, take = _plain(model.llm, ids), partial(_rows, source, texts, ids)
        ratios = []
        for _ in range(rounds + 1):  # the first one warms up
            bare, taken = _seconds(plain), _seconds(take)
            ratios.append(taken / bare)
        print(f"{name}: {median(ratios[1:]):.2f} times ({bare:.2f} s plain)", flush=True)


def _plain(llm: Any, ids: list[int]) -> Callable[[], object]:
    from vllm import SamplingParams

    parameters = SamplingParams(max_tokens=1, detokenize=False)
    return lambda: llm.generate([{"prompt_token_ids": ids}], parameters, use_tqdm=False)


def _rows(source: Any, texts: Any, ids: list[int]) -> object:
    return source.take(texts, [ids]).rows()


def _seconds(run: Callable[[], object]) -> float:
    """CPU seconds of all threads; vLLM is in this process."""
    began = time.process_time()
    run()
    return time.process_time() - began


def _saved_model(folder: Path, length: int) -> Path:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(LlamaConfig(**SHAPE, max_position_embeddings=length))
    model.save_pretrained(folder / "model")
    return folder / "model"


if __name__ == "__main__":
    main()
