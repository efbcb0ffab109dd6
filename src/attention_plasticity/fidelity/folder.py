"""The folder of the results: a new one, or that of an analysis of the same dump."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attention_plasticity.config import make_config
from attention_plasticity.metrics import FIDELITY
from attention_plasticity.run.fingerprints import InputFiles, joint_fingerprint
from attention_plasticity.run.outputs import FIDELITY_INFO, RUN_FILE, refuse_inside_dump
from attention_plasticity.run.plan import make_plan
from attention_plasticity.run.run_info import read_run_info
from qk_dump.layout import Dump
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import require_writable, try_lock, user_path
from qk_toolkit.urls import is_remote


def result_folder(output_dir: str | None, dump: Dump) -> Path:
    """The folder to write. Raises a `ConfigError` if it is a URL, or inside a dump."""
    if output_dir is not None and is_remote(output_dir):
        raise ConfigError(f"output_dir: {output_dir}: is a URL; give a folder of this machine")
    folder = Path("results") / dump.name if output_dir is None else user_path(output_dir)
    for name in (FIDELITY.file, FIDELITY_INFO):
        refuse_inside_dump(folder / name)
        require_writable(folder / name, "Choose another output_dir.")
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against an analysis and against another command like this one."""
    lock = try_lock(folder / ".lock")
    if lock is None:
        raise ConfigError(
            f"{folder}: another run is writing here. Wait until it ends, or choose another "
            "output_dir."
        )
    try:
        yield
    finally:
        lock.release()


def refuse_other_dump(folder: Path, dump: Dump) -> None:
    """Raise a `ConfigError` if the folder has an analysis of another dump."""
    path = folder / RUN_FILE
    try:
        info = read_run_info(path)
    except FileNotFoundError:
        return
    recorded = info.get("input", {}).get("fingerprint")
    if recorded is None or recorded == _fingerprint(info, dump):
        return
    raise ConfigError(
        f"{folder}: has the tables of another dump, or of an earlier state of this one "
        f"({info['input'].get('path')}). Choose another output_dir, or analyse this dump again"
    )


def _fingerprint(info: dict[str, Any], dump: Dump) -> str | None:
    """The fingerprint of the heads of an analysis, with the files of `dump`; None if they differ.

    Heads that failed in the analysis do not count.
    """
    try:
        config = make_config(info["config"])
        plan = make_plan(dump, config)
    except (ConfigError, KeyError):
        return None
    failed = {(one["layer"], one["q_head"]) for one in info.get("failures", [])}
    heads = [head for head in plan.triples if head[:2] not in failed]
    return joint_fingerprint(InputFiles(dump).files_of_all(heads))
