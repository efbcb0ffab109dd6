"""CPU time per query head of this version and of another one, in one run.

    git worktree add ../earlier SOME_COMMIT
    python -m benchmarks.versions ../earlier/src                 # shapes b and c
    python -m benchmarks.versions ../earlier/src --dump FOLDER   # a captured dump

Both versions run in a process of their own, with the settings of a worker, and take turns. The best
time of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.shapes import SHAPES, make_shape

ROOT = Path(__file__).parents[1]
WORK = """
import sys, time
source, folder, layer = sys.argv[1:]
sys.path[:0] = [source]
import pyarrow
pyarrow.set_cpu_count(1)
from pathlib import Path
import attention_plasticity
assert attention_plasticity.__file__.startswith(source), attention_plasticity.__file__
from attention_plasticity.config import RunnerConfig
from attention_plasticity.head_analysis import analyze_group
from qk_dump.source import open_dump
dump = open_dump(Path(folder))
config, layer = RunnerConfig(), int(layer)
heads = list(range(dump.manifest.num_q_heads // dump.manifest.num_k_heads))
try:
    from attention_plasticity.read.run_texts import run_texts
except ImportError:  # before the version with read/
    from attention_plasticity.head.rows import run_texts
texts = run_texts(dump, [layer], config)
for _ in sys.stdin:
    began = time.process_time()
    found = analyze_group(dump, layer, 0, heads, config, texts)
    assert all(hasattr(one, "metrics") for one in found)
    print((time.process_time() - began) / len(heads), flush=True)
"""


def main() -> None:
    """Print one table per shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("earlier", type=Path, help="folder src of the other version")
    parser.add_argument("--shapes", default="b,c", help="some of a,b,c")
    parser.add_argument("--dump", type=Path, help="a dump in place of the shapes")
    parser.add_argument("--layer", type=int, default=0, help="of the dump")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--data", type=Path, default=ROOT / "bench-data")
    options = parser.parse_args()
    folders = [options.dump]
    if options.dump is None:
        shapes = [SHAPES[name] for name in options.shapes.split(",")]
        folders = [make_shape(options.data, shape, "gaussian") for shape in shapes]
    for folder in folders:
        of = [str(folder.resolve()), str(options.layer)]
        processes = {
            "earlier": _start(options.earlier.resolve(), of),
            "new": _start(ROOT / "src", of),
        }
        best = _take_turns(processes, options.rounds)
        print(f"\n{folder}: CPU time per query head, one worker")
        for name, seconds in best.items():
            print(f"{name:<16}{1e3 * seconds:>8.0f} ms{seconds / best['earlier']:>8.2f}")


def _start(source: Path, of: list[str]) -> subprocess.Popen[str]:
    arguments = [str(source), *of]
    return subprocess.Popen(
        [sys.executable, "-c", WORK, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **_worker_variables(source)},
    )


def _worker_variables(source: Path) -> dict[str, str]:
    """The environment variables that a version sets in its workers."""
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]);"
        "from attention_plasticity.run import worker as w;"
        "print(json.dumps({**getattr(w, 'MEMORY_VARIABLES', {}),"
        " **dict.fromkeys(w.THREAD_VARIABLES, '1')}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(source)], capture_output=True, text=True, check=True
    )
    variables: dict[str, str] = json.loads(found.stdout)
    return variables


def _take_turns(processes: dict[str, subprocess.Popen[str]], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(processes, float("inf"))
    for number in range(rounds + 1):
        for name, process in processes.items():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("again\n")
            process.stdin.flush()
            seconds = float(process.stdout.readline())
            if number:  # the first round warms up
                best[name] = min(best[name], seconds)
    for process in processes.values():
        process.communicate()
    return best


if __name__ == "__main__":
    main()
