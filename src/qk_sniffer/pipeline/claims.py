"""Which process runs which batch, when several processes share a capture.

Every process writes a log in `.capture/claims/` and holds a lock while it lives. Before it runs a
batch it writes so into its log, under the lock of the folder. The operating system releases the
lock of a process that dies; its batches that are not saved are then free again.

A process reserves its next batch early, to prepare it while the model runs. Another process that
has nothing to do may take a reserved batch, so that no process waits for a busy one.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from qk_sniffer.pipeline.work_folder import CLAIMS, PLAN, locked_work_folder
from qk_toolkit.files import is_locked, try_lock

ATTEMPTS = 2
"""A batch is given up when this many processes died while they ran it."""

_SECONDS_BETWEEN_CHECKS = 2.0  # of the locks of other processes, while there are free batches
_SECONDS_BETWEEN_LOOKS = 0.2  # of a process that waits for others
_RESERVED, _BEGUN, _COMPUTED = "reserved", "begun", "computed"
_STORED, _RESTING = "stored", "resting"


class StoredBatch(NamedTuple):
    """A batch that was run, with the number of its tokens and rows."""

    number: int
    tokens: int = 0
    rows: int = 0


class _Process:
    """What the log of a process contains."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.reserved: set[int] = set()
        self.begun: set[int] = set()
        self.computed: set[int] = set()
        self.stored: set[int] = set()
        self.running = False  # it has begun a batch since it last rested
        self.resting = False  # all its batches are saved, and it found no other batch
        self._bytes_read = 0

    @property
    def is_alive(self) -> bool:
        return is_locked(_lock_of(self.log))

    def read_new_lines(self) -> list[tuple[str, StoredBatch]]:
        """Read the new lines of the log: a word and a batch."""
        with self.log.open("rb") as file:
            file.seek(self._bytes_read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]  # a process may die while it writes a line
        self._bytes_read += len(whole)
        lines = [_parsed(line) for line in whole.decode().splitlines()]
        for word, batch in lines:
            self.apply(word, batch.number)
        return lines

    def apply(self, word: str, number: int) -> None:
        """Apply a line of the log."""
        if word in (_COMPUTED, _STORED):
            (self.computed if word == _COMPUTED else self.stored).add(number)
            return
        self.resting = word == _RESTING
        if word == _RESERVED:
            self.reserved.add(number)
        elif word == _BEGUN:
            self.reserved.discard(number)
            self.begun.add(number)
            self.running = True
        else:
            self.reserved.clear()
            self.running = False


def _parsed(line: str) -> tuple[str, StoredBatch]:
    word, *numbers = line.split(" ")
    return word, StoredBatch(*map(int, numbers))


class Claims:
    """The batches that this process and others run.

    `saved` reads which batches are in segments. `order` has the numbers of all batches, the one to
    run first in front; None if the number of batches is not known before the texts are read.
    """

    def __init__(
        self, folder: Path, saved: Callable[[], frozenset[int]], order: Sequence[int] | None
    ) -> None:
        self._folder = folder
        self._read_saved = saved
        self._order = order
        self._first = 0  # all batches before this place of the order are taken
        self._others: dict[str, _Process] = {}
        self._dead: set[str] = set()
        self._deaths: Counter[int] = Counter()  # of processes, while they ran a batch
        self._last_check = 0.0
        self._stored_elsewhere: list[StoredBatch] = []
        self._thread_lock = threading.Lock()
        with locked_work_folder(folder) as place:
            claims = place / CLAIMS
            claims.mkdir(exist_ok=True)
            if not any(is_locked(_lock_of(log)) for log in claims.glob("*.log")):
                for file in claims.iterdir():  # of an earlier launch
                    file.unlink()
            self._own = _Process(claims / f"{secrets.token_hex(8)}.log")
            self._lock = try_lock(_lock_of(self._own.log))
            self._own.log.touch()
            self._saved = saved()
            self._taken = set(self._saved)
            self._read_logs(check_locks=True)

    def close(self) -> None:
        """Release the lock of this process; its batches that are not saved are then free."""
        if self._lock is not None:
            self._lock.release()

    @property
    def saw_others(self) -> bool:
        """Whether another process has joined this capture since its launch."""
        return bool(self._others)

    @property
    def given_up(self) -> list[int]:
        """Batches that are not run any more, because processes died while they ran them."""
        return sorted(n for n, deaths in self._deaths.items() if self._is_given_up(n, deaths))

    def stored_elsewhere(self) -> list[StoredBatch]:
        """Batches that other processes have run since the last call."""
        with self._thread_lock:
            stored, self._stored_elsewhere = self._stored_elsewhere, []
            return stored

    def reserve(self, idle: bool) -> int | None:
        """Reserve the first free batch of the order; None if there is none.

        With `idle`, batches that a busy process has reserved are free too.
        """
        with self._thread_lock, locked_work_folder(self._folder) as place:
            if not (place / PLAN).exists():  # another process has completed the dump
                return None
            self._read_logs(check_locks=False)
            number = self._first_free(idle)
            if number is None and self._read_logs(check_locks=True):
                number = self._first_free(idle)
            if number is not None:
                self._write(_RESERVED, number)
            return number

    def reserve_this(self, number: int) -> bool:
        """Reserve a batch; False if another process has reserved it or runs it."""
        if number in self._taken:
            return False
        with self._thread_lock, locked_work_folder(self._folder) as place:
            if not (place / PLAN).exists():
                return False
            self._read_logs(check_locks=False)
            if not self._is_free(number, idle=False):
                return False
            self._write(_RESERVED, number)
            return True

    def begin(self, number: int) -> bool:
        """Take a reserved batch; False if another process has taken it."""
        with self._thread_lock, locked_work_folder(self._folder) as place:
            if not (place / PLAN).exists():
                return False
            self._read_logs(check_locks=False)
            if number in self._taken:
                self._own.reserved.discard(number)
                return False
            self._write(_BEGUN, number)
            return True

    def computed(self, number: int) -> None:
        """The model has run a batch; if the process dies now, this batch is not the cause."""
        with self._thread_lock:
            self._write(_COMPUTED, number)

    def stored(self, number: int, tokens: int = 0, rows: int = 0) -> None:
        """The rows of a batch are in memory; they are saved with the next segment.

        Other processes show the numbers of tokens and rows.
        """
        with self._thread_lock:
            self._write(_STORED, number, tokens, rows)

    def wait_for_work(self, num_batches: int) -> bool:
        """Wait for the batches that other processes run; all batches of this one must be saved.

        Returns True as soon as a batch is free. Returns False when no process runs a batch.
        """
        with self._thread_lock, suppress(FileNotFoundError):
            self._write(_RESTING)
        while True:
            with self._thread_lock, locked_work_folder(self._folder) as place:
                if not (place / PLAN).exists():
                    return False
                self._read_logs(check_locks=True)
                if self._has_work(num_batches):
                    return True
                living = [p for name, p in self._others.items() if name not in self._dead]
                if all(process.resting for process in living):
                    return False
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _has_work(self, num_batches: int) -> bool:
        if self._order is not None:
            return self._first_free(idle=True) is not None
        return any(self._is_free(number, idle=False) for number in range(num_batches))

    def _first_free(self, idle: bool) -> int | None:
        """The first free batch; batches during which a process died come last."""
        order = self._order or ()
        while self._first < len(order) and order[self._first] in self._taken:
            self._first += 1
        repeated = None
        for place in range(self._first, len(order)):
            number = order[place]
            if self._is_free(number, idle):
                if not self._deaths[number]:
                    return number
                repeated = number if repeated is None else repeated
        return repeated

    def _is_free(self, number: int, idle: bool) -> bool:
        if number in self._taken or number in self._own.reserved:
            return False
        if self._deaths[number] >= ATTEMPTS:
            return False
        return not any(
            number in process.reserved and not (idle and process.running)
            for name, process in self._others.items()
            if name not in self._dead
        )

    def _is_given_up(self, number: int, deaths: int) -> bool:
        return deaths >= ATTEMPTS and number not in self._taken

    def _read_logs(self, check_locks: bool) -> bool:
        """Read what other processes have written. Returns whether a process has ended."""
        for log in sorted(self._own.log.parent.glob("*.log")):
            if log != self._own.log and log.name not in self._dead:
                if log.name not in self._others:
                    self._others[log.name] = _Process(log)
                for word, batch in self._others[log.name].read_new_lines():
                    if word == _BEGUN:
                        self._taken.add(batch.number)
                    elif word == _STORED:
                        self._stored_elsewhere.append(batch)
        now = time.monotonic()
        if not check_locks and now - self._last_check < _SECONDS_BETWEEN_CHECKS:
            return False
        self._last_check = now
        ended = [
            name
            for name, process in self._others.items()
            if name not in self._dead and not process.is_alive
        ]
        if ended:
            self._forget(ended)
        return bool(ended)

    def _forget(self, ended: Sequence[str]) -> None:
        """Free the batches of ended processes that are not saved."""
        self._dead.update(ended)
        self._saved = self._read_saved()
        living = [p.begun for name, p in self._others.items() if name not in self._dead]
        self._taken = self._own.begun.union(self._saved, *living)
        self._first = 0
        for name in ended:
            process = self._others[name]
            self._deaths.update(process.begun - process.computed - self._saved)

    def _write(self, word: str, number: int = 0, *more: int) -> None:
        self._own.apply(word, number)
        if word == _BEGUN:
            self._taken.add(number)
        descriptor = os.open(self._own.log, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, f"{' '.join(map(str, (word, number, *more)))}\n".encode())
        finally:
            os.close(descriptor)


def _lock_of(log: Path) -> Path:
    return log.with_suffix(".lock")
