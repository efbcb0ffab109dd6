"""Seconds of a text in a capture, against a bare forward of the same tokens, and memory."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.models import QWEN3_8B, SMALL, Capture, bare_forwards, random_model
from benchmarks.timing import show
from qk_sniffer.engines.hf.loading import LoadedModel

EIGHTH = {"sampler": {"type": "uniform", "base_rate": 16.0}, "min_bucket_size": 128}
PEAK = "from benchmarks.capture import peak_memory; print(peak_memory({texts}))"


def kept(rate: int) -> dict[str, dict[str, Any]]:
    """Settings of captures that keep one of so many positions."""
    every = {"sampler": {"type": "uniform", "base_rate": 1.0}, "min_bucket_size": rate}
    return {
        f"1 of {rate:,} positions, no attention columns": {**every, "attention": False},
        f"1 of {rate:,} positions": {**every, "attended_keys": 0},
        f"1 of {rate:,} positions, and keys drawn by attention": every,
    }


def benchmark(options: Namespace) -> None:
    """On a GPU: the shape of Qwen3-8B. On a CPU: a small model."""
    if torch.cuda.is_available():
        loaded, name = random_model(QWEN3_8B, "cuda", torch.bfloat16), "Qwen3-8B, bfloat16"
        tokens, texts = options.tokens or 131_072, (1, 5)
        settings = {**kept(8192), **kept(1024), **kept(64)}
        device = torch.cuda.get_device_name()
    else:
        loaded, name = random_model(SMALL, "cpu", torch.float32), "8 layers of hidden size 512"
        tokens, texts = options.tokens or 4096, (1, 4)
        settings, device = kept(64), f"{torch.get_num_threads()} threads"
    print(f"{device}, {name}, texts of {tokens:,} tokens")
    _overhead(loaded, tokens, texts, settings, options.rounds)
    if not torch.cuda.is_available():
        _memory()


def _overhead(
    loaded: LoadedModel,
    tokens: int,
    texts: tuple[int, int],
    settings: dict[str, dict[str, Any]],
    rounds: int,
) -> None:
    """Time few and more texts: the difference is what a further text costs, without the start."""
    few, more = texts
    seconds: dict[tuple[str, int], list[float]] = {}
    files: dict[str, float] = {"nothing": 0.0}
    peaks: dict[str, float] = {}

    def time_of(name: str, number: int, work: Callable[[], object]) -> None:
        took, peak = _timed(work)
        seconds.setdefault((name, number), []).append(took)
        peaks[name] = max(peak, peaks.get(name, 0.0))

    for case in settings.values():  # compiles the kernels
        warm = Capture(loaded, 1, min(tokens, 4096), case)
        warm.run()
        warm.finish()
    for _ in range(rounds):
        for number in texts:
            time_of("nothing", number, lambda: bare_forwards(loaded, number, tokens))  # noqa: B023
            for name, case in settings.items():
                capture = Capture(loaded, number, tokens, case)
                time_of(name, number, capture.run)
                took = _timed(capture.finish)[0] / number
                if number == more:
                    files[name] = min(took, files.get(name, took))
    best = {key: min(taken) for key, taken in seconds.items()}
    slope = {name: (best[name, more] - best[name, few]) / (more - few) for name in files}
    bare = slope["nothing"]
    rows = [
        [
            name,
            f"{slope[name]:.3f} s",
            f"{files[name]:.3f} s",
            f"{best[name, few] - few * slope[name]:.2f} s",
            f"{slope[name] / bare:.3f}",
            f"{(slope[name] + files[name]) / bare:.3f}",
            f"{peaks[name] / 1e9:.1f} GB",
        ]
        for name in files
    ]
    heading = ["kept", "loop, per text", "files, per text", "fixed part of the loop"]
    show([*heading, "loop over bare", "loop and files over bare", "peak GPU memory"], rows)


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call, and the largest GPU memory in it. On a CPU: CPU time of all threads."""
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    clock = time.perf_counter if gpu else time.process_time
    began = clock()
    work()
    if gpu:
        torch.cuda.synchronize()
    return clock() - began, torch.cuda.max_memory_allocated() if gpu else 0.0


def _memory() -> None:
    """Peak memory of a capture, and of one with ten times the texts."""
    rows = []
    for texts in (8, 80):
        command = [sys.executable, "-c", PEAK.format(texts=texts)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append([f"{texts} texts", f"{float(done.stdout):,.0f} MB"])
    show(["1 of 8 positions of texts of 256 tokens", "peak memory of a process"], rows)


def peak_memory(texts: int) -> float:
    """Megabytes that this process needs at most for a whole capture."""
    loaded = random_model(SMALL, "cpu", torch.float32)
    capture = Capture(loaded, texts, 256, EIGHTH)
    capture.run()
    capture.finish()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
