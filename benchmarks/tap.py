"""The notebook of README.md: forwards under `tap`, and its dump, against bare forwards."""

from __future__ import annotations

import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks.timing import show
from qk_sniffer.notebook import Tap, tap

SMOLLM2: dict[str, Any] = {
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49_152,
}
QWEN_HALF_B: dict[str, Any] = {
    "num_hidden_layers": 24,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 151_936,
}
TEXTS = {"cpu": 6, "cuda": 12}


def benchmark(options: Namespace) -> None:
    """On a GPU: the shape of Qwen2.5-0.5B. On a CPU: that of SmolLM2-135M."""
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    shape, name = (QWEN_HALF_B, "Qwen2.5-0.5B") if gpu else (SMOLLM2, "SmolLM2-135M")
    length = options.tokens or (4096 if gpu else 2048)
    config = Qwen3Config(**shape, max_position_embeddings=32_768, tie_word_embeddings=True)
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    with torch.device(device):
        dtype = torch.bfloat16 if gpu else torch.float32
        model = auto.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(0, shape["vocab_size"], (TEXTS[device], 1, length)))
    texts = list(ids.to(device))
    where = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} threads"
    print(f"{where}, shape of {name}, {len(texts)} texts of {length:,} tokens")
    _compare(model, texts, options.rounds)


def _compare(model: Any, texts: list[torch.Tensor], rounds: int) -> None:
    """All times are of the clock; best of the rounds."""
    kept: dict[str, dict[str, Any]] = {"the default": {}, 'sampler="all"': {"sampler": "all"}}
    best: dict[str, float] = {}
    sizes: dict[str, int] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        found = work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        best[name] = min(best.get(name, float("inf")), time.perf_counter() - began)
        return found

    _forwards(model, texts[:1])
    _tapped(model, texts[:1], {})  # compiles the kernels
    for _ in range(rounds):
        timed("bare", lambda: _forwards(model, texts))
        for name, settings in kept.items():
            found = timed(f"{name}, loop", lambda: _tapped(model, texts, settings))  # noqa: B023
            folder = Path(tempfile.mkdtemp()) / "dump"
            timed(f"{name}, files", lambda: found.save(folder))  # noqa: B023
            sizes[name] = sum(path.stat().st_size for path in folder.rglob("*"))
            shutil.rmtree(folder.parent)
    rows = [["bare forwards", f"{best['bare']:.1f} s", "–", "1.00", "–"]]
    for name in kept:
        loop, files = best[f"{name}, loop"], best[f"{name}, files"]
        whole = f"{(loop + files) / best['bare']:.2f}"
        rows.append(
            [name, f"{loop:.1f} s", f"{files:.1f} s", whole, f"{sizes[name] / 1e6:,.0f} MB"]
        )
    show(["kept", "forwards", "files", "sum over bare forwards", "dump"], rows)


def _forwards(model: Any, texts: list[torch.Tensor]) -> None:
    with torch.inference_mode():
        for ids in texts:
            model(ids)


def _tapped(model: Any, texts: list[torch.Tensor], settings: dict[str, Any]) -> Tap:
    with torch.inference_mode(), tap(model, say=lambda _: None, **settings) as found:
        for ids in texts:
            model(ids)
    return found
