"""Reading of a head: over S3 on this machine against the local disk.

moto's server runs in a process of its own, on the same cores. Both readings give the same arrays.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.scale_dumps import make_rows
from benchmarks.shapes import SHAPES, make_shape
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.reader import HeadRows, read_head
from qk_dump.source import open_dump

_SERVER = Path(__file__).parents[1] / "tests" / "qk_toolkit" / "s3_server.py"
_HEAD = HeadId(0, 0, "q")
_BUCKET = "reading"
_READS = 10  # per round, of the small head


def reading(data: Path, rounds: int) -> None:
    """Print the times over S3 and from disk, in turns, and their ratio (target: 1.3)."""
    print("\nReading a head (ms)")
    print(f"{'rows':>10}{'width':>7}{'':>8}{'disk':>7}{'s3':>7}{'ratio':>7}")
    shape = SHAPES["b"]
    small = make_shape(data, shape, "gaussian")
    _print_times(f"{shape.rows:>10,}{shape.width:>7}", _times(small, _READS * rounds))
    _print_times(f"{1_000_000:>10,}{64:>7}", _times(make_rows(data, 1_000_000), 2 * rounds))


def _times(folder: Path, reads: int) -> dict[str, list[float]]:
    """Seconds of every reading, from disk and over S3 in turns."""
    with _bucket_with(folder / _HEAD.folder) as url:
        dumps = {"disk": open_dump(folder), "s3": open_dump(url)}
        _require_equal(*(_read(dump) for dump in dumps.values()))
        found: dict[str, list[float]] = {name: [] for name in dumps}
        for _ in range(reads):
            for name, dump in dumps.items():
                found[name].append(_seconds(dump))
    return found


def _print_times(head: str, times: dict[str, list[float]]) -> None:
    for label, typical in (("best", min), ("median", median)):
        disk, s3 = 1e3 * typical(times["disk"]), 1e3 * typical(times["s3"])
        print(f"{head}{label:>8}{disk:>7.0f}{s3:>7.0f}{s3 / disk:>7.2f}")


def _seconds(dump: Dump) -> float:
    from qk_dump.remote import _tail

    _tail.cache_clear()  # a worker reads every head once
    start = time.perf_counter()
    _read(dump)
    return time.perf_counter() - start


def _read(dump: Dump) -> HeadRows:
    files = dump.require_files(_HEAD)
    return read_head(files, max_rows=50_000)


def _require_equal(one: HeadRows, other: HeadRows) -> None:
    assert np.array_equal(one.vectors, other.vectors)
    assert np.array_equal(one.bucket, other.bucket)


@contextmanager
def _bucket_with(head: Path) -> Iterator[str]:
    """The URL of a dump with one head on a server of its own."""
    import fsspec

    command = [sys.executable, str(_SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        os.environ["AWS_ENDPOINT_URL"] = server.stdout.readline().decode().strip()
        os.environ.setdefault("AWS_ACCESS_KEY_ID", "benchmark")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "benchmark")
        os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
        try:
            fsspec.get_filesystem_class("s3").clear_instance_cache()  # of an earlier server
            system = fsspec.filesystem("s3")
            system.mkdir(_BUCKET)
            for file in head.iterdir():
                system.put_file(str(file), f"{_BUCKET}/dump/{head.name}/{file.name}")
            yield f"s3://{_BUCKET}/dump"
        finally:
            server.kill()


def main() -> None:
    """Run the benchmark."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("/tmp/attention-plasticity-benchmarks"))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    reading(arguments.data, arguments.rounds)


if __name__ == "__main__":
    main()
