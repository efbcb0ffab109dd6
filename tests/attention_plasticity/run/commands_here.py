"""The command called in the test's own process, where a process of its own is not what is tested.

The heads are still computed by real worker processes.
"""

import io
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

from attention_plasticity.cli import main


def run_here(*words):
    """`attention-plasticity`: its exit code and what it printed."""
    given = [str(word) for word in words]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(given)
    return CompletedProcess(given, code, out.getvalue(), err.getvalue())


def analyze_here(*words):
    """`attention-plasticity analyze`, with one worker unless another number is given."""
    one_worker = () if "--max_workers" in words else ("--max_workers", 1)
    return run_here("analyze", *words, *one_worker)
