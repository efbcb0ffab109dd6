"""The tables and run.json of a run: a function of its records.

All heads of the dump that are recorded with the settings of the run are in the tables, whichever
command computed them. Files are written beside their targets and renamed, run.json last. If the
process is killed meanwhile, the hashes of run.json do not fit the tables, and readers refuse them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from attention_plasticity.measure.fidelity import fidelity_rows
from attention_plasticity.measure.result import Failure
from attention_plasticity.metrics import ALIGNED, TABLES, TableKind
from attention_plasticity.run.engines import Engine, WorkerDiedError
from attention_plasticity.run.folder import RunFolder
from attention_plasticity.run.preparation import PlannedRun
from attention_plasticity.run.recorded import Recorded, Triple, recorded
from attention_plasticity.run.records import FOLDER
from attention_plasticity.run.run_json import Collected, run_json
from attention_plasticity.run.table_part import TablePart, csv_text, table_part
from attention_plasticity.tables.run_info import RUN_FILE, read_run_info, sha256_of
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import cannot_write, sync_folder, write_through

_ALWAYS: tuple[TableKind, ...] = (
    "head_metrics",
    "bucket_plasticity",
    "component_weights",
    "influences",
)
"""Tables that are written also without a row."""
_DRAFTS = "tables-"  # begin of the name of a folder among those of records
_SECONDS_BETWEEN_CHECKS = 1.0  # of the engine
_HEADS_OF_A_PART = 12  # whose rows one worker makes at a time


@dataclass(frozen=True)
class Outcome:
    """A run whose tables are written."""

    place: RunFolder
    info: dict[str, Any]  # run.json

    @property
    def failures(self) -> list[Failure]:
        """Query heads that could not be analysed."""
        return [Failure(**one) for one in self.info["failures"]]

    @property
    def has_failures(self) -> bool:
        """Whether a query head failed, or the fidelity of a key head."""
        return bool(self.info["failures"] or (self.info["fidelity"] or {}).get("failures"))


def write_run(run: PlannedRun, seconds: float, engine: Engine | None = None) -> Outcome:
    """Write the tables of all recorded heads. A finished run is not written again.

    Rows are made by the workers of the engine, if one is given.
    """
    with run.records.tables_lock():
        found = recorded(run)
        known = _written(run.place, _content(run, found))
        if known is not None:
            return Outcome(run.place, known)
        with _drafts(run.place) as drafts:
            collected = Collected(run)
            for part in _parts(run, found, engine):
                for kind, text in part.rows.items():
                    drafts.add(kind, text)
                collected.add(part)
            for key_head, unit in list(found.key_heads.items()):
                values = run.records.read(unit)
                if values is None:  # damaged
                    del found.key_heads[key_head]
                    continue
                collected.fidelity.append(values)
                drafts.add("fidelity", csv_text("fidelity", fidelity_rows(*key_head, values)))
            if all(math.isnan(row[ALIGNED]) for row in collected.metrics):
                drafts.remove("bins")
            info = run_json(run, found, collected, seconds)
            info["content"] = _content(run, found)
            return Outcome(run.place, drafts.end(info, bool(found.heads)))


def _parts(run: PlannedRun, found: Recorded, engine: Engine | None) -> Iterator[TablePart]:
    """The rows of all heads, in order, some key heads at a time."""
    running: deque[_Part] = deque()
    for heads in _head_groups(list(found.heads)):
        running.append(_Part(run, found, heads, engine))
        if len(running) > 2 * (0 if engine is None else engine.workers):
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def _head_groups(heads: list[Triple]) -> Iterator[list[Triple]]:
    """Heads in order, in lists with all query heads of their key heads."""
    group: list[Triple] = []
    for head in heads:
        if len(group) >= _HEADS_OF_A_PART and group[-1][::2] != head[::2]:
            yield group
            group = []
        group.append(head)
    if group:
        yield group


class _Part:
    """A part of the tables, which a worker of the engine makes."""

    def __init__(
        self, run: PlannedRun, found: Recorded, heads: list[Triple], engine: Engine | None
    ) -> None:
        self._heads = heads
        self._found = found
        self._engine = engine
        self._records = [run.records.packed(found.heads[head]) for head in heads]
        self._thresholds = run.config.role_thresholds
        self._future: Future[TablePart] | None = None
        if engine is not None:
            self._future = engine.submit(table_part, self._records, self._thresholds)

    def result(self) -> TablePart:
        """The part. If the worker dies, it is made here. Damaged records are left out."""
        part = self._made_elsewhere() or table_part(self._records, self._thresholds)
        intact = {(one.layer, one.q_head, one.k_head) for one in part.heads}
        for head in self._heads:
            if head not in intact:
                self._found.leave_out(head)
        return part

    def _made_elsewhere(self) -> TablePart | None:
        if self._future is None or self._engine is None:
            return None
        while not wait([self._future], _SECONDS_BETWEEN_CHECKS).done:
            self._engine.check()
        try:
            return self._future.result()
        except WorkerDiedError:
            return None


def _content(run: PlannedRun, found: Recorded) -> str:
    """A hash of all that decides the tables and what run.json says about them."""
    settings = run.config.model_dump_json(include={"role_thresholds", "dataset_local_root"})
    parts = [run.records.folder.name, settings, str(run.dump.path), *found.names]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _written(place: RunFolder, content: str) -> dict[str, Any] | None:
    """run.json, if the tables here have this content and did not change; else None."""
    try:
        info = read_run_info(place.run)
    except (FileNotFoundError, ConfigError):
        return None
    tables = info.get("tables") or {}
    hashes = {kind: sha256_of(place.folder / name) for kind, name in tables.items()}
    return info if info.get("content") == content and hashes == info.get("sha256") else None


class _Drafts:
    """Drafts of the tables in a folder beside them. Heads are added in order."""

    def __init__(self, place: RunFolder, folder: Path) -> None:
        self._place = place
        self._folder = folder
        self._open: dict[TableKind, TextIO] = {}

    def add(self, kind: TableKind, text: str) -> None:
        """Write rows of a table."""
        if kind not in self._open and (text or kind in _ALWAYS):
            path = self._folder / TABLES[kind].file
            self._open[kind] = path.open("w", encoding="utf-8", newline="")
            self._open[kind].write(",".join(TABLES[kind].names) + "\n")
        if text:
            self._open[kind].write(text)

    def remove(self, kind: TableKind) -> None:
        """Leave a table out."""
        if kind in self._open:
            self._open.pop(kind).close()

    def end(self, info: dict[str, Any], has_heads: bool) -> dict[str, Any]:
        """Replace the tables and then run.json. A run without a head has no tables."""
        for file in self._open.values():
            file.flush()
            os.fsync(file.fileno())  # a full disk is detected here, before any file is replaced
        kinds = list(self._open) if has_heads else []
        names = {kind: TABLES[kind].file for kind in kinds}
        hashes = {kind: sha256_of(self._folder / names[kind]) for kind in kinds}
        info = {**info, "tables": names, "sha256": hashes}
        text = json.dumps(info, indent=2) + "\n"
        write_through(self._folder / RUN_FILE, text)
        for kind in TABLES:
            if kind in kinds:
                (self._folder / names[kind]).replace(self._place.table(kind))
            else:
                self._place.table(kind).unlink(missing_ok=True)
        (self._folder / RUN_FILE).replace(self._place.run)
        sync_folder(self._place.folder)
        written: dict[str, Any] = json.loads(text)
        return written

    def close(self) -> None:
        """Close the files, all of them also if the disk is full."""
        with ExitStack() as stack:
            for file in self._open.values():
                stack.callback(file.close)


@contextmanager
def _drafts(place: RunFolder) -> Iterator[_Drafts]:
    """A folder for drafts. An `OSError` becomes an `OutputError` that names the run."""
    folder = None
    for left in (place.folder / FOLDER).glob(f"{_DRAFTS}*"):  # by a killed process
        shutil.rmtree(left, ignore_errors=True)
    try:
        folder = Path(tempfile.mkdtemp(prefix=_DRAFTS, dir=place.folder / FOLDER))
        drafts = _Drafts(place, folder)
        try:
            yield drafts
        finally:
            drafts.close()
    except OSError as error:
        raise cannot_write(place.run, error) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
