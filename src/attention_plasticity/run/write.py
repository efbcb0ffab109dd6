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
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from attention_plasticity.config import TABLE_PATHS
from attention_plasticity.measure.key_heads import key_head_row
from attention_plasticity.measure.result import Failure
from attention_plasticity.metrics import ALIGNED, KEY_HEADS, TABLES, TableKind
from attention_plasticity.run.folder import RunFolder
from attention_plasticity.run.head_record import csv_text, head_result, table_rows
from attention_plasticity.run.preparation import PlannedRun
from attention_plasticity.run.recorded import Recorded, Triple, recorded
from attention_plasticity.run.records import FOLDER
from attention_plasticity.run.role_labels import with_label
from attention_plasticity.run.run_json import Collected, run_json
from attention_plasticity.tables.run_info import RUN_FILE, read_run_info, sha256_of
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import cannot_write, staged, sync, sync_folder, write_through

_ALWAYS: tuple[TableKind, ...] = (
    "head_metrics",
    "bucket_plasticity",
    "component_weights",
    "influences",
)
"""Tables that are written also without a row."""
_AT_ONE_POSITION: tuple[TableKind, ...] = ("bins", "distances")
"""Tables that are written if a head has RoPE-aligned plasticity."""
_PRINTED = ("heads", "failures", "not_analysed", "missing", "warnings")
"""Fields of run.json that `analyze` prints at its end."""
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
    """Write the tables of all recorded heads. A finished run is not written again."""
    place = run.place
    with run.records.tables_lock():
        found = recorded(run)
        info = _written(place, _content(run, found))
        if info is None:
            info = _write_all(run, found, seconds)
        _write_copies(place, info["tables"])
        return Outcome(place, info)


def _write_all(run: PlannedRun, found: Recorded, seconds: float) -> dict[str, Any]:
    """Write the tables and run.json, whose content is returned."""
    place = run.place
    for left in (place.folder / FOLDER).glob(f"{_DRAFTS}*"):  # by a killed process
        shutil.rmtree(left, ignore_errors=True)
    try:
        with TemporaryDirectory(prefix=_DRAFTS, dir=place.folder / FOLDER) as folder:
            return _write(run, found, Path(folder), seconds)
    except OSError as error:
        raise cannot_write(place.run, error) from error


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


def _write(run: PlannedRun, found: Recorded, folder: Path, seconds: float) -> dict[str, Any]:
    """Write drafts in a folder, and replace the tables. Returns run.json."""
    collected = Collected(run)
    with ExitStack() as stack:
        drafts = _Drafts(folder, stack)
        for _, heads in groupby(list(found.heads), key=lambda head: head[::2]):
            _add_heads(run, found, list(heads), drafts, collected)
        if all(math.isnan(row[ALIGNED]) for row in collected.metrics):
            for kind in _AT_ONE_POSITION:
                drafts.files.pop(kind, None)
        info = run_json(run, found, collected, seconds)
        info["content"] = _content(run, found)
        return _replace(run.place, drafts if found.heads else _Drafts(folder, stack), info)


def _add_heads(
    run: PlannedRun, found: Recorded, heads: list[Triple], drafts: _Drafts, collected: Collected
) -> None:
    """Add the query heads of a key head. Damaged records are left out."""
    results = []
    for head in heads:
        content = run.records.read(found.heads[head])
        if content is None:
            found.leave_out(head)
            continue
        for kind in _ALWAYS:
            drafts.add(kind, "")
        for kind, text in content["rows"].items():
            drafts.add(kind, text)
        results.append(with_label(head_result(content), run.config.role_thresholds))
        drafts.add("roles", csv_text("roles", table_rows(results[-1], "roles")))
        collected.add(results[-1])
    row = key_head_row(results)
    if row is not None:
        drafts.add("key_heads", csv_text("key_heads", [[row.values[n] for n in KEY_HEADS.names]]))
        collected.add_key_head(row)


def _content(run: PlannedRun, found: Recorded) -> str:
    """A hash of all that decides the tables and what run.json says about them."""
    settings = run.config.model_dump_json(include={"role_thresholds", "dataset_local_root"})
    parts = [run.records.folder.name, settings, str(run.dump.path), *found.names]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _written(place: RunFolder, content: str) -> dict[str, Any] | None:
    """run.json, if it is complete and the tables here have this content; else None."""
    try:
        info = read_run_info(place.run)
    except (FileNotFoundError, ConfigError):
        return None
    if any(name not in info for name in _PRINTED) or "analysed" not in (info["heads"] or {}):
        return None
    tables = info.get("tables") or {}
    hashes = {kind: sha256_of(place.folder / name) for kind, name in tables.items()}
    return info if info.get("content") == content and hashes == info.get("sha256") else None


class _Drafts:
    """Drafts of the tables in a folder, open until the stack ends."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.files: dict[TableKind, TextIO] = {}
        self._stack = stack

    def add(self, kind: TableKind, text: str) -> None:
        """Write rows of a table."""
        if kind not in self.files and (text or kind in _ALWAYS):
            path = self.folder / TABLES[kind].file
            file = self._stack.enter_context(path.open("w", encoding="utf-8", newline=""))
            file.write(",".join(TABLES[kind].names) + "\n")
            self.files[kind] = file
        if text:
            self.files[kind].write(text)


def _replace(place: RunFolder, drafts: _Drafts, info: dict[str, Any]) -> dict[str, Any]:
    """Replace the tables by the drafts, and then run.json. A run without a head has no tables."""
    for file in drafts.files.values():
        file.flush()
        os.fsync(file.fileno())  # a full disk is detected here, before any file is replaced
    names = {kind: TABLES[kind].file for kind in drafts.files}
    hashes = {kind: sha256_of(drafts.folder / name) for kind, name in names.items()}
    text = json.dumps({**info, "tables": names, "sha256": hashes}, indent=2) + "\n"
    write_through(drafts.folder / RUN_FILE, text)
    for kind in TABLES:
        if kind in names:
            (drafts.folder / names[kind]).replace(place.table(kind))
        else:
            place.table(kind).unlink(missing_ok=True)
    (drafts.folder / RUN_FILE).replace(place.run)
    sync_folder(place.folder)
    written: dict[str, Any] = json.loads(text)
    return written
