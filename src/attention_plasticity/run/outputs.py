"""The three tables and run.json: their columns, their places, and writing them in one step each."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from attention_plasticity.config import RunnerConfig
from attention_plasticity.results import Columns, HeadResult
from attention_plasticity.run.run_info import read_run_info
from qk_dump.card import CARD_FILE
from qk_dump.examples import EXAMPLES_FILE
from qk_dump.layout import UNFINISHED, parse_head
from qk_dump.manifest import MANIFEST_NAME
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import (
    cannot_write,
    open_regular,
    resolved,
    staged,
    try_lock,
    try_writing,
    user_path,
    write_through,
)

if TYPE_CHECKING:
    from _csv import Writer

IDS = ("layer", "q_head", "k_head")
METRIC_COLUMNS = (
    *IDS,
    *("n_q_tokens", "n_k_tokens", "d_model", "q_R2_pos", "q_R2_scalar"),
    *("q_mae_baseline", "q_mae_proj", "q_mae_ratio"),
    *("q_resid0_skew", "q_resid0_kurt", "q_resid0_ks_p"),
    *("q_noise_med_abs_skew", "q_noise_med_abs_kurt"),
    *("q_noise_med_ks_p", "q_noise_frac_ks_p_lt_alpha"),
    *("ap_overall", "q_beta_norm", "q_R2_total", "ap_first20", "ap_last20", "ap_drop"),
    *("ap_20to40", "ap_40to60", "ap_60to80", "q_position_max", "sliding_window"),
)
BUCKET_COLUMNS = (
    *IDS,
    *("q_bucket", "k_bucket", "plasticity", "n_pairs"),
    *("q_position", "k_position", "n_queries", "n_texts"),
)
COMPONENT_COLUMNS = (*IDS, "component", "weight", "r2")

RUN_FILE = "run.json"
_LOG_FILE = "workers.log"
_KEEP = "previous"
_LONGEST_NAME = "x" * 60  # a record's draft below `.heads` has no longer one


@dataclass(frozen=True)
class OutputPaths:
    """Where a run's files go."""

    folder: Path
    metrics: Path
    buckets: Path
    components: Path

    @property
    def run(self) -> Path:
        """Provenance of the tables."""
        return self.folder / RUN_FILE

    @property
    def log(self) -> Path:
        """What the workers printed, if anything."""
        return self.folder / _LOG_FILE

    def names(self) -> dict[str, str]:
        """Tables by kind, relative to the run's folder where they lie in it."""
        tables = {
            "head_metrics": self.metrics,
            "bucket_plasticity": self.buckets,
            "component_weights": self.components,
        }
        return {
            kind: path.name if path.parent == self.folder else str(path.absolute())
            for kind, path in tables.items()
        }

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file a run writes for its users."""
        return (self.metrics, self.buckets, self.components, self.run)

    @property
    def elsewhere(self) -> list[Path]:
        """Tables that do not lie in the run's folder, where other runs may write as well."""
        home = resolved(self.folder)
        return [path for path in self.all if not resolved(path).is_relative_to(home)]


def output_paths(config: RunnerConfig, dump_name: str) -> OutputPaths:
    """A bare file name lies in the run's folder; a name with a folder is taken as it is.

    Without `output_dir` the run's folder is that of `output_csv`, or `results/<dump>`.
    """
    named = user_path(config.output_csv)
    if config.output_dir is not None:
        folder = user_path(config.output_dir)
    elif named.name != config.output_csv:
        folder = named.parent
    else:
        folder = Path("results") / dump_name

    def place(name: str) -> Path:
        path = user_path(name)
        return folder / name if path.name == name else path

    paths = OutputPaths(
        folder, place(config.output_csv), place(config.bucket_csv), place(config.component_csv)
    )
    files = (*paths.all, paths.log)
    if len({resolved(path) for path in files}) < len(files):
        raise ConfigError(
            f"output_csv, bucket_csv, component_csv, {RUN_FILE} and {_LOG_FILE} must be different "
            "files, got " + ", ".join(str(path) for path in files)
        )
    return paths


def check_writable(paths: OutputPaths) -> None:
    """Fail before any work when a result could not be written."""
    for path in (*paths.all, paths.folder / _LONGEST_NAME):
        try:
            if path.is_dir():
                raise ConfigError(f"{path}: is a folder, a table cannot be written in its place")
            try_writing(path)
        except OSError as error:
            raise ConfigError(
                f"{path.parent}: results cannot be written here: {error.strerror or error}. "
                "Choose another output_dir, or a shorter name."
            ) from error


def refuse_reserved(paths: OutputPaths) -> None:
    """Fail when a table would take the place of a dump's file or of the run's own records."""
    home = resolved(paths.folder)
    for path in paths.all:
        refuse_inside_dump(path)
        target = resolved(path)
        inside = target.relative_to(home).parts if target.is_relative_to(home) else (path.name,)
        if any(part.startswith(".") for part in inside):
            raise ConfigError(f"{path}: names that begin with a dot are kept for the run itself")


def refuse_inside_dump(path: Path) -> None:
    """Fail when a file would lie in a head's folder or replace what a dump has beside its heads."""
    target = resolved(path)
    in_head = any(parse_head(part) for part in target.parts)
    own = target.name in (MANIFEST_NAME, EXAMPLES_FILE, CARD_FILE) and _is_dump(target.parent)
    if in_head or own or UNFINISHED in target.parts:
        raise ConfigError(f"{path}: lies inside a dump; results must not replace captures")


def _is_dump(folder: Path) -> bool:
    try:
        return any(
            parse_head(entry.name) or entry.name == MANIFEST_NAME for entry in folder.iterdir()
        )
    except OSError:
        return False


def refuse_tables_of_others(paths: OutputPaths) -> None:
    """Fail when a table elsewhere is there already and was not written by the folder's own run."""
    own = {resolved(path) for path in _listed_files(paths)}
    for path in paths.elsewhere:
        if path.exists() and resolved(path) not in own:
            raise ConfigError(
                f"{path}: is not a table of the run in {paths.folder} and is not replaced. "
                "Choose another name, or move the file."
            )


@contextmanager
def tables_locked(paths: OutputPaths) -> Iterator[None]:
    """Hold the tables that lie elsewhere, so that no other run writes them meanwhile."""
    with ExitStack() as stack:
        for path in paths.elsewhere:
            lock = try_lock(path.with_name(f".{path.name}.lock"))
            if lock is None:
                raise ConfigError(
                    f"{path}: another run is writing this table. Wait for it, or choose another "
                    "name."
                )
            stack.callback(lock.release)
        refuse_tables_of_others(paths)
        yield


def set_aside(paths: OutputPaths, *, own_too: bool) -> Path | None:
    """Move files out of the way that could pass for this run's or would be overwritten by it.

    Those are files in the place of our tables that the folder's own run did not write, and its
    tables under other names than ours. With `own_too`, all that it wrote, its log as well.
    """
    ours = {resolved(path): path for path in paths.all}
    listed = {resolved(path): path for path in _listed_files(paths)}
    unwanted = {**listed, **ours}
    if not own_too:
        unwanted = {key: path for key, path in unwanted.items() if (key in ours) != (key in listed)}
    else:
        unwanted[resolved(paths.log)] = paths.log
    present = [path for path in unwanted.values() if path.exists()]
    if not present:
        return None
    number = 1
    while (keep := paths.folder / f"{_KEEP}-{number}").exists():
        number += 1
    try:
        keep.mkdir()
        for index, path in enumerate(present):
            taken = (keep / path.name).exists()
            shutil.move(path, keep / (f"{index}-{path.name}" if taken else path.name))
    except OSError as error:
        raise cannot_write(keep, error) from error
    return keep


def _listed_files(paths: OutputPaths) -> list[Path]:
    """run.json and the tables it lists, as far as they are still what that run wrote.

    A table elsewhere counts only when it is one of ours: no file is moved on run.json's word alone.
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
    """Hash of a file's content, None when there is none."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # ValueError: no file can have such a name
        return None


def require_as_written(path: Path, digest: str | None) -> None:
    """Refuse a table that was cut, edited or lost since its run wrote it."""
    if sha256_of(path) != digest:
        raise ToolkitError(
            f"{path}: is missing or no longer what this run wrote; run the analysis again"
        )


def write_outputs(
    paths: OutputPaths,
    results: Iterable[HeadResult],
    run: dict[str, Any],
    later: Callable[[], dict[str, Any]] = dict,
) -> None:
    """Write tables and run.json beside their targets, then put them in place, run.json last.

    Results come sorted and are written one by one; `later` gives the facts of run.json that are
    known only when all have passed. While the files are exchanged there is no
    run.json, so that half an exchange cannot be taken for a finished run. A run without a single
    finished head has no tables; its run.json says why.
    """
    with ExitStack() as stack:
        run_draft = stack.enter_context(staged(paths.run))  # first in, last to be put in place
        hashes = _write_tables(stack, paths, results) if run["heads"]["analysed"] else {}
        write_through(run_draft, json.dumps({**run, **later(), "sha256": hashes}, indent=2) + "\n")
        paths.run.unlink(missing_ok=True)


def _write_tables(
    stack: ExitStack, paths: OutputPaths, results: Iterable[HeadResult]
) -> dict[str, str | None]:
    """Fill the tables beside their targets and return their hashes."""
    tables = (
        (stack.enter_context(_table(paths.metrics, METRIC_COLUMNS)), _metric_rows),
        (stack.enter_context(_table(paths.buckets, BUCKET_COLUMNS)), _bucket_rows),
        (stack.enter_context(_table(paths.components, COMPONENT_COLUMNS)), _component_rows),
    )
    for result in results:
        for (writer, _), rows_of in tables:
            writer.writerows(rows_of(result))
    for (_, file), _ in tables:
        file.flush()
        os.fsync(file.fileno())  # a full disk is noticed here, before any file is exchanged
    drafts = [Path(file.name) for (_, file), _ in tables]
    return dict(zip(paths.names(), map(sha256_of, drafts), strict=True))


@contextmanager
def _table(path: Path, columns: Sequence[str]) -> Iterator[tuple[Writer, TextIO]]:
    """A CSV file to fill: floats in the shortest form that reads back exactly, or `nan`."""
    with staged(path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        yield writer, file


def _metric_rows(result: HeadResult) -> Iterator[list[Any]]:
    yield [result.metrics[name] for name in METRIC_COLUMNS]


def _bucket_rows(result: HeadResult) -> Iterator[list[Any]]:
    return _rows(result, result.buckets, BUCKET_COLUMNS)


def _component_rows(result: HeadResult) -> Iterator[list[Any]]:
    return _rows(result, result.components, COMPONENT_COLUMNS)


def _rows(result: HeadResult, content: Columns, columns: tuple[str, ...]) -> Iterator[list[Any]]:
    ids = [result.layer, result.q_head, result.k_head]
    for row in zip(*(content[name] for name in columns[len(IDS) :]), strict=True):
        yield [*ids, *row]
