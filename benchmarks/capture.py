"""Speed and memory of the capture, as ratios to what it is compared with, timed in the same run.

    python -m benchmarks.capture                       # overhead, memory, writing
    python -m benchmarks.capture --only overhead       # on a GPU: the shape of Qwen3-8B
    python -m benchmarks.capture --only attention      # forwards with attention columns
    python -m benchmarks.capture --only pages --dump DUMP

Models have random weights and texts are random tokens; `pages` wants a dump of real vectors.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qk_sniffer.engines.hf.loading import LoadedModel

PARTS = ("overhead", "memory", "writing")
ONE_OF_64 = {"sampler": {"type": "uniform", "base_rate": 2.0}, "min_bucket_size": 128}
ONE_OF_8192 = {"sampler": {"type": "uniform", "base_rate": 1.0}, "min_bucket_size": 8192}
NO_ATTENTION = {"attention": False}


def main() -> None:
    """Print one table per part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = ",".join((*PARTS, "attention", "pages"))
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {names}")
    parser.add_argument("--rounds", type=int, default=3, help="timings of each thing, in turn")
    parser.add_argument("--lengths", default="4096,32768,131072", help="tokens per text")
    parser.add_argument("--rates", default="8192,1024,64", help="'attention' keeps one of so many")
    parser.add_argument("--dump", type=Path, help="real vectors for 'pages'")
    parser.add_argument("--memory_of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print(peak_memory(options.memory_of))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for part in options.only.split(","):
        if part == "overhead":
            overhead(options.rounds, _integers(options.lengths))
        elif part == "attention":
            from benchmarks.attention import attention

            attention(options.rounds, _integers(options.lengths), _integers(options.rates))
        elif part == "memory":
            memory()
        elif part == "writing":
            from benchmarks.writing import writing

            writing(options.rounds)
        elif part == "pages":
            from benchmarks.pages import pages

            pages(options.dump, options.rounds)


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def overhead(rounds: int, lengths: list[int]) -> None:
    """A capture's loop (tokens, sampling, tap, writer) over bare forwards of the same tokens."""
    import torch

    from benchmarks.random_models import random_model

    if torch.cuda.is_available():
        print(f"\noverhead, {torch.cuda.get_device_name()}, Qwen3-8B shape, bfloat16, sdpa")
        loaded = random_model("Qwen3-8B", "cuda", torch.bfloat16)
        cases = {32_768: (2, 18), 131_072: (2, 6)}
        settings = {"1/8,192": ONE_OF_8192, "1/64": ONE_OF_64}
    else:
        threads = torch.get_num_threads()
        print(f"\noverhead, CPU ({threads} threads), 8 layers × hidden 512, float32")
        loaded = random_model("8 layers, hidden 512", "cpu", torch.float32)
        cases = {4096: (1, 4)}
        settings = {"1/64, no attention": {**ONE_OF_64, **NO_ATTENTION}, "1/64": ONE_OF_64}
    print("s/text: seconds for each further text, after start and end are taken off\n")
    print(" tokens  what                 s/text   ratio   rows/text   peak GPU   start+end   files")
    for length, texts in cases.items():
        if length in lengths:
            _overhead_of(loaded, length, texts, settings, rounds)


def _overhead_of(
    loaded: LoadedModel,
    length: int,
    texts: tuple[int, int],
    settings: dict[str, Any],
    rounds: int,
) -> None:
    """Time few and more texts: the difference is what a further text costs, the rest is fixed."""
    from benchmarks.gpu_timing import timed
    from benchmarks.random_models import RandomTokenizer

    tokenizer = RandomTokenizer(length, loaded.text_config.vocab_size)
    few, more = texts
    _bare(loaded, tokenizer, 1)
    names = ("bare forward", *settings)
    seconds: dict[tuple[str, int], list[float]] = {
        (name, number): [] for name in names for number in texts
    }
    rows = dict.fromkeys(names, 0.0)
    files = dict.fromkeys(names, 0.0)
    peaks: dict[str, float] = {}
    for _ in range(rounds):
        for number in texts:
            bare = partial(_bare, loaded, tokenizer, number)
            seconds["bare forward", number].append(timed(bare, peaks, "bare forward"))
            for name, capture in settings.items():
                with tempfile.TemporaryDirectory() as folder:
                    run = _Captured(loaded, number, length, capture, folder)
                    seconds[name, number].append(timed(run, peaks, name))
                    rows[name] = run.rows / number
                    began = time.perf_counter()
                    run.finish()
                    files[name] = (time.perf_counter() - began) / number
    best = {key: min(taken) for key, taken in seconds.items()}
    slope = {name: (best[name, more] - best[name, few]) / (more - few) for name in names}
    for name in names:
        fixed = best[name, few] - few * slope[name]
        print(
            f"{length:7,}  {name:20s} {slope[name]:6.3f}  {slope[name] / slope[names[0]]:6.3f}"
            f"  {rows[name]:10,.0f}  {peaks.get(name, 0) / 1e9:6.2f} GB  {fixed:8.2f} s"
            f"  {files[name]:.2f} s/text"
        )


def _bare(loaded: LoadedModel, tokenizer: Any, texts: int) -> None:
    import torch

    from qk_sniffer.engines.hf.layout import decoder_of, run_backbone

    for number in range(texts):
        tokens = torch.tensor(tokenizer(str(number))["input_ids"])[None]
        run_backbone(decoder_of(loaded.model), tokens)


class _Captured:
    """The loop of a capture over random texts; the dump's files are made by `finish`."""

    def __init__(
        self, loaded: LoadedModel, texts: int, length: int, capture: dict[str, Any], folder: str
    ) -> None:
        from benchmarks.random_models import random_setup
        from qk_sniffer.capture.folder import open_capture
        from qk_sniffer.capture.work import Work, chunk_size

        setup = random_setup(loaded, texts, length, capture, folder)
        opened = open_capture(Path(folder), {"benchmark": True}, chunk_size(setup))
        self._work = Work(setup, opened)

    @property
    def rows(self) -> int:
        """Rows of all heads, without keys drawn by attention."""
        from qk_sniffer.capture.segments import read_segments

        return sum(segment.num_rows for segment in read_segments(self._work.capture.folder))

    def __call__(self) -> None:
        """Run all texts."""
        from qk_sniffer.capture.run import run_chunks
        from qk_toolkit.watcher import Watcher

        run_chunks(self._work, Watcher())

    def finish(self) -> None:
        """Make the Parquet files."""
        from qk_dump.manifest import DumpManifest
        from qk_sniffer.capture.finish import finish

        work = self._work
        finish(work.capture, work.num_chunks, work.schemas, DumpManifest())


def memory() -> None:
    """Peak memory of a capture and of one with ten times the texts."""
    print("\nmemory, CPU: 8 layers × hidden 512, 1,024 tokens per text, every position kept")
    peaks = {}
    for texts in (8, 80):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.capture", "--memory_of", str(texts)],
            check=True,
            capture_output=True,
            text=True,
        )
        peaks[texts] = float(done.stdout)
        print(f"{texts:4d} texts: {peaks[texts]:,.0f} MB")
    print(f"ratio {peaks[80] / peaks[8]:.3f}")


def peak_memory(texts: int) -> float:
    """Megabytes a process needs at most for a whole capture."""
    import torch

    from benchmarks.random_models import random_model

    loaded = random_model("8 layers, hidden 512", "cpu", torch.float32)
    folder = tempfile.mkdtemp()
    try:
        run = _Captured(loaded, texts, 1024, {"sampler": {"type": "all"}}, folder)
        run()
        run.finish()
    finally:
        shutil.rmtree(folder)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    main()
