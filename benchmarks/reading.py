"""Reading a head over S3, from a server on the same cores, against reading it from the disk."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.dumps import LARGE, Shape, make_dump
from benchmarks.timing import show
from qk_dump.heads import HeadId
from qk_dump.reader import HeadRows, read_head
from qk_dump.source import open_dump

HEAD = HeadId(0, 0, "q")
SHAPES = (LARGE, Shape(1_000_000, 64, q_heads=1))
BUCKET = "reading"
SERVER = Path(__file__).parents[1] / "tests" / "qk_toolkit" / "s3_server.py"


def benchmark(options: Namespace) -> None:
    """Print the times and their ratio."""
    rows = []
    for shape in SHAPES:
        folder = make_dump(options.data, shape)
        size = sum(file.stat().st_size for file in (folder / HEAD.folder).iterdir())
        with _bucket_with(folder) as url:
            disk, s3 = _times((str(folder), url), 5 * options.rounds)
        cells = (f"{size / 1e6:.0f} MB", f"{1e3 * disk:.0f} ms", f"{1e3 * s3:.0f} ms")
        rows.append([f"{shape.rows:,} rows, {shape.width} dimensions", *cells, f"{s3 / disk:.2f}"])
    show(["head", "size", "disk", "S3", "ratio"], rows)


def _times(places: tuple[str, str], rounds: int) -> list[float]:
    """Best time of each place, in turns. Both give the same arrays."""
    one, other = (_read(place)[0] for place in places)
    assert np.array_equal(one.vectors, other.vectors)
    return [
        min(found) for found in zip(*(map(_seconds, places) for _ in range(rounds)), strict=True)
    ]


def _read(place: str) -> tuple[HeadRows, float]:
    files = open_dump(place).require_files(HEAD)  # a dump keeps the footers that it has read
    began = time.perf_counter()
    return read_head(files, max_rows=50_000), time.perf_counter() - began


def _seconds(place: str) -> float:
    return _read(place)[1]


@contextmanager
def _bucket_with(dump: Path) -> Iterator[str]:
    """The URL of a dump with one head, on a server in a process of its own."""
    import fsspec

    command = [sys.executable, str(SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        os.environ["AWS_ENDPOINT_URL"] = server.stdout.readline().decode().strip()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
            os.environ.setdefault(name, "us-east-1")
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # of an earlier server
        system = fsspec.filesystem("s3")
        system.mkdir(BUCKET)
        for file in (dump / "dump.json", *(dump / HEAD.folder).iterdir()):
            system.put_file(str(file), f"{BUCKET}/{file.relative_to(dump)}")
        yield f"s3://{BUCKET}"
        server.kill()
