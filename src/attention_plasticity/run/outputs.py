"""Paths and writing of the tables and run.json."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from attention_plasticity.config import RunnerConfig
from attention_plasticity.measure.result import HeadResult
from attention_plasticity.metrics import FIDELITY, HEAD_METRICS, IDS, KEY_HEADS, TABLES, TableKind
from attention_plasticity.run.run_info import read_run_info
from qk_dump.card import CARD_FILE
from qk_dump.dump_files import FILES_BESIDE_HEADS
from qk_dump.layout import UNFINISHED, parse_head
from qk_dump.manifest import MANIFEST_NAME
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import (
    cannot_write,
    open_regular,
    require_writable,
    resolved,
    staged,
    try_lock,
    user_path,
    write_through,
)
from qk_toolkit.mirror import mirror_folder

if TYPE_CHECKING:
    from _csv import Writer

RUN_FILE = "run.json"
FIDELITY_INFO = "fidelity.json"
"""Provenance of the table of fidelity, which the verb `fidelity` writes beside the others."""
_BESIDE_HEADS = (*FILES_BESIDE_HEADS, CARD_FILE)  # files of a dump
_LOG_FILE = "workers.log"
PREVIOUS = "previous"
"""Beginning of the names of folders with files of earlier runs."""
_ALWAYS = ("head_metrics", "bucket_plasticity", "component_weights", "influences")
"""Tables that are written also without a row."""
_LONGEST_NAME = "x" * 60  # at least as long as the draft of a record in `.heads`


@dataclass(frozen=True)
class OutputPaths:
    """Paths of the files of a run."""

    folder: Path
    tables: dict[TableKind, Path]  # those that the run can have
    url: str | None = None  # where the files are sent, if the folder is a copy

    @property
    def place(self) -> str:
        """The folder or the URL of the run, as the user gave it."""
        return self.url or str(self.folder)

    def shown(self, path: Path) -> str:
        """The place of a file of the run, as the user sees it."""
        if self.url is None or not path.is_relative_to(self.folder):
            return str(path)
        return f"{self.url}/{path.relative_to(self.folder).as_posix()}"

    @property
    def run(self) -> Path:
        """Provenance of the tables."""
        return self.folder / RUN_FILE

    @property
    def log(self) -> Path:
        """Output that the workers printed."""
        return self.folder / _LOG_FILE

    def names(self) -> dict[str, str]:
        """Tables by kind. Tables in the run folder have a name without a folder."""
        return {
            kind: path.name if path.parent == self.folder else str(path.absolute())
            for kind, path in self.tables.items()
        }

    def without(self, kinds: Collection[TableKind]) -> OutputPaths:
        """The paths without some tables."""
        left = {kind: path for kind, path in self.tables.items() if kind not in kinds}
        return replace(self, tables=left)

    @property
    def all(self) -> tuple[Path, ...]:
        """The tables and run.json."""
        return (*self.tables.values(), self.run)

    @property
    def outside(self) -> list[Path]:
        """Tables outside the run folder. Other runs may write the same files."""
        home = resolved(self.folder)
        return [path for path in self.all if not resolved(path).is_relative_to(home)]


def output_paths(config: RunnerConfig, dump_name: str) -> OutputPaths:
    """Paths of the outputs. A file name without a folder is a file in the run folder.

    Without `output_dir`, the run folder is the folder of `output_csv`, or `results/<dump>`. The
    tables that need certain columns of the dump are included; whether they exist is known after the
    analysis.
    """
    url = config.output_url
    named = user_path(config.output_csv)
    if url is not None:
        folder = mirror_folder(url, "runs")
    elif config.output_dir is not None:
        folder = user_path(config.output_dir)
    elif named.name != config.output_csv:
        folder = named.parent
    else:
        folder = Path("results") / dump_name

    def place(name: str) -> Path:
        path = user_path(name)
        return folder / name if path.name == name else path

    named_tables: dict[TableKind, str] = {
        "head_metrics": config.output_csv,
        "bucket_plasticity": config.bucket_csv,
        "component_weights": config.component_csv,
        "influences": config.influence_csv,
        "attention": config.attention_csv,
        "bins": config.bin_csv,
    }
    names = {kind: named_tables.get(kind, table.file) for kind, table in TABLES.items()}
    paths = OutputPaths(folder, {kind: place(name) for kind, name in names.items()}, url)
    files = (*paths.all, paths.log)
    if len({resolved(path) for path in files}) < len(files):
        raise ConfigError(
            f"the names of the tables, {RUN_FILE} and {_LOG_FILE} must be different files, got "
            + ", ".join(str(path) for path in files)
        )
    return paths


def check_writable(paths: OutputPaths) -> None:
    """Raise a `ConfigError` if an output cannot be written."""
    for path in (*paths.all, paths.folder / _LONGEST_NAME):
        require_writable(path, "Choose another output_dir, or another name for the table.")


def refuse_reserved(paths: OutputPaths) -> None:
    """Raise if a table would replace a file of a dump or the records of the run."""
    if paths.url is not None and any(parse_head(part) for part in paths.url.split("/")):
        raise ConfigError(f"{paths.url}: is inside a dump; choose another URL for results")
    home = resolved(paths.folder)
    for path in paths.all:
        refuse_inside_dump(path)
        target = resolved(path)
        inside = target.relative_to(home).parts if target.is_relative_to(home) else (path.name,)
        if any(part.startswith(".") for part in inside):
            raise ConfigError(
                f"{path}: names that begin with a dot are reserved; choose another name"
            )


def refuse_inside_dump(path: Path) -> None:
    """Raise if a file would be in the folder of a head, or would replace a file of a dump."""
    target = resolved(path)
    in_head = any(parse_head(part) for part in target.parts)
    own = target.name in _BESIDE_HEADS and _is_dump(target.parent)
    if in_head or own or UNFINISHED in target.parts:
        raise ConfigError(f"{path}: is inside a dump; choose another path for results")


def _is_dump(folder: Path) -> bool:
    try:
        return any(
            parse_head(entry.name) or entry.name == MANIFEST_NAME for entry in folder.iterdir()
        )
    except OSError:
        return False


def refuse_foreign_tables(paths: OutputPaths) -> None:
    """Raise if a table outside the run folder exists and was not written by this run."""
    own = {resolved(path) for path in _listed_files(paths)}
    for path in paths.outside:
        if path.exists() and resolved(path) not in own:
            raise ConfigError(
                f"{path}: exists, but is not a table of the run in {paths.folder}. "
                "Choose another name, or move the file."
            )


@contextmanager
def tables_locked(paths: OutputPaths) -> Iterator[None]:
    """Lock the tables outside the run folder against other runs."""
    with ExitStack() as stack:
        for path in paths.outside:
            lock = try_lock(path.with_name(f".{path.name}.lock"))
            if lock is None:
                raise ConfigError(
                    f"{path}: another run is writing this table. "
                    "Wait until it ends, or choose another name."
                )
            stack.callback(lock.release)
        refuse_foreign_tables(paths)
        yield


def set_aside(paths: OutputPaths, *, include_own: bool) -> Path | None:
    """Move old files to `previous-N`, so that they are not overwritten or read as new results.

    These are files at the output paths that the earlier run in this folder did not write, and
    tables of that run with other names. With `include_own`, all files of that run, its log, and the
    table of fidelity beside them.
    """
    ours = {resolved(path): path for path in paths.all}
    listed = {resolved(path): path for path in _listed_files(paths)}
    to_move = {**listed, **ours}
    if include_own:
        beside = (paths.folder / name for name in (FIDELITY.file, FIDELITY_INFO))
        to_move |= {resolved(path): path for path in (paths.log, *beside)}
    else:
        to_move = {key: path for key, path in to_move.items() if (key in ours) != (key in listed)}
    present = [path for path in to_move.values() if path.exists()]
    if not present:
        return None
    number = 1
    while (target := paths.folder / f"{PREVIOUS}-{number}").exists():
        number += 1
    try:
        target.mkdir()
        for index, path in enumerate(present):
            taken = (target / path.name).exists()
            shutil.move(path, target / (f"{index}-{path.name}" if taken else path.name))
    except OSError as error:
        raise cannot_write(target, error) from error
    return target


def _listed_files(paths: OutputPaths) -> list[Path]:
    """run.json and the tables that it lists, if they are unchanged since the run.

    A table outside the run folder is included only if it is at one of our output paths, so that an
    edited run.json cannot move other files.
    """
    try:
        run = read_run_info(paths.run)
    except (FileNotFoundError, ConfigError):
        return []
    home, ours = resolved(paths.folder), {resolved(path) for path in paths.all}
    found = [paths.run]
    for kind, name in run.get("tables", {}).items():
        path, digest = paths.folder / name, run.get("sha256", {}).get(kind)
        known = resolved(path) in ours or resolved(path).is_relative_to(home)
        if known and digest is not None and sha256_of(path) == digest:
            found.append(path)
    return found


def sha256_of(path: Path) -> str | None:
    """Hash of the content of a file; None if the file cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # ValueError: invalid file name
        return None


class OutputDrafts:
    """Drafts of the tables of a run and of run.json."""

    def __init__(self, paths: OutputPaths, stack: ExitStack) -> None:
        self._run = stack.enter_context(staged(paths.run))  # entered first, so renamed last
        self._paths = paths
        self._stack = stack
        self._tables: dict[TableKind, tuple[Writer, TextIO]] = {}

    def add(self, result: HeadResult) -> None:
        """Write the rows of a head. Heads are added in order."""
        for kind in self._paths.tables:
            self._write(kind, list(_rows(kind, result)))

    def add_key_head(self, values: Mapping[str, Any]) -> None:
        """Write the row of a key head. Key heads are added in order."""
        self._write("key_heads", [[values[name] for name in KEY_HEADS.names]])

    def _write(self, kind: TableKind, rows: Sequence[Sequence[Any]]) -> None:
        if kind not in self._tables and (rows or kind in _ALWAYS):
            table = _table(self._paths.tables[kind], TABLES[kind].names)
            self._tables[kind] = self._stack.enter_context(table)
        if rows:
            self._tables[kind][0].writerows(rows)

    @property
    def paths(self) -> OutputPaths:
        """The paths of the run, without tables for which no head had a row."""
        if not self._tables:
            return self._paths
        return self._paths.without(self._paths.tables.keys() - self._tables.keys())

    def end(self, run: dict[str, Any]) -> None:
        """Write run.json, with the hashes of the tables, and remove the old one."""
        for _, file in self._tables.values():
            file.flush()
            os.fsync(file.fileno())  # a full disk is detected here, before any file is replaced
        hashes = {kind: sha256_of(Path(file.name)) for kind, (_, file) in self._tables.items()}
        write_through(self._run, json.dumps({**run, "sha256": hashes}, indent=2) + "\n")
        self._paths.run.unlink(missing_ok=True)


@contextmanager
def output_drafts(paths: OutputPaths) -> Iterator[OutputDrafts]:
    """Drafts that replace the files of a run when the block ends, run.json last.

    The old run.json is deleted before the tables are renamed, so that a half-finished exchange is
    not read as a finished run. A run in which all heads failed has no tables; its run.json has the
    reasons.
    """
    with ExitStack() as stack:
        yield OutputDrafts(paths, stack)


@contextmanager
def _table(path: Path, columns: Sequence[str]) -> Iterator[tuple[Writer, TextIO]]:
    """A new CSV file. Floats have the shortest text that restores them exactly, or `nan`.

    Tokens are quoted: without quotes, a carriage return in a token would end the row.
    """
    with staged(path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(columns)
        if "query_token" in columns:
            yield csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC), file
        else:
            yield csv.writer(file, lineterminator="\n"), file


def _rows(kind: TableKind, result: HeadResult) -> Iterator[list[Any]]:
    """Rows of a head in a table."""
    if kind == "head_metrics":
        yield [result.metrics[name] for name in HEAD_METRICS.names]
        return
    content = result.tables.get(kind)
    if content is None:
        return
    ids = [result.layer, result.q_head, result.k_head]
    for row in zip(*(content[name] for name in TABLES[kind].names[len(IDS) :]), strict=True):
        yield [*ids, *row]
