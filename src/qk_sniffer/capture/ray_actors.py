"""A capture on a Ray cluster: one actor per GPU, each of which is a rank of the capture.

Ray only starts the ranks. They share the folder of the dump, as processes of `torchrun` do. An
actor that dies is started again. The command itself publishes the dump on the Hub, so the actors
need no token.
"""

from __future__ import annotations

import os
import platform
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from qk_sniffer.capture.folder import made_folder
from qk_sniffer.capture.publishing import publish, require_publishable
from qk_sniffer.capture.ranks import Ranks, ranks_from
from qk_sniffer.capture.refusals import refuse_run_folder
from qk_sniffer.capture.result import CaptureResult
from qk_sniffer.config import CaptureConfig
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import cannot_write, user_path
from qk_toolkit.ray_cluster import ClusterLostError, Connection, connect, death_words, import_ray
from qk_toolkit.watcher import Watcher

RunRank = Callable[[CaptureConfig, Watcher, Ranks], CaptureResult]

_DEATHS = 3  # of the actors of a rank, after which it is not started again
_SECONDS_TO_SAVE = 60.0  # for the running text, after an interruption
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
    folder = user_path(config.data_root).absolute()
    refuse_run_folder(folder)
    ray = import_ray()
    connection = connect(ray, config.ray_address, config.num_actors, "texts")
    try:
        number = _number_of_actors(ray, config, watcher)
        output = config.output.model_copy(update={"data_root": str(folder), "hf_repo_id": None})
        theirs = config.model_copy(update={"engine": "hf", "output": output})
        with _file_to_find(folder) as shared:
            actors = _Actors(ray, connection, theirs, watcher, run_rank, shared)
            result = actors.run(number)
    except ConnectionError as error:  # of a cluster at ray://HOST:PORT
        raise connection.lost(str(error)) from error
    finally:
        connection.close()
    return replace(result, published=publish(config, folder, watcher))


@contextmanager
def _file_to_find(folder: Path) -> Iterator[Path]:
    """A new file in the folder of the dump. An actor that does not find it has another folder."""
    with made_folder(folder):
        path = folder / f".shared-{secrets.token_hex(8)}"
        try:
            path.touch()
        except OSError as error:
            raise cannot_write(folder, error) from error
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


@dataclass
class _Actors:
    """The actors of a capture. One whose rank ended is stopped, so that others find room."""

    ray: Any
    connection: Connection
    config: CaptureConfig
    watcher: Watcher
    run_rank: RunRank
    shared: Path
    world: int = 0
    has_begun: bool = False  # an actor has opened the folder
    waiting: deque[int] = field(default_factory=deque)  # ranks
    running: dict[Any, int] = field(default_factory=dict)  # reference of the result → rank
    actors: dict[int, Any] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)  # of the actors of a rank
    errors: list[BaseException] = field(default_factory=list)
    events: dict[int, int] = field(default_factory=dict)  # rank → how many were shown
    notes: set[str] = field(default_factory=set)

    def run(self, number: int) -> CaptureResult:
        """Start the actors and wait until one of them has completed the dump.

        Raises a `ClusterLostError` if the cluster no longer answers.
        """
        seconds_to_save = _SECONDS_TO_SAVE
        self.world, self.waiting = number, deque(range(number))
        gpus = self.config.gpus_per_actor
        self.watcher.note(f"engine ray: {number} actors, {gpus:g} GPUs each")
        self.watcher.busy("loading texts and model in the actors")
        try:
            while self.waiting or self.running:
                self.connection.check()
                self._start_actors()
                done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=0.5)
                self._show_events()
                for reference in done:
                    result = self._result(reference)
                    if result is not None and result.complete:
                        return result
        except ClusterLostError:
            seconds_to_save = _SECONDS_TO_SAVE_IN_A_HURRY
            raise
        finally:
            self.watcher.stop()
            self._stop_actors(seconds_to_save)
        raise self._failure()

    def _start_actors(self) -> None:
        """Start all actors. With `overwrite`, one empties the folder before the others start."""
        overwrite = self.config.overwrite and not self.has_begun
        while self.waiting and not (overwrite and self.running):
            rank = self.waiting.popleft()
            hidden = {} if self.config.gpus_per_actor else {"CUDA_VISIBLE_DEVICES": ""}
            actor = self.ray.remote(CaptureActor).options(
                num_cpus=1,
                num_gpus=self.config.gpus_per_actor,
                max_concurrency=2,  # `events` and `stop` are called while `run` runs
                runtime_env={"env_vars": {"TQDM_DISABLE": "1", **hidden}},
            )
            self.actors[rank] = actor.remote()
            self.events[rank] = 0
            config = self.config.model_copy(update={"overwrite": overwrite})
            ranks = Ranks(rank, self.world, 0, overwrite, knows_folder_is_shared=True)
            call = self.actors[rank].run
            place = Path.cwd(), self.shared
            self.running[call.remote(self.run_rank, config, ranks, *place)] = rank

    def _result(self, reference: Any) -> CaptureResult | None:
        """The result of a rank that ended; None if it failed."""
        rank = self.running.pop(reference)
        try:
            result: CaptureResult = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            show_traceback(error)
            self.errors.append(error.cause)
            reason = " ".join(str(error.cause).split())[:300] or type(error.cause).__name__
            self.watcher.note(f"actor {rank} failed ({reason})")
        except self.ray.exceptions.RayError as error:
            self.connection.was_interrupted()  # raises if the actor is not the cause
            self.errors.append(error)
            self.deaths[rank] += 1
            again = self.deaths[rank] < _DEATHS
            self.waiting.extend([rank] * again)
            next_step = "it is started again" if again else "it is not started again"
            self.watcher.note(f"actor {rank}: {death_words(error)}; {next_step}")
        else:
            return result
        finally:
            self.ray.kill(self.actors.pop(rank))
        return None

    def _show_events(self) -> None:
        """Show notes of all actors, and the progress of the first, which counts all texts."""
        for place, rank in enumerate(sorted(self.running.values())):
            try:
                call = self.actors[rank].events.remote(self.events[rank])
                events: list[_Event] = self.ray.get(call, timeout=1)
            except (self.ray.exceptions.RayError, TimeoutError):
                continue  # it died, or it has not started yet
            self.events[rank] += len(events)
            for event in events:
                self.has_begun = self.has_begun or event.name == "start"
                is_new = event.name == "note" and event.given[0] not in self.notes
                if is_new or event.name == "show" or (place == 0 and event.name != "note"):
                    self.notes.update(event.given[:1] if is_new else ())
                    getattr(self.watcher, event.name)(*event.given, **event.named)

    def _stop_actors(self, seconds_to_save: float) -> None:
        """Stop the actors that still run; the text that they run is saved first."""
        for actor in self.actors.values():
            actor.stop.remote()
        if self.running:
            references = list(self.running)
            self.ray.wait(references, num_returns=len(references), timeout=seconds_to_save)
        for actor in self.actors.values():
            self.ray.kill(actor)

    def _failure(self) -> ToolkitError:
        for error in self.errors:
            if isinstance(error, ToolkitError):
                return error
        reason = f" ({death_words(self.errors[-1])})" if self.errors else ""
        return ToolkitError(
            f"Ray cluster at {self.connection.address}: all actors ended before the dump was "
            f"complete{reason}. Finished texts are kept; run the same command again to continue."
        )


class CaptureActor:
    """A rank of a capture in a process of the cluster."""

    def __init__(self) -> None:
        self._watcher = _Recorder()

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

    def events(self, first: int) -> list[_Event]:
        """What was told to the watcher, from a number on."""
        return self._watcher.events[first:]

    def stop(self) -> None:
        """Stop `run` after the current text."""
        self._watcher.stopped.set()


class _Event(NamedTuple):
    """A call of a method of a watcher."""

    name: str
    given: tuple[Any, ...] = ()
    named: dict[str, Any] = {}  # noqa: RUF012  # it does not change


class _Recorder(Watcher):
    """Records what it is told."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.events: list[_Event] = []

    def note(self, text: str) -> None:
        self.events.append(_Event("note", (text,)))

    def start(self, task: str, total: int | None, done: int = 0, *, rate: str = "") -> None:
        self.events.append(_Event("start", (task, total, done), {"rate": rate}))

    def advance(self, steps: int = 1, **counts: int) -> None:
        self.events.append(_Event("advance", (steps,), counts))
        if self.stopped.is_set():
            raise ToolkitError("the capture was stopped")

    def show(self, task: str, done: int, total: int, *, in_bytes: bool = False) -> None:
        self.events.append(_Event("show", (task, done, total), {"in_bytes": in_bytes}))


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
