"""What the engine `ray` costs over `local`: whole runs of large heads, and the time per head."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attention_plasticity.config import make_config
from attention_plasticity.run.runner import run_analysis
from benchmarks.scale_dumps import make_heads
from benchmarks.shapes import SHAPES, make_shape
from benchmarks.whole_runs import analyze

_CPUS = 2
_TINY_HEADS = (100, 600)


def engines(data: Path, rounds: int) -> None:
    """Whole runs of heads of 60,000 rows on both engines, with and without start of a cluster."""
    dump = make_shape(data, SHAPES["b"], "gaussian")
    print(f"\n64 heads of 60,000 rows, d = 128, on {_CPUS} CPUs (s, best of {rounds})")
    with _cluster():
        times = _in_turn({"local": dump, "ray": dump}, rounds)
    ratio = times["ray"] / times["local"]
    print(f"local                            {times['local']:>8.2f}")
    print(f"ray, the cluster runs already    {times['ray']:>8.2f}  {ratio:.3f}")
    count = ("--max_workers", str(_CPUS))
    commands = {"local": count, "ray": (*count, "--engine", "ray")}
    best = dict.fromkeys(commands, float("inf"))
    memory = dict.fromkeys(commands, 0.0)
    for _ in range(rounds):
        for name, flags in commands.items():
            run = analyze(dump, *flags)
            best[name] = min(best[name], run.seconds)
            memory[name] = max(memory[name], run.driver_mb)
    print("the whole command, with its imports and the start of a cluster:")
    for name, took in best.items():
        ratio = took / best["local"]
        print(f"  {name:<31}{took:>8.2f}  {ratio:.3f}   driver {memory[name]:.0f} MB")


def scheduling(data: Path, rounds: int) -> None:
    """Time per head that Ray adds: tiny heads, each in a task of its own, on a running cluster."""
    dumps = {count: make_heads(data, count // 10, 10, 10, 200, 8) for count in _TINY_HEADS}
    print(f"\nTiny heads, one per task, on {_CPUS} CPUs (ms per head, best of {rounds})")
    per_head = {}
    with _cluster():
        found = [_in_turn({"local": dump, "ray": dump}, rounds) for dump in dumps.values()]
    for name in ("local", "ray"):
        few, many = (times[name] for times in found)
        per_head[name] = 1e3 * (many - few) / (_TINY_HEADS[1] - _TINY_HEADS[0])
        print(f"{name:<8}{per_head[name]:>8.2f}   ({few:.2f} s and {many:.2f} s)")
    print(f"{'more':<8}{per_head['ray'] - per_head['local']:>8.2f}")


def _in_turn(dumps: dict[Any, Path], rounds: int) -> dict[str, float]:
    """The best time of a run per engine. The engines take turns."""
    best = dict.fromkeys(dumps, float("inf"))
    for _ in range(rounds):
        for engine, dump in dumps.items():
            with tempfile.TemporaryDirectory() as out:
                config = make_config(
                    dataset_local_root=str(dump), output_dir=out, engine=engine, max_workers=_CPUS
                )
                began = time.perf_counter()
                outcome = run_analysis(config)
                best[engine] = min(best[engine], time.perf_counter() - began)
            if outcome.failures:
                raise SystemExit(f"{dump}: {outcome.failures[0].reason}")
    return best


@contextmanager
def _cluster() -> Iterator[None]:
    """A Ray cluster of this machine, connected to this process."""
    import ray

    ray.init(
        address="local",
        num_cpus=_CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield
    finally:
        ray.shutdown()
