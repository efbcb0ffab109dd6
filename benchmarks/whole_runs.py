"""Whole runs of the command, with their time and the memory of their processes."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SECONDS_BETWEEN_LOOKS = 0.02

# In a worker: writes the time at which the first file of a head is opened.
_FIRST_OPENED = """
import os, sys, time
if "attention_plasticity.run.worker" in sys.orig_argv:
    def hook(event, arguments, seen=[]):
        if event == "open" and not seen and str(arguments[0]).endswith(".parquet"):
            seen.append(True)
            with open(os.environ["FIRST_OPENED"], "a") as file:
                file.write(f"{time.time()!r}\\n")
    sys.addaudithook(hook)
"""


@dataclass(frozen=True)
class Measured:
    """A whole run."""

    seconds: float
    cpu_seconds: float  # of the main process and its workers
    driver_mb: float  # largest resident memory of the main process
    worker_mb: float  # of any worker


def analyze(dump: Path, *flags: str) -> Measured:
    """Run `attention-plasticity analyze` into an empty folder."""
    with tempfile.TemporaryDirectory() as out:
        began, cpu_before = time.perf_counter(), _cpu_of_ended_processes()
        process = _started(dump, out, flags)
        peaks = [0, 0]
        while process.poll() is None:
            peaks[0] = max(peaks[0], _peak(process.pid))
            peaks[1] = max([peaks[1], *map(_peak, _children(process.pid))])
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        took = time.perf_counter() - began
        if process.returncode:
            raise SystemExit(f"the analysis of {dump} ended with {process.returncode}")
        cpu = _cpu_of_ended_processes() - cpu_before
        return Measured(took, cpu, peaks[0] / 1024, peaks[1] / 1024)


def seconds_to_first_head(dump: Path) -> float:
    """Seconds from the start of the command until a worker opens the first file of a head."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(_FIRST_OPENED)
        mark = folder / "opened"
        path = os.pathsep.join([name, *filter(None, [os.environ.get("PYTHONPATH")])])
        began = time.time()
        variables = {"PYTHONPATH": path, "FIRST_OPENED": str(mark)}
        process = _started(dump, name, (), variables)
        try:
            while not (mark.exists() and mark.read_text().endswith("\n")):
                if process.poll() is not None:
                    raise SystemExit(f"the analysis of {dump} ended with {process.returncode}")
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        finally:
            process.terminate()
            process.wait()
        return float(mark.read_text().split()[0]) - began


def _started(
    dump: Path, out: str, flags: tuple[str, ...], variables: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    words = ["analyze", str(dump), "--output_dir", str(Path(out) / "run"), *flags]
    return subprocess.Popen(
        [sys.executable, "-m", "attention_plasticity", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(variables or {})},
    )


def _cpu_of_ended_processes() -> float:
    """CPU seconds of the processes that this process started, and of their own."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
