"""CPU time per query head of one worker, against the floor, or against another version."""

from __future__ import annotations

import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import pyarrow as pa

from attention_plasticity.config import RunnerConfig
from attention_plasticity.demo.sample import sample_path
from attention_plasticity.head_analysis import analyze_group
from attention_plasticity.measure.seeds import SeedKeys
from attention_plasticity.read.rows import read_keys
from benchmarks import floor
from benchmarks.dumps import LARGE, SMALL, make_dump
from benchmarks.timing import best_in_turn, show
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.remote import local
from qk_dump.source import open_dump

OURS, FLOOR, EARLIER = "this version", "the floor", "the earlier version"
WORKER = """
import sys
sys.path[:0] = [sys.argv[1]]
import time, attention_plasticity
assert attention_plasticity.__file__.startswith(sys.argv[1]), attention_plasticity.__file__
import pyarrow
pyarrow.set_cpu_count(1)
from attention_plasticity.config import RunnerConfig
from attention_plasticity.head_analysis import analyze_group
from qk_dump.source import open_dump
dump, heads = open_dump(sys.argv[2]), list(range(int(sys.argv[3])))
for _ in sys.stdin:
    began = time.process_time()
    found = analyze_group(dump, 0, 0, heads, RunnerConfig())
    found = found.heads if hasattr(found, "heads") else list(found)
    assert len(found) == len(heads) and all(hasattr(one, "metrics") for one in found)
    print(time.process_time() - began, flush=True)
"""
"""A process of another version: it measures a group of heads for every line that it gets."""


def benchmark(options: Namespace) -> None:
    """Print CPU times of a query head, and their ratios."""
    pa.set_cpu_count(1)
    other = EARLIER if options.earlier else FLOOR
    rows = []
    for words, (folder, heads) in cases(options.data).items():
        if options.earlier:
            ours, reference = _versions(options.earlier.resolve(), folder, heads, options.rounds)
        else:
            ours, reference = _against_floor(open_dump(folder), heads, options.rounds)
        cells = (f"{1e3 * one / heads:.0f} ms" for one in (ours, reference))
        rows.append([words, *cells, f"{ours / reference:.2f}"])
    show(["rows used, dimensions", OURS, other, "ratio"], rows)


def cases(data: Path) -> dict[str, tuple[Path, int]]:
    """Dumps, and the query heads of their first key head."""
    return {
        "50,000 rows, 128 dimensions": (make_dump(data, LARGE), LARGE.group),
        "8,000 rows, 128 dimensions": (make_dump(data, SMALL), SMALL.group),
        "embedded sample, layer 0, 64 dimensions": (sample_path(), 3),
    }


def _against_floor(dump: Dump, number: int, rounds: int) -> tuple[float, float]:
    """CPU seconds of all query heads of a key head, here and for the floor."""
    config, heads = RunnerConfig(), list(range(number))
    index = SeedKeys.of(read_keys(dump, 0, 0, config).rows).index
    pairs = index.bucket_pairs(config.num_pairs_per_bucket, np.random.default_rng(0))
    key_file = local(dump.files(HeadId(0, 0, "k"))[0])
    query_files = [local(dump.files(HeadId(0, head, "q"))[0]) for head in heads]

    def ours() -> None:
        found = analyze_group(dump, 0, 0, heads, config)
        assert not found.failures, found.failures

    def lower_bound() -> None:
        most = config.max_tokens_per_head
        _, keys = floor.read(key_file, most)
        tested = 1 + min(config.normality_max_dims, keys.shape[1] - 1)
        for file in query_files:
            floor.one_query_head(file, keys, pairs, tested, most)

    things = {OURS: ours, FLOOR: lower_bound}
    found = best_in_turn(things, 1 + rounds, time.process_time)
    return found[OURS], found[FLOOR]


def _versions(earlier: Path, folder: Path, heads: int, rounds: int) -> tuple[float, float]:
    """CPU seconds of a group here and in another version, each in a process of its own."""
    sources = (Path(__file__).parents[1] / "src", earlier)
    processes = [_start(source, folder.resolve(), heads) for source in sources]
    found = [[_seconds(process) for process in processes] for _ in range(1 + rounds)]
    for process in processes:
        process.communicate()
    ours, other = np.min(found, axis=0)
    return float(ours), float(other)


def _start(source: Path, folder: Path, heads: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WORKER, str(source), str(folder), str(heads)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _seconds(process: subprocess.Popen[str]) -> float:
    """CPU seconds of one more analysis in a process."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("again\n")
    process.stdin.flush()
    return float(process.stdout.readline())
