"""Real processes that share a capture, forked from one that has imported the libraries.

Every forward is written to a log, and a process can be killed in one of its forwards.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pkgutil
import signal
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sniffing import ONE_THREAD
from waiting import PATIENCE, wait_for

SNIFF_QK = "qk_sniffer.cli:main"
_PRELOADED = (  # imported by a capture of a llama, and by this file and its helpers
    "datasets",
    "pytest",
    "qk_sniffer.cli",
    "qk_sniffer.capture.run",
    "qk_sniffer.summary",
    "rich.progress",
    "transformers.models.llama.modeling_llama",
)


def _context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED])
    return context


@dataclass(frozen=True)
class Forwards:
    """Logs the batches that processes run, and kills or holds processes in a forward.

    `kills` has for a rank the number of the forward in which it dies, counted from 1. All of them
    die together. The first forward of a process ends when every process is in its first forward, so
    that all of them take part. The second forward of the others ends when the processes that die
    are in their last one. A process waits in its forward with the number `held` for `release`.
    """

    log: Path
    world: int
    kills: Mapping[int, int] = field(default_factory=dict)
    held: int | None = None

    def run(self):
        """(rank, batch) of every forward, in the order of their beginnings."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(int(rank), int(batch)) for rank, batch in map(str.split, lines)]

    def wait_until_held(self):
        """Wait until a process is in its held forward."""
        wait_for(f"the forward {self.held} of a process", self._file("held").exists)

    def release(self):
        """Let the held process go on."""
        self._file("released").touch()

    def _file(self, name):
        return self.log.with_name(f"{self.log.name}.{name}")

    def watch(self, rank):
        """Watch the forwards of this process."""
        from qk_sniffer.capture import run

        original, count = run._forward, 0

        def forward(setup, batch):
            nonlocal count
            count += 1
            with self.log.open("a") as file:
                file.write(f"{rank} {batch.number}\n")
            if count == 1:
                wait_for(
                    "the first forward of all",
                    lambda: len({rank for rank, _ in self.run()}) == self.world,
                )
            if count == self.kills.get(rank, 2):
                wait_for("the last forwards of those that die", self._all_are_at_their_end)
            if self.kills.get(rank) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.held == count:
                self._file("held").touch()
                wait_for("the release of a held process", self._file("released").exists)
            return original(setup, batch)

        run._forward = forward

    def _all_are_at_their_end(self):
        begun = Counter(rank for rank, _ in self.run())
        return all(begun[rank] >= number for rank, number in self.kills.items())


@dataclass(frozen=True)
class Ended:
    """Exit codes and messages of processes that ended."""

    codes: list[int | None]
    told: list[str]


def run_ranks(flags, forwards, folder):
    """Run the command as `forwards.world` processes with the variables of torchrun."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    errors = [folder / f"stderr-{rank}" for rank in range(forwards.world)]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = []
    for rank in range(forwards.world):
        own = {"RANK": str(rank), "WORLD_SIZE": str(forwards.world), "LOCAL_RANK": "0"}
        processes.append(_start(flags, errors[rank], meeting | own, forwards, rank))
    codes = [ended(process) for process in processes]
    return Ended(codes, [path.read_text() for path in errors])


def start_alone(flags, output=None, forwards=None, command=SNIFF_QK):
    """Start the command as a single process, which writes what it says to a file.

    `command` is a function that takes the words of a command line, as `module:name`.
    """
    return _start(flags, output or Path(os.devnull), forwards=forwards, command=command)


def ended(process):
    """Wait for the end of a process; its exit code."""
    process.join(2 * PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
    code = process.exitcode
    process.close()
    return code


def _start(flags, output, variables=None, forwards=None, rank=0, command=SNIFF_QK):
    environment = {**os.environ, **ONE_THREAD, **(variables or {})}
    given = (flags, output, environment, forwards, rank, command)
    process = _context().Process(target=_run, args=given)
    process.start()
    return process


def _run(flags, output, environment, forwards, rank, command):
    os.environ.clear()  # the variables of the process from which this one was forked
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    import torch

    torch.set_num_threads(1)
    if forwards is not None:
        forwards.watch(rank)
    importlib.import_module("qk_sniffer.entry")  # quiet signals
    sys.exit(pkgutil.resolve_name(command)(flags))
