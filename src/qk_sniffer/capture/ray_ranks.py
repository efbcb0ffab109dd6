"""A capture on a Ray cluster: one process per GPU, each of which is a rank of the capture.

Ray only starts the ranks, as tasks, and starts one again whose process dies. They share the folder
of the dump, as processes of `torchrun` do. The command publishes it on the Hub, so the ranks need
no token.
"""

from __future__ import annotations

import os
import platform
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qk_sniffer.capture.folder import made_folder
from qk_sniffer.capture.ranks import Ranks, ranks_from
from qk_sniffer.capture.refusals import refuse_used_folder
from qk_sniffer.capture.result import CaptureResult
from qk_sniffer.config import CaptureConfig
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import cannot_write, user_path
from qk_toolkit.ray_cluster import Connection, connect, death_words, import_ray
from qk_toolkit.watcher import Watcher

RunRank = Callable[[CaptureConfig, Watcher, Ranks], CaptureResult]

_RETRIES = 2  # of a rank whose process dies
_SECONDS_FOR_MESSAGES = 5.0
_SECONDS_TO_SAVE = 60.0  # for the running text, after an interruption


def run_on_ray(config: CaptureConfig, watcher: Watcher, run_rank: RunRank) -> CaptureResult:
    """Run `run_rank` in processes of a cluster.

    Returns the result of the rank that completed the dump.
    """
    if ranks_from().world > 1:
        raise ConfigError(
            "engine: ray starts its own processes; start this command once, without torchrun, "
            "accelerate or srun"
        )
    folder = user_path(config.data_root).absolute()
    refuse_used_folder(folder, config.dataset.path)
    ray = import_ray()
    connection = connect(ray, config.ray_address, config.num_actors, "texts")
    try:
        number = _number_of_actors(ray, config, watcher)
        output = config.output.model_copy(update={"data_root": str(folder)})
        theirs = config.model_copy(update={"engine": "hf", "output": output})
        with _file_to_find(folder) as shared:
            return _Ranks(ray, connection, theirs, watcher, shared).run(run_rank, number)
    except ConnectionError as error:  # of a cluster at ray://HOST:PORT
        raise connection.lost(str(error)) from error
    finally:
        connection.close()


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
            for file in folder.glob(f"{path.name}*"):
                file.unlink(missing_ok=True)


@dataclass
class _Ranks:
    """The ranks of a capture, each a task of the cluster."""

    ray: Any
    connection: Connection
    config: CaptureConfig
    watcher: Watcher
    shared: Path
    running: dict[Any, int] = field(default_factory=dict)  # reference of the result → rank
    errors: list[BaseException] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)

    def run(self, run_rank: RunRank, number: int) -> CaptureResult:
        """Start the ranks and wait until one of them has completed the dump.

        With `overwrite`, the first one empties the folder before the others start.
        """
        from ray.util.queue import Queue

        gpus = self.config.gpus_per_actor
        self.watcher.note(f"engine ray: {number} actors, {gpus:g} GPUs each")
        self.watcher.busy("loading texts and model in the actors")
        messages, waiting = Queue(actor_options=_at_the_command(self.ray)), deque(range(number))
        hidden = {} if gpus else {"CUDA_VISIBLE_DEVICES": ""}
        task = self.ray.remote(
            num_cpus=1,
            num_gpus=gpus,
            max_calls=1,  # a process of its own
            max_retries=_RETRIES,
            runtime_env={"env_vars": {"TQDM_DISABLE": "1", **hidden}},
        )(_run_rank)
        try:
            while waiting or self.running:
                while waiting and (not self.running or self._may_start()):
                    ranks = Ranks(waiting[0], number, knows_folder_is_shared=True)
                    given = run_rank, self.config, ranks, Path.cwd(), self.shared, messages
                    self.running[task.remote(*given)] = waiting.popleft()
                done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=0.5)
                self._show(messages)
                for reference in done:
                    result = self._result(reference)
                    if result is not None and result.complete:
                        return result
        finally:
            self.watcher.stop()
            self._stop()
        raise self._failure()

    def _may_start(self) -> bool:
        return not self.config.overwrite or _begun(self.shared).exists()

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
            self.errors.append(error)
            self.watcher.note(f"actor {rank}: {death_words(error)}")
        else:
            return result
        return None

    def _show(self, messages: Any) -> None:
        """Show notes of all ranks, and the progress of the first, which counts all texts."""
        first = min(self.running.values(), default=0)
        try:
            number = self.ray.get(messages.actor.qsize.remote(), timeout=_SECONDS_FOR_MESSAGES)
            waiting = messages.actor.get_nowait_batch.remote(number)
            found = self.ray.get(waiting, timeout=_SECONDS_FOR_MESSAGES)
        except (self.ray.exceptions.RayError, TimeoutError):
            return
        for rank, name, given, named in found:
            if name == "note" and given[0] not in self.notes:
                self.notes.add(given[0])
                self.watcher.note(given[0])
            elif name == "show" or (name != "note" and rank == first):
                getattr(self.watcher, name)(*given, **named)

    def _stop(self) -> None:
        """Interrupt the ranks that still run; they save finished texts."""
        references = list(self.running)
        for reference in references:
            self.ray.cancel(reference)
        if references:
            self.ray.wait(references, num_returns=len(references), timeout=_SECONDS_TO_SAVE)

    def _failure(self) -> ToolkitError:
        for error in self.errors:
            if isinstance(error, ToolkitError):
                return error
        reason = f" ({death_words(self.errors[-1])})" if self.errors else ""
        return ToolkitError(
            f"Ray cluster at {self.connection.address}: all actors ended before the dump was "
            f"complete{reason}. Finished texts are kept; run the same command again to continue."
        )


def _at_the_command(ray: Any) -> dict[str, Any]:
    """Options of an actor that no node can take with it but that of the command."""
    if ray.util.client.ray.is_connected():  # a server of the cluster does all else
        return {"num_cpus": 0}
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}


def _begun(shared: Path) -> Path:
    """The file that says that a rank has opened the folder."""
    return shared.with_name(f"{shared.name}-begun")


def _started(shared: Path, rank: int) -> Path:
    """The file that says that a process of the rank has started."""
    return shared.with_name(f"{shared.name}-started-{rank}")


def _run_rank(
    run_rank: RunRank,
    config: CaptureConfig,
    ranks: Ranks,
    working_folder: Path,
    shared: Path,
    messages: Any,
) -> CaptureResult:
    """Run a rank in the cluster. Relative paths begin at the folder of the command.

    `shared` is a file that the command has written into the folder of the dump. A rank that is
    started again does not overwrite what was finished.
    """
    if not shared.exists():
        raise ConfigError(
            f"output.data_root: node {platform.node()} has no access to {shared.parent} of the "
            "machine where the command runs; give a folder that all nodes share (if data_root "
            "is a URL: output.work_dir)"
        )
    with suppress(FileNotFoundError):  # if this machine lacks it, paths must be absolute
        os.chdir(working_folder)
    overwrite = config.overwrite and not _begun(shared).exists()
    config = config.model_copy(update={"overwrite": overwrite})
    sender, started = _Sender(messages, ranks.rank, _begun(shared)), _started(shared, ranks.rank)
    if started.exists():
        sender.note(f"actor {ranks.rank}: its process died, and it is started again")
    started.touch()
    return run_rank(config, sender, ranks)


class _Sender(Watcher):
    """Sends what it is told to the command."""

    def __init__(self, messages: Any, rank: int, begun: Path) -> None:
        self._messages, self._rank, self._begun = messages, rank, begun

    def note(self, text: str) -> None:
        self._send("note", text)

    def start(self, task: str, total: int | None, done: int = 0, *, rate: str = "") -> None:
        self._begun.touch()
        self._send("start", task, total, done, rate=rate)

    def advance(self, steps: int = 1, **counts: int) -> None:
        self._send("advance", steps, **counts)

    def show(self, task: str, done: int, total: int, *, in_bytes: bool = False) -> None:
        self._send("show", task, done, total, in_bytes=in_bytes)

    def _send(self, name: str, *given: object, **named: object) -> None:
        import ray

        with suppress(ray.exceptions.RayError):  # without its messages a rank goes on
            self._messages.put((self._rank, name, given, named))


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
