"""Speed and memory of the analysis, as ratios to a floor and to a plain loop timed alongside.

    python -m benchmarks.analysis            # everything, about ten minutes and 15 GB of disk
    python -m benchmarks.analysis --only speed,workers,startup
    python -m benchmarks.analysis --only profile

Data is generated below `bench-data/` and kept for the next time; delete the folder when done.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.shapes import Noise, Shape

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "ARROW_NUM_THREADS"), "1")
HERE = Path(__file__).parent
NOISES: tuple[Noise, ...] = ("gaussian", "heavy")
PARTS = ("speed", "profile", "workers", "memory", "startup")


def main() -> None:
    """Print one table per part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--data", type=Path, default=HERE.parent / "bench-data")
    parser.add_argument(
        "--rounds", type=int, default=5, help="timings of each thing; the best counts"
    )
    options = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":  # must be set before numpy is loaded
        words = [sys.executable, "-m", "benchmarks.analysis", *sys.argv[1:]]
        os.execve(sys.executable, words, {**os.environ, **ONE_THREAD})
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for part in options.only.split(","):
        {
            "speed": speed,
            "profile": profile,
            "workers": workers,
            "memory": memory,
            "startup": startup,
        }[part](options.data, options.rounds)


def speed(data: Path, rounds: int) -> None:
    """One worker's time per query head against the floor and the plain loop."""
    import pyarrow as pa

    from benchmarks.shapes import SHAPES

    pa.set_cpu_count(1)
    print("\nTime per query head, one worker (ms), and ratios; heavy: Student's t, 3 degrees")
    print("(plain with rows read as Python lists, and with reading left out of both)")
    print(
        f"{'shape':<14}{'ours':>8}{'floor':>8}{'plain':>9}"
        f"{'ours/floor':>12}{'plain/ours':>12}{'no reading':>12}"
    )
    for shape in SHAPES.values():
        for noise in NOISES:
            took = _time_shape(data, shape, noise, rounds)
            mine, least, slow = took["ours"], took["floor"], took["plain"]
            loops = (slow - took["plain reading"]) / (mine - took["our reading"])
            print(
                f"{shape.name + ' ' + noise:<14}{mine:>8.0f}{least:>8.0f}{slow:>9.0f}"
                f"{mine / least:>12.2f}{slow / mine:>12.1f}{loops:>12.1f}"
            )


def _time_shape(data: Path, shape: Shape, noise: Noise, rounds: int) -> dict[str, float]:
    import numpy as np

    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.head_analysis import analyze_group
    from attention_plasticity.measure.result import HeadResult
    from attention_plasticity.measure.seeds import SeedKeys
    from attention_plasticity.read.rows import read_keys
    from benchmarks import floor, plain
    from benchmarks.shapes import make_shape
    from qk_dump.heads import HeadId
    from qk_dump.reader import read_head
    from qk_dump.remote import local
    from qk_dump.source import open_dump

    config = RunnerConfig()
    dump = open_dump(make_shape(data, shape, noise))
    heads = list(range(shape.group_size))
    index = SeedKeys.of(read_keys(dump, 0, 0, config).rows).index
    pairs = index.bucket_pairs(config.num_pairs_per_bucket, np.random.default_rng(0))
    key_file = local(dump.files(HeadId(0, 0, "k"))[0])
    query_files = [local(dump.files(HeadId(0, head, "q"))[0]) for head in heads]

    def ours() -> None:
        for outcome in analyze_group(dump, 0, 0, heads, config):
            assert isinstance(outcome, HeadResult), outcome

    def lower_bound() -> None:
        _, keys = floor.read(key_file, config.max_tokens_per_head)
        for file in query_files:
            tested = 1 + min(config.normality_max_dims, shape.width - 1)
            floor.one_query_head(file, keys, pairs, tested)

    def our_reading() -> None:
        for kind, files in (("k", [key_file]), *(("q", [file]) for file in query_files)):
            read_head(files, max_rows=50_000, examples=kind == "k")

    def loop() -> None:
        plain.one_query_head(query_files[0], key_file, config)

    def plain_reading() -> None:
        plain.read(query_files[0], config)
        plain.read(key_file, config)

    groups = {"ours": ours, "floor": lower_bound, "our reading": our_reading}
    per_group = _interleaved(groups, rounds)
    per_head = _interleaved({"plain": loop, "plain reading": plain_reading}, 2)
    return {name: 1e3 * took / len(heads) for name, took in per_group.items()} | {
        name: 1e3 * took for name, took in per_head.items()
    }


def profile(data: Path, rounds: int) -> None:
    """Where the time of one query head goes, by step of the method."""
    import cProfile
    import pstats

    import pyarrow as pa

    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.head_analysis import analyze_group
    from benchmarks.shapes import SHAPES, make_shape
    from qk_dump.source import open_dump

    pa.set_cpu_count(1)
    steps = {
        "read_head": "reading and checking",
        "seed_columns": "seeds' columns",
        "plasticity_columns": "plasticity at one position, over a bin",
        "attended_columns": "attended plasticity",
        "position_columns": "position before RoPE",
        "drift_row": "drift",
        "band_columns": "rotary bands and kernel",
        "attention_columns": "attention",
        "role_row": "roles",
        "key_head_counts": "counts for key heads",
    }
    print("\nWhere the time goes (ms per query head, share)")
    names = list(SHAPES)
    rows: dict[str, list[float]] = {label: [] for label in [*steps.values(), "the rest", "total"]}
    for name in names:
        dump = open_dump(make_shape(data, SHAPES[name], "gaussian"))
        heads = list(range(SHAPES[name].group_size))
        list(analyze_group(dump, 0, 0, heads, RunnerConfig()))
        profiler = cProfile.Profile()
        profiler.enable()
        list(analyze_group(dump, 0, 0, heads, RunnerConfig()))
        profiler.disable()
        found = pstats.Stats(profiler).get_stats_profile()
        total = 1e3 * found.total_tt / len(heads)
        rest = total
        for function, label in steps.items():
            time_in = 1e3 * found.func_profiles[function].cumtime / len(heads)
            rows[label].append(time_in)
            rest -= time_in
        rows["the rest"].append(rest)
        rows["total"].append(total)
    print(f"{'step':<32}" + "".join(f"{name:>16}" for name in names))
    for label, spent in rows.items():
        cells = (f"{t:>9.1f} {100 * t / rows['total'][i]:>4.0f} %" for i, t in enumerate(spent))
        print(f"{label:<32}" + "".join(f"{cell:>16}" for cell in cells))


def workers(data: Path, rounds: int) -> None:
    """Two worker processes against one, for the whole command."""
    from benchmarks.shapes import SHAPES, make_shape

    print("\nWhole command, start-up included (s)")
    print(f"{'shape':<14}{'1 worker':>10}{'2 workers':>11}{'ratio':>8}")
    for name in ("a", "b"):
        folder = make_shape(data, SHAPES[name], "gaussian")
        one, two = partial(_analyze, folder, 1), partial(_analyze, folder, 2)
        best = _interleaved({"1": one, "2": two}, max(2, rounds // 2))
        print(f"{name:<14}{best['1']:>10.1f}{best['2']:>11.1f}{best['1'] / best['2']:>8.2f}")


def memory(data: Path, rounds: int) -> None:
    """Peak memory of a worker: on shape b, and on a file of twenty million rows."""
    from benchmarks.large import make_large
    from benchmarks.shapes import SHAPES, make_shape

    print("\nPeak resident memory of a worker (MB)")
    for label, folder in (
        ("b, 50,000 of 60,000 rows", make_shape(data, SHAPES["b"], "gaussian")),
        ("20,000,000 rows, d = 64", make_large(data, 20_000_000)),
        (" 2,000,000 rows, d = 64", make_large(data, 2_000_000)),
    ):
        code = (
            "import re, sys, time; from attention_plasticity.head_analysis import *;"
            "from qk_dump.source import open_dump; t = time.time();"
            "list(analyze_group(open_dump(sys.argv[1]), 0, 0, [0], RunnerConfig()));"
            "peak = int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]);"
            "print(f'{peak / 1024:.0f} MB, {time.time() - t:.1f} s')"
        )
        found = subprocess.run(
            [sys.executable, "-c", code, str(folder)], check=True, capture_output=True, text=True
        )
        print(f"{label:<28}{found.stdout.strip()}")


def startup(data: Path, rounds: int) -> None:
    """Import, help and a run of one head, against starting Python at all."""
    from attention_plasticity.demo.sample import sample_path

    print("\nStart-up (s, median)")
    analyze = str(HERE.parent / "analyze.py")
    one_head = ["--dataset_local_root", str(sample_path()), "--layers", "0", "--heads", "0"]
    out = ["--output_dir", str(data / "one-head")]
    commands = {
        "python -c pass": ["-c", "pass"],
        "import attention_plasticity": ["-c", "import attention_plasticity"],
        "analyze.py --help": [analyze, "--help"],
        "imports of a worker": ["-c", "import attention_plasticity.head_analysis"],
        "analyze.py, one head": [analyze, *one_head, *out],
    }
    for label, words in commands.items():
        times = []
        for _ in range(2 * rounds):
            shutil.rmtree(data / "one-head", ignore_errors=True)
            began = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, capture_output=True)
            times.append(time.perf_counter() - began)
        print(f"{label:<30}{statistics.median(times):.3f}")


def _analyze(folder: Path, count: int) -> None:
    with tempfile.TemporaryDirectory() as out:
        words = ["analyze", "--dataset_local_root", str(folder), "--output_dir", out]
        subprocess.run(
            [sys.executable, "-m", "attention_plasticity", *words, "--max_workers", str(count)],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def _interleaved(things: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Best time of each, taken in turn so that a noisy neighbour hits all alike."""
    best = dict.fromkeys(things, float("inf"))
    for _ in range(rounds):
        for name, thing in things.items():
            began = time.perf_counter()
            thing()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


if __name__ == "__main__":
    main()
