"""CPU time per query head of `analyze`, against the floor and against another version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from attention_plasticity.config import RunnerConfig
from attention_plasticity.demo.sample import sample_path
from attention_plasticity.measure.seeds import SeedKeys
from attention_plasticity.read.rows import read_keys
from benchmarks import floor
from benchmarks.dumps import LARGE, SMALL, make_dump
from benchmarks.timing import best_in_turn, show
from qk_dump.heads import HeadId
from qk_dump.remote import local
from qk_dump.source import open_dump

SOURCE = Path(__file__).parents[1] / "src"
LAYERS = 4  # of the dumps that are made


class Case(NamedTuple):
    """A dump, and two numbers of query heads that the command analyses."""

    dump: Path
    few: str  # layers
    more: str
    heads: int  # query heads in `more` and not in `few`
    group: int  # query heads of a key head


def benchmark(options: Namespace) -> None:
    """Print the CPU time of a further query head of the command, and the ratios."""
    pa.set_cpu_count(1)
    sources = {"this version": SOURCE}
    if options.earlier:
        sources["the earlier version"] = options.earlier.resolve()
    rows = []
    for words, case in cases(options.data).items():
        times = _of_a_head(case, list(sources.values()), options.rounds)
        times.append(_floor(case, options.rounds))
        row = [words, f"{1e3 * times[0]:.0f} ms"]
        for other in times[1:]:
            row += [f"{1e3 * other:.0f} ms", f"{times[0] / other:.2f}"]
        rows.append(row)
    heading = ["rows used, dimensions", "this version"]
    for name in (*list(sources)[1:], "the floor"):
        heading += [name, "ratio"]
    show(heading, rows)


def cases(data: Path) -> dict[str, Case]:
    """The dumps; layers of those that are made have the same files."""
    large, small = (replace(shape, layers=LAYERS) for shape in (LARGE, SMALL))
    further = (LAYERS - 1) * large.q_heads
    return {
        "50,000 rows, 128 dimensions": Case(
            make_dump(data, large), "0", f"0-{LAYERS - 1}", further, large.group
        ),
        "8,000 rows, 128 dimensions": Case(
            make_dump(data, small), "0", f"0-{LAYERS - 1}", further, small.group
        ),
        "embedded sample, 64 dimensions": Case(sample_path(), "0", "0,14,29", 18, 3),
    }


def _of_a_head(case: Case, sources: list[Path], rounds: int) -> list[float]:
    """CPU seconds of a further query head in the command, for every version, in turns.

    Records and tables are part of it; the start of the processes is not.
    """
    things = {f"{source} {layers}": (source, layers) for source in sources for layers in case[1:3]}
    best = dict.fromkeys(things, float("inf"))
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, (source, layers) in things.items():
                best[name] = min(best[name], _command(source, case.dump, layers, Path(folder)))
    seconds = list(best.values())
    return [
        (more - few) / case.heads for few, more in zip(seconds[::2], seconds[1::2], strict=True)
    ]


def _command(source: Path, dump: Path, layers: str, folder: Path) -> float:
    """CPU seconds of one command and of its worker."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    words = ["analyze", str(dump.resolve()), str(out), "--layers", layers, "--max_workers", "1"]
    command = [sys.executable, "-m", "attention_plasticity", *words]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    with (folder / "messages").open("w+") as messages:
        process = subprocess.Popen(command, env=environment, stdout=messages, stderr=messages)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        messages.seek(0)
        assert process.returncode == 0, messages.read()
    return used.ru_utime + used.ru_stime


def _floor(case: Case, rounds: int) -> float:
    """CPU seconds of the floor for a query head."""
    dump, config = open_dump(case.dump), RunnerConfig()
    index = SeedKeys.of(read_keys(dump, 0, 0, config).rows).index
    pairs = index.bucket_pairs(config.num_pairs_per_bucket, np.random.default_rng(0))
    key_file = local(dump.files(HeadId(0, 0, "k"))[0])
    query_files = [local(dump.files(HeadId(0, head, "q"))[0]) for head in range(case.group)]

    def lower_bound() -> None:
        most = config.max_tokens_per_head
        _, keys = floor.read(key_file, most)
        tested = 1 + min(config.normality_max_dims, keys.shape[1] - 1)
        for file in query_files:
            floor.one_query_head(file, keys, pairs, tested, most)

    found = best_in_turn({"floor": lower_bound}, 2 + rounds, time.process_time)
    return found["floor"] / case.group
