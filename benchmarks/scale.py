"""How an analysis grows with heads, rows, files and workers, and what Ray costs."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.dumps import LARGE, SMALL, Shape, make_dump
from benchmarks.timing import best_in_turn, show

HEADS = {
    1: Shape(1_000, 32, q_heads=1),
    10: Shape(1_000, 32, q_heads=10, k_heads=5),
    100: Shape(1_000, 32, layers=10, q_heads=10, k_heads=5),
    400: Shape(1_000, 32, layers=40, q_heads=10, k_heads=5),
}
ROWS = {count: Shape(count, 64, q_heads=1) for count in (10_000, 100_000, 1_000_000)}
FILES = {
    "360 files": Shape(2_000, 64, layers=9, q_heads=30, k_heads=10),
    "100,000 files": Shape(2_000, 64, layers=25, q_heads=32, k_heads=8, files=100),
}
TINY = {count: Shape(200, 8, count // 10, q_heads=10, k_heads=10) for count in (100, 600)}
LARGE_HEADS = replace(LARGE, q_heads=16, k_heads=4)
MANY_HEADS = replace(SMALL, layers=36, q_heads=32, k_heads=8)
_LOOK = 0.02  # seconds between looks at processes


def benchmark(options: Namespace) -> None:
    """Print a table per part."""
    for title, shapes in (("heads of 1,000 rows", HEADS), ("rows of one head", ROWS)):
        dumps = {count: make_dump(options.data, shape) for count, shape in shapes.items()}
        growth(title, dumps, options.rounds)
    first_heads(options.data, options.rounds)
    _ray(options.data, options.rounds)
    if (os.cpu_count() or 1) > 2:
        _workers(options.data)


@dataclass(frozen=True)
class Run:
    """A run of the command."""

    seconds: float
    cpu_seconds: float  # of the main process and its workers
    worker_mb: float  # largest resident memory of a worker


def analyze(dump: Path, *flags: str) -> Run:
    """Run `attention-plasticity analyze` into an empty folder."""
    with tempfile.TemporaryDirectory() as out:
        began, cpu, peak = time.perf_counter(), _cpu_of_ended_processes(), 0
        process = _started(dump, out, *flags)
        while process.poll() is None:
            peak = max([peak, *map(_peak, _children(process.pid))])
            time.sleep(_LOOK)
        if process.returncode:
            raise SystemExit(f"the analysis of {dump} ended with {process.returncode}")
        used = _cpu_of_ended_processes() - cpu
        return Run(time.perf_counter() - began, used, peak / 1024)


def _cpu_of_ended_processes() -> float:
    """CPU seconds of the processes that this process started, and of their own."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _started(dump: Path, out: str, *flags: str) -> subprocess.Popen[bytes]:
    words = ["analyze", str(dump), "--output_dir", str(Path(out) / "run"), *flags]
    command = [sys.executable, "-m", "attention_plasticity", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _peak(pid: int) -> int:
    """The largest resident memory of a process so far, in KiB; 0 if it has ended."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) if found else 0
    return 0


def growth(title: str, dumps: Mapping[int, Path], rounds: int) -> None:
    """CPU time and memory of runs with one worker, and what a further head or row takes."""
    runs: dict[int, list[Run]] = {count: [] for count in dumps}
    for _ in range(rounds):
        for count, dump in dumps.items():
            runs[count].append(analyze(dump, "--max_workers", "1"))
    best = {count: min(found, key=lambda run: run.cpu_seconds) for count, found in runs.items()}
    rows = [
        [f"{count:,}", f"{run.cpu_seconds:.1f} s", f"{run.worker_mb:.0f} MB"]
        for count, run in best.items()
    ]
    few, many = min(best), max(best)
    each = 1e3 * (best[many].cpu_seconds - best[few].cpu_seconds) / (many - few)
    show([title, "CPU time", "memory of a worker"], [*rows, ["each further", f"{each:.4g} ms", ""]])


def first_heads(data: Path, rounds: int) -> None:
    """Seconds from the start of the command until the record of the first head is written."""
    dumps = {name: make_dump(data, shape) for name, shape in FILES.items()}
    best = best_in_turn({name: partial(_first, dump) for name, dump in dumps.items()}, rounds)
    rows = [[name, f"{seconds:.1f} s"] for name, seconds in best.items()]
    show(["dump", "until the first head is finished"], rows)


def _first(dump: Path) -> None:
    with tempfile.TemporaryDirectory() as out:
        process = _started(dump, out, "--max_workers", "1")
        try:
            while not any(Path(out).glob("run/.heads/*/l*.json.gz")):
                if process.poll() is not None:
                    raise SystemExit(f"the analysis of {dump} ended with {process.returncode}")
                time.sleep(_LOOK)
        finally:
            process.terminate()
            process.wait()


def _workers(data: Path) -> None:
    """A run of 1,152 heads with one worker, and with one per CPU."""
    dump = make_dump(data, MANY_HEADS)
    one, all_cpus = (analyze(dump, *flags).seconds for flags in (("--max_workers", "1"), ()))
    row = [
        "1,152 heads of 8,000 rows",
        f"{one:.0f} s",
        f"{all_cpus:.0f} s",
        f"{one / all_cpus:.1f}",
    ]
    show(["", "one worker", f"{os.cpu_count()} workers", "times as fast"], [row])


def _ray(data: Path, rounds: int) -> None:
    """Runs on a Ray cluster that is running already, against processes of this machine."""
    large = make_dump(data, LARGE_HEADS)
    tiny = {count: make_dump(data, shape) for count, shape in TINY.items()}
    with _cluster():
        found = {
            (engine, dump): partial(_on_engine, dump, engine)
            for dump in (large, *tiny.values())
            for engine in ("local", "ray")
        }
        names = {f"{engine} {dump.name}": thing for (engine, dump), thing in found.items()}
        best = best_in_turn(names, rounds)
    rows = []
    for engine in ("local", "ray"):
        took = best[f"{engine} {large.name}"]
        few, many = (best[f"{engine} {dump.name}"] for dump in tiny.values())
        per_head = 1e3 * (many - few) / (max(TINY) - min(TINY))
        rows.append([engine, f"{took:.1f} s", f"{per_head:.1f} ms"])
    show(["engine", "16 heads of 60,000 rows", "a tiny head"], rows)


def _on_engine(dump: Path, engine: str) -> None:
    from attention_plasticity.config import make_config
    from attention_plasticity.run.runner import run_analysis

    with tempfile.TemporaryDirectory() as out:
        config = make_config(
            dataset_local_root=str(dump), output_dir=out, engine=engine, max_workers=2
        )
        failures = run_analysis(config).failures
    if failures:
        raise SystemExit(f"{dump}: {failures[0].reason}")


@contextmanager
def _cluster() -> Iterator[None]:
    """A Ray cluster of this machine, connected to this process."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
