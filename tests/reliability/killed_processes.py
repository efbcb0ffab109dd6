"""Processes that are killed or interrupted at any moment, and run again."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from commands import run, start
from dumps import make_dump
from planted import Planted
from reliability.damaged_files import tables
from reliability.outcomes import Outcome
from sniffing import same_bytes, start_sniffing, words
from tiny_texts import save_texts, save_tiny_model
from waiting import PATIENCE

_KILLS, _RAY_KILLS = 42, 20
_QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def killed_analysis(folder, step):
    """SIGKILL at a random moment; the same command then ends with the same bytes."""
    yield from _killed(folder, range(0, _KILLS, step), (0.1, 2.5), "--max_workers", 2)


def killed_on_ray(folder, step):
    """The same for a command whose heads are computed on a Ray cluster, which goes on."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        flags = ("--engine", "ray", "--ray_address", nodes.address)
        yield from _killed(folder, range(0, _RAY_KILLS, step), (1.0, 10.0), *flags)
    finally:
        nodes.shutdown()


def _killed(folder, numbers, delays, *engine):
    """Two kills after random delays in seconds, then the whole command, for each number."""
    dump = make_dump(folder / "dump", layers=2, q_heads=4, k_heads=2, n=4000, d=32)
    words = ("--dataset_local_root", dump, "--output_dir")
    assert run("analyze", *words, folder / "whole").returncode == 0
    expected = tables(folder / "whole")
    rng = np.random.default_rng(0)
    for number in numbers:
        out = folder / f"out{number}"
        kept = set()
        for delay in rng.uniform(*delays, 2):
            _kill(start("analyze", *words, out, *engine, **_QUIET), delay)
            done = {path.name for path in out.glob(".heads/*/l*.record")}
            if not kept <= done:
                yield f"kill {number}", Outcome.LOST
            kept = done
        ended = run("analyze", *words, out, *engine)
        if "Traceback" in ended.stderr or ended.returncode:
            yield f"kill {number}", Outcome.TRACEBACK
            continue
        yield f"kill {number}", Outcome.UNHARMED if tables(out) == expected else Outcome.WRONG


def _kill(process, delay):
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=delay)
    process.kill()
    process.wait()


def killed_capture(folder, step):
    """The same for a capture."""
    model, texts = save_tiny_model(folder / "model"), save_texts(folder / "texts", [300] * 20)
    whole = folder / "whole"
    assert start_sniffing(*words(model, texts, whole), **_QUIET).wait() == 0
    rng = np.random.default_rng(0)
    for number in range(0, _KILLS, step):
        dump = folder / f"dump{number}"
        flags = words(model, texts, dump)
        for delay in rng.uniform(2.0, 8.0, 2):
            _kill(start_sniffing(*flags, **_QUIET), delay)
        last = start_sniffing(*flags, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        told = last.communicate()[1].decode()
        if "Traceback" in told or last.returncode:
            yield f"kill {number}", Outcome.TRACEBACK
            continue
        yield f"kill {number}", Outcome.UNHARMED if same_bytes(dump, whole) else Outcome.WRONG


def interrupted_commands(folder, step):
    """Ctrl-C at moments from the first on, and a second one right after: exit code 130."""
    dump = make_dump(folder / "dump", layers=2, q_heads=4, k_heads=2, n=4000, d=32)
    verbs = {
        "analyze": ("analyze", "--dataset_local_root", dump, "--output_dir", folder / "out"),
        "report": ("report", folder / "nothing"),
        "capture": ("capture", "--model.name", "./nothing", "--dataset.path", "./nothing"),
        "demo": ("demo", "--output_dir", folder / "demo"),
    }
    planted = Planted(folder / "planted")
    planted.plant("attention_plasticity", "open(f'{PLACE}/begun', 'w').close()")
    begun = planted.place / "begun"  # Python itself has started
    path = os.pathsep.join([str(planted.place), *filter(None, sys.path)])
    delays = np.linspace(0.05, 1.0, 20)
    for number, delay in enumerate(delays):
        for verb, flags in verbs.items():
            if (number * len(verbs) + list(verbs).index(verb)) % step:
                continue
            begun.unlink(missing_ok=True)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PYTHONPATH", path)
                process = start(*flags, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=delay)
            python_starts = not begun.exists()
            for _ in range(2):
                process.send_signal(signal.SIGINT)
            told = process.communicate(timeout=PATIENCE)[1].decode()
            name = f"{verb} after {delay:.2f} s"
            python_starts |= "Traceback" in told and "/src/" not in told  # no file of ours was read
            codes = (0, 2, 130, -signal.SIGINT)  # the last one for a signal while Python ends
            if not python_starts and ("Traceback" in told or process.returncode not in codes):
                last = (told.strip().splitlines() or ["nothing on standard error"])[-1]
                yield f"{name}: exit code {process.returncode}, {last}", Outcome.TRACEBACK
            else:
                yield name, Outcome.REFUSED
