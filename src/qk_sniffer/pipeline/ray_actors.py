"""A capture on a Ray cluster: one actor per GPU, each of which is a rank of the capture.

The actors share the folder of the dump, as processes of `torchrun` do. If an actor dies, the others
run its texts. The command itself publishes the dump on the Hub, so the actors need no token.
"""

from __future__ import annotations

import os
import platform
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from qk_sniffer.config import CaptureConfig
from qk_sniffer.pipeline.publishing import publish, require_publishable
from qk_sniffer.pipeline.ranks import Ranks, ranks_from
from qk_sniffer.pipeline.result import CaptureResult
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import user_path
from qk_toolkit.ray_cluster import (
    ClusterLostError,
    Connection,
    connect,
    death_words,
    import_ray,
)
from qk_toolkit.watcher import Watcher

RunRank = Callable[[CaptureConfig, Watcher, Ranks], CaptureResult]

_MOST_CHARACTERS = 300  # of a reason
_SECONDS_TO_SAVE = 60.0  # for finished texts, after an interruption
_SECONDS_TO_SAVE_IN_A_HURRY = 5.0  # without the head of the cluster, Ray soon ends this process


def run_on_ray(config: CaptureConfig, watcher: Watcher, run_rank: RunRank) -> CaptureResult:
    """Run `run_rank` in the actors of a cluster, and publish the dump where asked for.

    Returns the result of the actor that completed the dump.
    """
    if ranks_from().world > 1:
        raise ConfigError(
            "engine: ray starts its own processes; start this command once, without torchrun, "
            "accelerate or srun"
        )
    require_publishable(config)
    ray = import_ray()
    connection = connect(ray, config.ray_address, config.num_actors, "texts")
    folder = user_path(config.data_root).absolute()
    try:
        number = _number_of_actors(ray, config, watcher)
        with _file_to_find(folder) as shared:
            theirs = _of_an_actor(config, folder)
            result = _Actors(ray, connection, theirs, watcher, run_rank, number, shared).run()
    except ConnectionError as error:  # of a cluster at ray://HOST:PORT
        raise connection.lost(str(error)) from error
    finally:
        connection.close()
    return replace(result, published=publish(config, folder, watcher))


def _of_an_actor(config: CaptureConfig, folder: Path) -> CaptureConfig:
    """The config of a rank: it runs in its process, writes to `folder` and publishes nothing."""
    output = config.output.model_copy(update={"data_root": str(folder), "hf_repo_id": None})
    return config.model_copy(update={"engine": "local", "output": output})


@contextmanager
def _file_to_find(folder: Path) -> Iterator[Path]:
    """A new file in the folder of the dump. An actor that does not find it has another folder."""
    path = folder / f".shared-{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise ConfigError(
            f"output.data_root: {folder}: cannot be used as a folder: {error.strerror or error}"
        ) from error
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


class _Actors:
    """The actors of a capture. Actors whose rank ended are stopped, so that others find room."""

    def __init__(
        self,
        ray: Any,
        connection: Connection,
        config: CaptureConfig,
        watcher: Watcher,
        run_rank: RunRank,
        number: int,
        shared: Path,
    ) -> None:
        self._ray = ray
        self._connection = connection
        self._config = config
        self._watcher = watcher
        self._run_rank = run_rank
        self._number = number
        self._waiting = deque(range(number))
        self._shared = shared
        self._running: dict[Any, int] = {}  # reference of the result → rank
        self._actors: dict[int, Any] = {}
        self._progress = _Progress(watcher)
        self._errors: list[BaseException] = []

    def run(self) -> CaptureResult:
        """Start the actors and wait until one of them has completed the dump.

        Raises a `ClusterLostError` if the cluster no longer answers.
        """
        seconds_to_save = _SECONDS_TO_SAVE
        self._watcher.note(
            f"engine ray: {self._number} actors, {self._config.gpus_per_actor:g} GPUs each"
        )
        self._watcher.busy("loading texts and model in the actors")
        try:
            while self._waiting or self._running:
                self._connection.check()
                self._start_actors()
                done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=0.5)
                self._report()
                for reference in done:
                    result = self._result(reference)
                    if result is not None and result.complete:
                        return result
        except ClusterLostError:
            seconds_to_save = _SECONDS_TO_SAVE_IN_A_HURRY
            raise
        finally:
            self._progress.stop()
            self._stop_actors(seconds_to_save)
        raise self._failure()

    def _start_actors(self) -> None:
        """Start all actors. With `overwrite`, one empties the folder before the others start."""
        overwrite = self._config.overwrite and not self._progress.has_begun
        while self._waiting and not (overwrite and self._running):
            self._start(overwrite)

    def _start(self, overwrite: bool) -> None:
        rank = self._waiting.popleft()
        hidden = {} if self._config.gpus_per_actor else {"CUDA_VISIBLE_DEVICES": ""}
        actor = self._ray.remote(CaptureActor).options(
            num_cpus=1,
            num_gpus=self._config.gpus_per_actor,
            max_concurrency=2,  # `report` and `stop` are called while `run` runs
            runtime_env={"env_vars": {"TQDM_DISABLE": "1", **hidden}},
        )
        self._actors[rank] = actor.remote()
        config = self._config.model_copy(update={"overwrite": overwrite})
        ranks = Ranks(rank, self._number, 0, starts_first=overwrite, knows_folder_is_shared=True)
        run = self._actors[rank].run.remote(self._run_rank, config, ranks, Path.cwd(), self._shared)
        self._running[run] = rank

    def _result(self, reference: Any) -> CaptureResult | None:
        """The result of a rank that ended; None if it failed."""
        rank = self._running.pop(reference)
        try:
            result: CaptureResult = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            show_traceback(error)
            self._errors.append(error.cause)
            self._watcher.note(f"actor {rank} failed ({_reason(error.cause)})")
        except self._ray.exceptions.RayError as error:
            self._connection.was_interrupted()  # raises if the actor is not the cause
            self._errors.append(error)
            others = (
                "others run its texts" if self._running or self._waiting else "no other is left"
            )
            self._watcher.note(f"actor {rank}: {death_words(error)}; {others}")
        else:
            return result
        finally:
            self._ray.kill(self._actors.pop(rank))
        return None

    def _report(self) -> None:
        """Show the progress of the first living actor, which counts the texts of all actors."""
        for rank in sorted(self._running.values()):
            try:
                report = self._ray.get(self._actors[rank].report.remote(), timeout=1)
            except (self._ray.exceptions.RayError, TimeoutError):
                continue  # it died, or it has not started yet
            self._progress.update(report)
            return

    def _stop_actors(self, seconds_to_save: float) -> None:
        """Stop the actors that still run; they save the finished texts first."""
        for actor in self._actors.values():
            actor.stop.remote()
        if self._running:
            references = list(self._running)
            self._ray.wait(references, num_returns=len(references), timeout=seconds_to_save)
        for actor in self._actors.values():
            self._ray.kill(actor)

    def _failure(self) -> ToolkitError:
        for error in self._errors:
            if isinstance(error, ToolkitError):
                return error
        reason = f" ({_reason(self._errors[-1])})" if self._errors else ""
        return ToolkitError(
            f"Ray cluster at {self._connection.address}: all actors ended before the dump was "
            f"complete{reason}. Finished texts are kept; run the same command again to continue."
        )


class CaptureActor:
    """A rank of a capture in a process of the cluster."""

    def __init__(self) -> None:
        self._watcher = _ReportingWatcher()

    def run(
        self,
        run_rank: RunRank,
        config: CaptureConfig,
        ranks: Ranks,
        working_folder: Path,
        shared: Path,
    ) -> CaptureResult:
        """Run the rank until its end. Relative paths begin at the folder of the command.

        `shared` is a file that the command has written into the folder of the dump.
        """
        if not shared.exists():
            raise ConfigError(
                f"output.data_root: node {platform.node()} has no access to {shared.parent} of the "
                "machine where the command runs; give a folder that all nodes share (if data_root "
                "is a URL: output.work_dir)"
            )
        with suppress(FileNotFoundError):  # if this machine lacks it, paths must be absolute
            os.chdir(working_folder)
        return run_rank(config, self._watcher, ranks)

    def report(self) -> dict[str, Any]:
        """Notes and counts since the start."""
        return self._watcher.report()

    def stop(self) -> None:
        """Stop `run` after the current text, and save the finished texts."""
        self._watcher.stopped.set()


class _ReportingWatcher(Watcher):
    """Collects notes and counts."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._notes: list[str] = []
        self._total: int | None = None
        self._done = 0
        self._has_begun = False
        self._counts: Counter[str] = Counter()
        self._shown: tuple[str, int, int] | None = None  # task, done, total

    def report(self) -> dict[str, Any]:
        with self._lock:
            return {
                "notes": list(self._notes),
                "has_begun": self._has_begun,
                "total": self._total,
                "done": self._done,
                "counts": dict(self._counts),
                "shown": self._shown,
            }

    def note(self, text: str) -> None:
        with self._lock:
            self._notes.append(text)

    def start(self, task: str, total: int | None, done: int = 0, *, rate: str = "") -> None:
        with self._lock:
            self._has_begun, self._total, self._done = True, total, done

    def advance(self, steps: int = 1, **counts: int) -> None:
        with self._lock:
            self._done += steps
            self._counts.update(counts)
        if self.stopped.is_set():
            raise ToolkitError("the capture was stopped")

    def show(self, task: str, done: int, total: int, *, in_bytes: bool = False) -> None:
        with self._lock:
            self._shown = task, done, total


class _Progress:
    """Shows the reports of an actor in the watcher of the command."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._notes: set[str] = set()
        self._done = 0
        self._counts: Counter[str] = Counter()
        self._shown: tuple[str, int, int] | None = None
        self.has_begun = False

    def update(self, report: dict[str, Any]) -> None:
        """Show what is new in a report."""
        for note in report["notes"]:
            if note not in self._notes:
                self._notes.add(note)
                self._watcher.note(note)
        if report["has_begun"] and not self.has_begun:
            self.has_begun = True
            self._done = report["done"]
            self._watcher.start("texts", report["total"], self._done, rate="tokens")
        if report["done"] > self._done:
            new = Counter(report["counts"]) - self._counts
            self._watcher.advance(report["done"] - self._done, **new)
            self._done, self._counts = report["done"], Counter(report["counts"])
        if report["shown"] not in (None, self._shown):
            self._shown = report["shown"]
            self._watcher.show(*report["shown"])

    def stop(self) -> None:
        self._watcher.stop()


def _reason(error: BaseException) -> str:
    if type(error).__module__.startswith("ray."):
        return death_words(error)
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def _number_of_actors(ray: Any, config: CaptureConfig, watcher: Watcher) -> int:
    """The wanted number of actors, or fewer if the nodes of the cluster lack GPUs or CPUs."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = sum(node.get("GPU", 0.0) for node in nodes)
    cpus = sum(node.get("CPU", 0.0) for node in nodes)
    each = config.gpus_per_actor
    has = f"the cluster has {gpus:g} GPUs and num_gpus is {each:g}"
    if not each and config.num_actors is None:
        raise ConfigError(f"num_actors: cannot be chosen, as {has}; give num_actors")
    places = sum(_places_of(node, each) for node in nodes)
    if places < 1:
        raise ConfigError(
            f"num_gpus: no node has a place for an actor, which needs num_gpus GPUs and 1 CPU: "
            f"{has}, with {cpus:g} CPUs; give a lower num_gpus (0 to run on CPUs, with num_actors)"
        )
    if config.num_actors is not None and places < config.num_actors:
        watcher.note(
            f"num_actors: {config.num_actors} given, but there are places for {places}: {has}, "
            f"with {cpus:g} CPUs"
        )
    return min(places, config.num_actors or places)


def _places_of(node: dict[str, float], gpus_per_actor: float) -> int:
    """How many actors a node can run at a time."""
    cpus = int(node.get("CPU", 0.0))
    if not gpus_per_actor:
        return cpus
    return min(cpus, int(node.get("GPU", 0.0) / gpus_per_actor + 1e-9))
