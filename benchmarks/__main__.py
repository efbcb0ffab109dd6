"""Speed and memory: `python -m benchmarks NAME…`.

    analysis   CPU time of a query head, against a floor and against an earlier version
    capture    seconds of a text, against a bare forward; memory
    attention  attention columns of a layer in plain torch, by the size of blocks
    tap        the notebook of README.md: forwards, files and bytes, against bare forwards
    scale      growth with heads and rows, many files, workers, Ray
    vllm       CPU time of a capture inside vLLM, against plain vLLM

Every time is the best of some rounds, in which the things that are compared take turns. Data is
generated below `bench-data/` and kept for the next time; delete the folder when done.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from importlib import import_module
from pathlib import Path

NAMES = ("analysis", "capture", "attention", "tap", "scale", "vllm")
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "ARROW_NUM_THREADS"), "1")


def main() -> None:
    """Run one benchmark here, or several in processes of their own."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3, help="timings of each thing")
    parser.add_argument("--data", type=Path, default=Path("bench-data"), help="folder of dumps")
    parser.add_argument("--tokens", type=int, help="of a text of capture, tap and vllm")
    parser.add_argument("--earlier", type=Path, help="folder src of another version, for analysis")
    options = parser.parse_args()
    if len(options.names) > 1:
        flags = [word for word in sys.argv[1:] if word not in options.names]
        for name in options.names:
            subprocess.run([sys.executable, "-m", "benchmarks", name, *flags], check=True)
        return
    [name] = options.names
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"\n{name}: {machine}, load before {load}", flush=True)
    if name == "analysis":  # as in a worker; read when numpy is imported
        os.environ.update(ONE_THREAD)
    import_module(f"benchmarks.{name}").benchmark(options)


if __name__ == "__main__":
    main()
