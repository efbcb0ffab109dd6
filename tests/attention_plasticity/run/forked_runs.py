"""Runs in processes of their own, forked from one that has imported the libraries.

A process can die at a chosen write.
"""

import json
import multiprocessing
import os
from pathlib import Path

_PRELOADED = (
    "attention_plasticity.head_analysis",
    "attention_plasticity.run.runner",
    "attention_plasticity.run.write",
    "pytest",
    "scipy.stats",
)


def start(dump, out, fields, *, die_at=None):
    """Start a run. `die_at` is the number of a write: of a wait for the disk, or of a renaming.

    The heads that a process computed are in a file of its own.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED])
    process = context.Process(target=_run, args=(dump, out, dict(fields), die_at))
    process.start()
    return process


def computed_heads(out):
    """The heads that processes have computed, sorted."""
    found = [json.loads(path.read_text()) for path in out.glob("computed-*")]
    return sorted((layer, head) for heads in found for layer, head in heads)


def _run(dump, out, fields, die_at):
    from runs_here import Here, analyse

    if die_at is not None:
        _die_at(die_at)
    engine = Here()
    analyse(dump, out, engine=engine, **fields)
    (out / f"computed-{os.getpid()}").write_text(json.dumps(engine.heads))


def _die_at(number):
    left = number
    sync, rename = os.fsync, os.replace

    def count():
        nonlocal left
        left -= 1
        if not left:
            os._exit(9)

    def dying_sync(descriptor):
        count()
        sync(descriptor)

    def dying_rename(path, target):
        count()
        rename(path, target)
        return Path(target)

    os.fsync = dying_sync
    Path.replace = dying_rename
