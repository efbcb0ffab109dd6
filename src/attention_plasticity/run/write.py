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
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from attention_plasticity.config import TABLE_PATHS
from attention_plasticity.measure.result import Failure
from attention_plasticity.metrics import (
    ALIGNED,
    ORIGINAL_TABLES,
    TABLES,
    TableKind,
    written_columns,
)
from attention_plasticity.run.collected import Collected
from attention_plasticity.run.csv_text import csv_rows
from attention_plasticity.run.folder import RunFolder
from attention_plasticity.run.preparation import PlannedRun
from attention_plasticity.run.records import FOLDER
from attention_plasticity.run.run_json import run_json
from attention_plasticity.tables.run_info import DIGEST, RUN_FILE, digest_of
from qk_toolkit.files import cannot_write, staged, sync, sync_folder, write_through

_ALWAYS: tuple[TableKind, ...] = ("head_metrics", *ORIGINAL_TABLES, "influences")
"""Tables that are written also without a row, if they are not left out."""
_AT_ONE_POSITION: tuple[TableKind, ...] = ("bins", "distances")
"""Tables that are written if a head has RoPE-aligned plasticity."""
_DRAFTS = "tables-"  # begin of the name of a folder among those of records


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
        """Whether a query head failed."""
        return bool(self.info["failures"])


def write_run(run: PlannedRun, seconds: float) -> Outcome:
    """Write the tables of all recorded heads, and run.json."""
    place = run.place
    with run.records.tables_lock():
        for left in (place.folder / FOLDER).glob(f"{_DRAFTS}*"):  # by a killed process
            shutil.rmtree(left, ignore_errors=True)
        try:
            with TemporaryDirectory(prefix=_DRAFTS, dir=place.folder / FOLDER) as folder:
                info = _write(run, Path(folder), seconds)
        except OSError as error:
            raise cannot_write(place.run, error) from error
        _write_copies(place, info["tables"])
        return Outcome(place, info)


def _write_copies(place: RunFolder, tables: Mapping[str, str]) -> None:
    """Write the tables whose path is given there too. A table that there is not is removed."""
    for name, path in place.copies.items():
        kind = TABLE_PATHS[name]
        if kind not in tables:
            path.unlink(missing_ok=True)
            continue
        with staged(path) as draft:
            shutil.copyfile(place.table(kind), draft)
            with draft.open("rb") as file:
                sync(file)


def _write(run: PlannedRun, folder: Path, seconds: float) -> dict[str, Any]:
    """Write drafts in a folder, and replace the tables. Returns run.json."""
    collected = Collected(run)
    with ExitStack() as stack:
        original = run.config.original_columns
        drafts = _Drafts(folder, stack, original=original)
        for record in collected.records():
            for kind, text in record.texts.items():
                drafts.add(kind, text)
        if collected.roles:
            names = TABLES["roles"].names
            rows = ([row[name] for name in names] for row in collected.roles)
            drafts.add("roles", csv_rows("roles", rows))
        if collected.heads:
            for kind in _ALWAYS:
                if original or kind not in ORIGINAL_TABLES:
                    drafts.add(kind, b"")
        if all(math.isnan(row[ALIGNED]) for row in collected.values["head_metrics"]):
            for kind in _AT_ONE_POSITION:
                drafts.files.pop(kind, None)
        return _replace(run.place, drafts, run_json(run, collected, seconds))


class _Drafts:
    """Drafts of the tables in a folder, open until the stack ends, and their hashes."""

    def __init__(self, folder: Path, stack: ExitStack, *, original: bool) -> None:
        self.folder, self.original = folder, original
        self.files: dict[TableKind, IO[bytes]] = {}
        self.hashes: dict[TableKind, Any] = {}
        self._stack = stack

    def add(self, kind: TableKind, text: bytes) -> None:
        """Write rows of a table."""
        if kind not in self.files:
            path = self.folder / TABLES[kind].file
            self.files[kind] = self._stack.enter_context(path.open("wb"))
            self.hashes[kind] = hashlib.sha256()
            names = written_columns(kind, original=self.original)
            text = ",".join(names).encode() + b"\n" + text
        self.files[kind].write(text)
        self.hashes[kind].update(text)


def _replace(place: RunFolder, drafts: _Drafts, info: dict[str, Any]) -> dict[str, Any]:
    """Replace the tables by the drafts, and then run.json. A run without a head has no tables."""
    for file in drafts.files.values():
        file.flush()
        os.fsync(file.fileno())  # a full disk is detected here, before any file is replaced
    names = {kind: TABLES[kind].file for kind in TABLES if kind in drafts.files}
    hashes = {kind: drafts.hashes[kind].hexdigest() for kind in names}
    info = json.loads(json.dumps({**info, "tables": names, "sha256": hashes}))
    info[DIGEST] = digest_of(info)
    write_through(drafts.folder / RUN_FILE, json.dumps(info, indent=2) + "\n")
    for kind in TABLES:
        if kind in names:
            (drafts.folder / names[kind]).replace(place.table(kind))
        else:
            place.table(kind).unlink(missing_ok=True)
    (drafts.folder / RUN_FILE).replace(place.run)
    sync_folder(place.folder)
    return info
