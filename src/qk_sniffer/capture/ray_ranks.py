"""A capture on a Ray cluster: tasks that run the ranks of a capture, usually one per GPU.

Ray starts the ranks, and starts one again whose process dies. They share the folder of the dump, as
processes of `torchrun` do, and nothing else: the command counts the texts that are saved there. It
publishes the dump, so the ranks need no token.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, cast

from qk_dump.layout import UNFINISHED
from qk_sniffer.capture.folder import made_folder
from qk_sniffer.capture.outline import OUTLINE, Outline
from qk_sniffer.capture.ranks import Ranks, ranks_from
from qk_sniffer.capture.refusals import refuse_used_folder
from qk_sniffer.capture.result import CaptureResult
from qk_sniffer.capture.segments import read_segment, saved_chunks, segment_path
from qk_sniffer.config import CaptureConfig, RaySettings
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import user_path
from qk_toolkit.ray_cluster import connect, death_words, import_ray
from qk_toolkit.watcher import Watcher

RunRank = Callable[[CaptureConfig, Watcher, Ranks], CaptureResult]

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_SAVE = 60.0  # for the running text, after an interruption


def run_on_ray(
    config: CaptureConfig, settings: RaySettings, watcher: Watcher, run_rank: RunRank
) -> CaptureResult:
    """Run `run_rank` in tasks of a cluster; the result of the rank that completed the dump."""
    if ranks_from().world > 1:
        raise ConfigError(
            "ray: starts its own processes; start this command once, without torchrun, accelerate "
            "or srun"
        )
    folder = user_path(config.data_root).absolute()
    refuse_used_folder(folder, config.dataset.path)
    ray = import_ray()
    connection = connect(ray, settings.address, settings.processes, "texts")
    try:
        number = _number_of_processes(ray, settings, watcher)
        watcher.note(f"ray: {number} processes, {settings.gpus:g} GPUs each")
        watcher.busy("loading texts and model in the cluster")
        with made_folder(folder), NamedTemporaryFile(dir=folder, prefix=".shared-") as shared:
            output = config.output.model_copy(update={"data_root": str(folder)})
            theirs = config.model_copy(update={"ray": None, "output": output})
            given = run_rank, theirs, Path.cwd(), Path(shared.name)
            task, ranks = _task(ray, settings.gpus), [Ranks(rank, number) for rank in range(number)]
            running = [
                task.remote(*given, replace(one, knows_folder_is_shared=True)) for one in ranks
            ]
            return _first_complete(ray, running, _SavedTexts(folder, watcher))
    except ConnectionError as error:  # of a cluster at ray://HOST:PORT
        raise connection.lost(str(error)) from error
    finally:
        watcher.stop()
        connection.close()


def _task(ray: Any, gpus: float) -> Any:
    hidden = {} if gpus else {"CUDA_VISIBLE_DEVICES": ""}
    return ray.remote(
        num_cpus=1,
        num_gpus=gpus,
        max_calls=1,  # a process of its own
        runtime_env={"env_vars": {"TQDM_DISABLE": "1", **hidden}},
    )(_run_rank)


def _run_rank(
    run_rank: RunRank, config: CaptureConfig, working_folder: Path, shared: Path, ranks: Ranks
) -> tuple[CaptureResult, list[str]]:
    """Run a rank in the cluster; its result and notes.

    Relative paths begin at the folder of the command, which has made the file `shared`.
    """
    if not shared.exists():
        raise ConfigError(
            f"output.data_root: node {platform.node()} has no access to {shared.parent} of the "
            "machine where the command runs; give a folder that all nodes share (if data_root "
            "is a URL: output.work_dir)"
        )
    with suppress(FileNotFoundError):  # if this machine lacks it, paths must be absolute
        os.chdir(working_folder)
    notes = _Notes()
    return run_rank(config, notes, ranks), notes.kept


class _Notes(Watcher):
    """Keeps the notes of a rank."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def note(self, text: str) -> None:
        self.kept.append(text)


class _SavedTexts:
    """The texts that the ranks have saved, as progress of the command."""

    def __init__(self, folder: Path, watcher: Watcher) -> None:
        self.watcher = watcher
        self._folder = folder
        self._seen: set[int] | None = None  # chunks; None until the capture has begun

    def look(self) -> None:
        """Report the chunks that were saved since the last look."""
        with suppress(ToolkitError):  # the dump has just been completed; ranks report damage
            if self._seen is None:
                if not (self._folder / UNFINISHED / OUTLINE).exists():
                    return
                total = Outline.read(self._folder / UNFINISHED).texts
                self.watcher.start("texts", total, rate="tokens")
                self._seen = set()
            for number in saved_chunks(self._folder) - self._seen:
                segment = read_segment(segment_path(self._folder, number))
                self._seen.add(number)
                lengths = [one.num_tokens for one in segment.examples] if segment else []
                self.watcher.advance(len(lengths), tokens=sum(lengths))


def _first_complete(ray: Any, running: list[Any], texts: _SavedTexts) -> CaptureResult:
    """The result of the first rank that completes the dump. Then the others are interrupted."""
    errors: list[ToolkitError] = []
    try:
        while running:
            done, running = ray.wait(running, timeout=_SECONDS_BETWEEN_LOOKS)
            texts.look()
            for reference in done:
                try:
                    result, notes = ray.get(reference)
                except ray.exceptions.RayError as error:
                    errors.append(_failure(ray, error))
                    texts.watcher.note(f"a process failed: {errors[-1]}")
                    continue
                if result.complete:
                    for note in notes:
                        texts.watcher.note(note)
                    return cast(CaptureResult, result)
    finally:
        for reference in running:
            ray.cancel(reference)  # finished texts are saved
        if running:
            ray.wait(running, num_returns=len(running), timeout=_SECONDS_TO_SAVE)
    raise next((one for one in errors if isinstance(one, ConfigError)), errors[-1])


def _failure(ray: Any, error: BaseException) -> ToolkitError:
    """What ended a rank."""
    if isinstance(error, ray.exceptions.RayTaskError):
        show_traceback(error)
        if isinstance(error.cause, ToolkitError):
            return error.cause
    return ToolkitError(
        f"Ray: {death_words(error)}. Finished texts are kept; run the same command again to "
        "continue."
    )


def _number_of_processes(ray: Any, settings: RaySettings, watcher: Watcher) -> int:
    """The wanted number of processes, or fewer if the nodes of the cluster lack GPUs or CPUs."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus, cpus = (sum(node.get(name, 0.0) for node in nodes) for name in ("GPU", "CPU"))
    has = f"the cluster has {gpus:g} GPUs and {cpus:g} CPUs, and ray.gpus is {settings.gpus:g}"
    if not settings.gpus and settings.processes is None:
        raise ConfigError(f"ray.processes: cannot be chosen, as {has}; give ray.processes")
    places = 0
    for node in nodes:
        room = int(node.get("CPU", 0.0))
        if settings.gpus:
            room = min(room, int(node.get("GPU", 0.0) / settings.gpus + 1e-9))
        places += room
    if places < 1:
        raise ConfigError(
            f"ray.gpus: no node has a place for a process, which needs 1 CPU: {has}; give a lower "
            "ray.gpus (0 to run on CPUs, with ray.processes)"
        )
    if settings.processes is not None and places < settings.processes:
        watcher.note(f"ray.processes: {settings.processes} given, {places} have room: {has}")
    return min(places, settings.processes or places)
