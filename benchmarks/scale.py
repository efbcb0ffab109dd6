"""How time and memory of an analysis grow with heads, rows and files, and what Ray and S3 cost.

    python -m benchmarks.scale            # everything, about 20 minutes and 6 GB of disk
    python -m benchmarks.scale --only heads,rows

Data is generated below `bench-data/` and kept for the next time; delete the folder when done.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import curve_fit

from benchmarks.reading import reading
from benchmarks.scale_dumps import make_heads, make_rows
from benchmarks.scale_ray import engines, scheduling
from benchmarks.shapes import SHAPES, make_shape
from benchmarks.whole_runs import Measured, analyze, seconds_to_first_head

HERE = Path(__file__).parent
_HEADS = {1: (1, 1, 1), 10: (1, 10, 5), 100: (10, 10, 5), 1_000: (100, 10, 5)}
_ROWS = (10_000, 100_000, 1_000_000, 10_000_000)


def main() -> None:
    """Print one table per part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--data", type=Path, default=HERE.parent / "bench-data")
    parser.add_argument("--rounds", type=int, default=3, help="timings; the best counts")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for part in options.only.split(","):
        PARTS[part](options.data, options.rounds)


def heads(data: Path, rounds: int) -> None:
    """Whole runs with one worker, with 1 to 1,000 small heads."""
    print("\nTime and memory against the number of heads (1,000 rows, d = 32; one worker)")
    dumps = {count: make_heads(data, *shape, 1_000, 32) for count, shape in _HEADS.items()}
    _print_growth("heads", _best(dumps, rounds))


def rows(data: Path, rounds: int) -> None:
    """Whole runs of one query head and its key head, with 10⁴ to 10⁷ rows each."""
    print("\nTime and memory against the rows of a head (d = 64; one worker)")
    _print_growth("rows", _best({count: make_rows(data, count) for count in _ROWS}, rounds))


def launch(data: Path, rounds: int) -> None:
    """The time until the first head is read, and a dump of 100,000 files."""
    print("\nFrom the start of the command until a worker reads the first head (s)")
    for label, dump in (
        ("270 query heads, 360 files", make_heads(data, 9, 30, 10, 2_000, 64)),
        ("800 query heads, 100,000 files", make_heads(data, 25, 32, 8, 2_000, 64, files=100)),
    ):
        times = sorted(seconds_to_first_head(dump) for _ in range(2 * rounds))
        print(f"{label:<34}best {times[0]:.2f}   median {times[len(times) // 2]:.2f}")


def workers(data: Path, rounds: int) -> None:
    """Whole runs of 1,152 heads of shape c with one worker, and with one per CPU."""
    shape = replace(SHAPES["c"], name="d", layers=36)
    dump, most = make_shape(data, shape, "gaussian"), os.cpu_count() or 1
    print(f"\n{shape.layers * shape.q_heads:,} heads of shape c, with 1 and {most} workers")
    one = analyze(dump, "--max_workers", "1")
    many = min((analyze(dump) for _ in range(rounds)), key=lambda run: run.seconds)
    print(f"{one.seconds:.1f} s and {many.seconds:.1f} s: {one.seconds / many.seconds:.1f} times")
    print(f"CPU {one.cpu_seconds:.1f} s and {many.cpu_seconds:.1f} s")


def _best(dumps: dict[int, Path], rounds: int) -> dict[int, Measured]:
    """The fastest run of each dump, taken in turn."""
    found: dict[int, Measured] = {}
    for _ in range(rounds):
        for count, dump in dumps.items():
            run = analyze(dump, "--max_workers", "1")
            found[count] = min(run, found.get(count, run), key=lambda one: one.seconds)
    return found


def _print_growth(unit: str, found: dict[int, Measured]) -> None:
    """Times and memory, and the exponents of the growth above the constant part."""
    print(f"{unit:>12}{'s':>10}{'CPU, s':>10}{'driver, MB':>12}{'worker, MB':>12}")
    for count, run in found.items():
        memory = f"{run.driver_mb:>12.0f}{run.worker_mb:>12.0f}"
        print(f"{count:>12,}{run.seconds:>10.2f}{run.cpu_seconds:>10.2f}{memory}")
    clock = _slope(list(found), [run.seconds for run in found.values()])
    cpu = _slope(list(found), [run.cpu_seconds for run in found.values()])
    print(f"{'slope':>12}{clock:>10.2f}{cpu:>10.2f}")


def _slope(sizes: list[int], times: list[float]) -> float:
    """The slope s of time = constant + a · size^s, by least squares of the relative errors."""

    def time(size: np.ndarray, constant: float, last: float, slope: float) -> np.ndarray:
        return constant + last * (size / sizes[-1]) ** slope

    guess = (times[0], times[-1] - times[0], 1.0)
    fitted, _ = curve_fit(time, np.asarray(sizes, float), times, guess, sigma=times)
    return float(fitted[2])


PARTS: dict[str, Callable[[Path, int], None]] = {
    "heads": heads,
    "rows": rows,
    "launch": launch,
    "workers": workers,
    "engines": engines,
    "scheduling": scheduling,
    "reading": reading,
}
"""Functions of the folder for data and the number of rounds. Each prints its own table."""


if __name__ == "__main__":
    main()
