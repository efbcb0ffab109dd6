"""The time that processes of a shared capture have no work, with texts of uneven lengths.

    python -m benchmarks.idle             # 2 processes, one text 20 times longer than the others

The share is the time between the end of the first and of the last process, divided by the time of
the last one. It is compared with fixed shares (every second text), computed from the same times.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_MODEL = "8 layers, hidden 512"
_MEDIAN_TOKENS = 300


@dataclass(frozen=True)
class Busy:
    """The batches that a process ran, and when it ran the last one."""

    seconds: dict[int, float]  # batch → time
    end: float  # seconds after the common start


def main() -> None:
    """Print the busy times and the idle shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--texts", type=int, default=60)
    options = parser.parse_args()
    lengths = uneven_lengths(options.texts)
    print(f"{len(lengths)} texts of {min(lengths):,} to {max(lengths):,} tokens, {_MODEL}, CPU")
    found = run_processes(lengths, options.processes)
    for rank, busy in enumerate(found):
        share = sum(busy.seconds.values()) / max(other.end for other in found)
        print(f"process {rank}: {len(busy.seconds):3d} texts, {busy.end:6.2f} s, busy {share:.1%}")
    seconds = {number: time for busy in found for number, time in busy.seconds.items()}
    fixed = [
        sum(seconds[number] for number in range(rank, len(lengths), len(found)))
        for rank in range(len(found))
    ]
    print(f"idle share, fixed shares:     {idle_share(fixed):.1%}")
    print(f"idle share, by what is left:  {idle_share([busy.end for busy in found]):.1%}")


def idle_share(ends: Sequence[float]) -> float:
    """The time between the first and the last end, divided by the last end."""
    return (max(ends) - min(ends)) / max(ends)


def uneven_lengths(texts: int) -> list[int]:
    """Tokens of the texts; the longest one is in the middle."""
    rng = np.random.default_rng(0)
    lengths: list[int] = (_MEDIAN_TOKENS * rng.lognormal(0, 0.7, texts)).astype(int).tolist()
    lengths[texts // 2] = 20 * _MEDIAN_TOKENS
    return lengths


def run_processes(lengths: Sequence[int], number: int) -> list[Busy]:
    """Run the loop of a capture in several processes that start together."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Manager() as manager:
        barrier, found = manager.Barrier(number), manager.dict()
        processes = [
            context.Process(target=_rank, args=(rank, number, lengths, folder, barrier, found))
            for rank in range(number)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return [found[rank] for rank in range(number)]


def _rank(
    rank: int, world: int, lengths: Sequence[int], folder: str, barrier: Any, found: Any
) -> None:
    import torch

    from benchmarks.random_models import random_model, random_setup
    from qk_sniffer.pipeline import capture
    from qk_sniffer.pipeline.capture_folder import open_capture
    from qk_sniffer.pipeline.ranks import Ranks
    from qk_toolkit.watcher import Watcher

    torch.set_num_threads(1)
    loaded = random_model(_MODEL, "cpu", torch.float32)
    sampler = {"sampler": {"type": "uniform", "base_rate": 2.0}, "min_bucket_size": 128}
    setup = random_setup(loaded, len(lengths), max(lengths), sampler, folder)
    vars(setup)["texts"] = _UnevenTexts(lengths)
    vars(setup)["tokenizer"] = _UnevenTokenizer(loaded.text_config.vocab_size)
    seconds: dict[int, float] = {}
    forward, last = capture._forward, [0.0]

    def timed(decoder: Any, tap: Any, batch: Any) -> Any:
        began = time.perf_counter()
        taken = forward(decoder, tap, batch)
        last[0] = time.perf_counter()
        seconds[batch.number] = last[0] - began
        return taken

    capture._forward = timed
    opened = open_capture(Path(folder), {"benchmark": True}, rank=rank)
    barrier.wait()
    start = time.perf_counter()
    capture.run_batches(setup, opened, Ranks(rank, world), Watcher())
    found[rank] = Busy(seconds, last[0] - start)


@dataclass(frozen=True)
class _UnevenTexts:
    """Texts whose characters are their tokens."""

    lengths: Sequence[int]
    has_index = True

    @property
    def total(self) -> int:
        return len(self.lengths)

    def sizes(self) -> Sequence[int]:
        return self.lengths

    def between(self, start: int, end: int) -> list[Any]:
        from qk_sniffer.pipeline.texts import Text

        return [Text(number, number, "x" * self.lengths[number]) for number in range(start, end)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.between(0, self.total))


@dataclass(frozen=True)
class _UnevenTokenizer:
    """One random token per character."""

    vocabulary: int
    pad_token_id: int = 0
    eos_token_id: int = 0
    truncation_side: str = "right"

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        rng = np.random.default_rng(len(text))
        return {"input_ids": rng.integers(0, self.vocabulary, len(text)).tolist()}


if __name__ == "__main__":
    main()
