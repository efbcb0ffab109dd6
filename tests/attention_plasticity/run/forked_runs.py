"""Runs in processes of their own, forked from one that has imported the libraries.

A process can die at a chosen write.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_PRELOADED = (
    "attention_plasticity.head_analysis",
    "attention_plasticity.run.runner",
    "attention_plasticity.run.write",
    "pytest",
    "scipy.stats",
)


def start(
    dump: Path,
    out: Path,
    fields: Mapping[str, Any],
    *,
    die_at: int | None = None,
) -> ForkServerProcess:
    """Start a run. `die_at` is the number of a write: of a wait for the disk, or of a renaming.

    The heads that a process computed are in a file of its own.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED])
    process = context.Process(target=_run, args=(dump, out, dict(fields), die_at))
    process.start()
    return process


def computed_heads(out: Path) -> list[tuple[int, int]]:
    """The heads that processes have computed, sorted."""
    found = [json.loads(path.read_text()) for path in out.glob("computed-*")]
    return sorted((layer, head) for heads in found for layer, head in heads)


def _run(
    dump: Path,
    out: Path,
    fields: dict[str, Any],
    die_at: int | None,
) -> None:
    from runs_here import Here, analyse

    if die_at is not None:
        _die_at(die_at)
    engine = Here()
    analyse(dump, out, engine=engine, **fields)
    (out / f"computed-{os.getpid()}").write_text(json.dumps(engine.heads))


def _die_at(number: int) -> None:
    left = number
    sync, rename = os.fsync, os.replace

    def count() -> None:
        nonlocal left
        left -= 1
        if not left:
            os._exit(9)

    def dying_sync(descriptor: Any) -> None:
        count()
        sync(descriptor)

    def dying_rename(path: Any, target: Any) -> Path:
        count()
        rename(path, target)
        return Path(target)

    os.fsync = dying_sync  # type: ignore[assignment]
    Path.replace = dying_rename  # type: ignore[method-assign, assignment]
