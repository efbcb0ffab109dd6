"""Records of finished heads in the folder of a run. A killed run keeps its finished heads.

`<output_dir>/.heads/` contains `settings.json` (the settings that change results), `texts.json`
(the texts of the dump) and one JSON file per head. Each file is written in one step, starts with a
hash of its content, and contains a digest of the settings. A file with a wrong hash is damaged. A
later run reuses the heads if its settings are equal and the input files are unchanged. It computes
damaged heads again. Floats are restored bit for bit.

JSON files that start with a hash of their content, so that damage is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from attention_plasticity.measure.result import Failure, HeadResult
from attention_plasticity.metrics import HEAD_METRICS, IDS, TABLES
from attention_plasticity.read.texts import DumpTexts
from attention_plasticity.run.fingerprints import InputFiles, RunFacts
from attention_plasticity.run.labels import LABELS
from attention_plasticity.run.plan import format_heads
from attention_plasticity.run.run_info import adds_heads, changed_settings, settings_of_head
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import (
    DRAFT_PATTERN,
    MOST_JSON_BYTES,
    cannot_lock,
    cannot_write,
    is_locked,
    read_bounded,
    write_text,
)

FOLDER = ".heads"

Metrics = dict[str, Any]

_RESULT_FIELDS = [field.name for field in fields(HeadResult)]

_FACTS = "facts.json"  # of a run that consists of shards
_TEXTS = "texts.json"
_MERGED = "merged.json"  # facts of a run whose shards have other folders
_SHARD_LOCK = ".lock-"
_SECONDS_TO_LOCK = 10.0  # seconds; shards that start together lock the folder for a moment
_RECORD_NAME = re.compile(rf"{re.escape(FOLDER)}/l(\d{{2,}})h(\d{{2,}})\.json")
REMEDY = "Remove it, or choose another output_dir."


@dataclass(frozen=True)
class FinishedHeads:
    """Finished heads of an earlier run, or the reason why they cannot be reused."""

    metrics: dict[tuple[int, int], Metrics]
    conflict: str | None = None
    damaged: list[tuple[int, int]] = field(default_factory=list)  # will be computed again
    texts: frozenset[str] = frozenset()  # hashes of the texts of the heads
    are_fewer: bool = False  # the earlier run was for a part of the layers or heads of this run

    @property
    def notes(self) -> list[str]:
        """Messages for the user about the records of the earlier run."""
        if not self.damaged:
            return []
        count = len(self.damaged)
        heads, are = ("heads", "these heads are") if count > 1 else ("head", "this head is")
        return [
            f"the records of {count} {heads} ({format_heads(self.damaged)}) are damaged; "
            f"{are} computed again"
        ]


@dataclass(frozen=True)
class ShardRecord:
    """The end of a shard."""

    failures: list[Failure]
    seconds: float


class Records:
    """Records of the finished heads in the folder of a run, with a lock against other runs."""

    def __init__(
        self, output_dir: Path, settings: dict[str, Any], place: str | None = None
    ) -> None:
        self._output_dir = output_dir
        self._place = place or str(output_dir)  # for messages
        self._folder = _usable_folder(output_dir / FOLDER)
        self._lock = FileLock(output_dir / ".lock", thread_local=False)
        self._can_overwrite = True
        self._settings = settings
        self._digest = hashlib.sha256(json.dumps(settings_of_head(settings)).encode()).hexdigest()

    @property
    def place(self) -> str:
        """The folder or the URL of the run, for messages."""
        return self._place

    @property
    def output_dir(self) -> Path:
        """The folder of the run."""
        return self._output_dir

    def lock(self) -> None:
        """Lock the folder for this process. The lock is released when the process ends."""
        self._acquire(self._lock)
        if any(is_locked(path) for path in self._output_dir.glob(f"{_SHARD_LOCK}*")):
            self._lock.release()
            raise self._in_use("a shard of a run")

    def lock_shard(self, name: str) -> None:
        """Lock the folder for one shard. Other shards can work in the same folder."""
        self._acquire(self._lock, _SECONDS_TO_LOCK)  # no whole run is writing here
        shard = FileLock(self._output_dir / f"{_SHARD_LOCK}{name}", thread_local=False)
        try:
            self._acquire(shard)
        finally:
            self._lock.release()
        self._lock = shard
        self._can_overwrite = False

    def _acquire(self, lock: FileLock, seconds: float = 0.0) -> None:
        try:
            lock.acquire(timeout=seconds)
        except Timeout as error:
            raise self._in_use("another run") from error
        except OSError as error:
            raise cannot_lock(Path(lock.lock_file), error, REMEDY) from error

    def _in_use(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._place}: {what} is writing here. "
            "Wait until it ends, or choose another output_dir."
        )

    def release(self) -> None:
        """Unlock the folder."""
        self._lock.release()

    def finished_heads(
        self, inputs: InputFiles, only: Collection[tuple[int, int]] | None = None
    ) -> FinishedHeads:
        """Heads finished with the same settings and the same input files. Writes nothing.

        The earlier run may have been for a part of the layers and heads of this one. `only` limits
        this to some heads, such as those of a shard.
        """
        settings = read_sealed(self._folder / "settings.json")
        are_fewer = settings is not None and adds_heads(settings, self._settings)
        if settings is not None and settings != self._settings and not are_fewer:
            return FinishedHeads({}, self._conflict(changed_settings(settings, self._settings)))
        metrics: dict[tuple[int, int], Metrics] = {}
        changed_input, damaged, other_settings = [], [], []
        changed_shared: set[str] = set()
        texts: set[str] = set()
        for head, path in self._files():
            if only is not None and head not in only:
                continue
            record = read_sealed(path)
            if record is None or (record["layer"], record["q_head"]) != head:
                damaged.append(head)
            elif not self._is_of_settings(record):
                other_settings.append(head)
            elif record["shared"] != inputs.shared:
                changed_shared |= _changed_names(record["shared"], inputs.shared)
            elif record["input"] != inputs.record_state(*head, record["k_head"]):
                changed_input.append(head)
            else:
                metrics[head] = record["metrics"]
                texts.add(record["texts"])
        if other_settings and settings is None:
            difference = "its settings, but settings.json is damaged or missing"
            return FinishedHeads({}, self._conflict(difference))
        if changed_shared:
            names = " and ".join(sorted(changed_shared))
            return FinishedHeads({}, self._of_another_dump(names))
        if changed_input:
            heads = format_heads(changed_input)
            difference = f"the input files of {len(changed_input)} heads ({heads})"
            return FinishedHeads({}, self._conflict(difference))
        return FinishedHeads(metrics, damaged=damaged, texts=frozenset(texts), are_fewer=are_fewer)

    def _files(self) -> Iterator[tuple[tuple[int, int], Path]]:
        """(layer, q_head) and path of every record."""
        for path in sorted(self._folder.glob("l*h*.json")):
            head = head_of_record(f"{FOLDER}/{path.name}")
            if head is not None:
                yield head, path

    def begin(self, *, discard: bool) -> None:
        """Prepare the folder. With `discard`, delete the records of an earlier run."""
        try:
            if discard and self._folder.exists():
                # renamed first, so that a half-deleted folder is never read as records
                trash = self._folder.with_name(f"{FOLDER}-discarded")
                shutil.rmtree(trash, ignore_errors=True)
                self._folder.rename(trash)
                shutil.rmtree(trash)
            for place in (self._output_dir, self._folder):
                for draft in place.glob(DRAFT_PATTERN):
                    draft.unlink()  # from a run that was killed while writing
        except OSError as error:
            raise cannot_write(self._folder, error) from error
        write_text(self._folder / "settings.json", sealed(self._settings))

    def begin_shard(self, facts: RunFacts) -> None:
        """Prepare the folder for a shard. Nothing of other shards is deleted.

        Raises a `ConfigError` if other shards here read another dump.
        """
        self._require_dump(facts)
        write_text(self._folder / "settings.json", sealed(self._settings))
        write_text(self._folder / _FACTS, sealed(asdict(facts)))

    def begin_merged(self, facts: RunFacts, done: Collection[tuple[int, int]]) -> None:
        """Prepare the folder for the tables of shards, which can have other folders.

        `done` are the heads of the tables. Raises a `ConfigError` if the folder has results of a
        run with other settings or of another dump.
        """
        self._can_overwrite = False
        settings = read_sealed(self._folder / "settings.json")
        if settings is not None and settings != self._settings:
            raise ConfigError(self._conflict(changed_settings(settings, self._settings)))
        if not all(facts.has_files_of(record) for _, record in self.usable()):
            raise ConfigError(self._conflict("the dump"))
        self._require_dump(facts)
        if not (self._folder / _FACTS).exists():
            write_text(self._folder / "settings.json", sealed(self._settings))
            merged = facts.of_heads(done)
            write_text(self._folder / _MERGED, sealed(asdict(merged)))

    def _require_dump(self, facts: RunFacts) -> None:
        """Raise a `ConfigError` if the folder has results of another dump.

        Files of heads without a record may have changed: a damaged file can be repaired.
        """
        recorded = self.heads()
        for name in (_FACTS, _MERGED):
            content = read_sealed(self._folder / name)
            if content is None or (name == _FACTS and not recorded):
                continue
            earlier = RunFacts(**content)
            if name == _FACTS:
                earlier = earlier.of_heads(recorded)
            if not earlier.is_of_dump(facts):
                then, now = earlier.input["path"], facts.input["path"]
                paths = f"files in {now}" if then == now else f"{then} then, {now} now"
                raise ConfigError(self._conflict(f"the dump ({paths})"))

    def save_texts(self, texts: DumpTexts, inputs: InputFiles) -> None:
        """Save the texts of the dump, so that all heads of the run have the same groups."""
        content = {"dump": inputs.identity, **texts.as_message()}
        write_text(self._folder / _TEXTS, sealed(content))

    def saved_texts(self, inputs: InputFiles) -> DumpTexts | None:
        """The saved texts; None without any, or if dump.json or examples.parquet has changed."""
        content = read_sealed(self._folder / _TEXTS)
        if content is None or content["dump"] != inputs.identity:
            return None
        return DumpTexts.of_message(content)

    def add_shard(self, name: str, record: ShardRecord) -> None:
        """Record the end of a shard: its failures and its duration."""
        write_text(self._folder / f"{name}.json", sealed(asdict(record)))

    def heads(self) -> list[tuple[int, int]]:
        """(layer, q_head) of every recorded head."""
        return [head for head, _ in self._files()]

    @classmethod
    def of_shards(cls, output_dir: Path, place: str | None = None) -> Records:
        """The records in a folder in which a shard has worked."""
        folder = _usable_folder(output_dir / FOLDER)
        settings = read_sealed(folder / "settings.json")
        if settings is None or read_sealed(folder / _FACTS) is None:
            raise ConfigError(
                f"{place or output_dir}: has no records of shards; give the output_dir of an "
                "analysis with engine: shards"
            )
        return cls(output_dir, settings, place)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that change results."""
        return self._settings

    def facts(self) -> RunFacts:
        """Settings, input and heads of a run that consists of shards."""
        content = read_sealed(self._folder / _FACTS)
        if content is None:
            raise ToolkitError(f"{self._folder / _FACTS}: is damaged; run a shard again")
        return RunFacts(**content)

    def shards(self) -> list[ShardRecord]:
        """The ends of the shards that worked in this folder."""
        found = [read_sealed(path) for path in sorted(self._folder.glob("shard-*.json"))]
        return [
            ShardRecord([Failure(**failure) for failure in record["failures"]], record["seconds"])
            for record in found
            if record is not None
        ]

    def usable(self) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
        """Heads with undamaged records of these settings."""
        for head, path in self._files():
            record = read_sealed(path)
            if record is not None and self._is_of_settings(record):
                yield head, record

    def _is_of_settings(self, record: dict[str, Any]) -> bool:
        """Whether a record has these settings, and the fields and columns of this version."""
        return record["settings"] == self._digest and _has_columns(record)

    def add(self, result: HeadResult, inputs: InputFiles, texts: str) -> None:
        """Record a finished head, with the state of its input files and a hash of the texts."""
        head = result.layer, result.q_head, result.k_head
        record = {
            "settings": self._digest,
            "input": inputs.record_state(*head),
            "shared": inputs.shared,
            "texts": texts,
            "files": inputs.files_of(*head),
            **vars(result),  # asdict would copy every number
        }
        write_text(self._path(result.layer, result.q_head), sealed(record))

    def drop(self, layer: int, q_head: int) -> None:
        """Delete the record of a head."""
        self._path(layer, q_head).unlink()

    def load(self, layer: int, q_head: int) -> HeadResult:
        """Read the record of a head."""
        path = self._path(layer, q_head)
        record = read_sealed(path)
        if record is None:
            raise ToolkitError(f"{path}: changed during the run; run the same command again")
        return HeadResult(**{name: record[name] for name in _RESULT_FIELDS})

    def _path(self, layer: int, q_head: int) -> Path:
        return self._folder / f"l{layer:02d}h{q_head:02d}.json"

    def other_texts(self) -> ConfigError:
        """The error for finished heads with other groups of texts than those of the dump now."""
        return ConfigError(self._conflict("the texts of the dump"))

    def _of_another_dump(self, names: str) -> str:
        return (
            f"{self._place}: holds results of another dump, or of an earlier state of this one: "
            f"{names} of the dump differs. Choose another output_dir for this dump, or "
            f"{self._remedy}."
        )

    def _conflict(self, difference: str) -> str:
        return (
            f"{self._place}: holds results of an earlier run that differs in {difference}. "
            f"Choose another output_dir, or {self._remedy}."
        )

    @property
    def _remedy(self) -> str:
        if self._can_overwrite:
            return "set overwrite to compute all heads again"
        if self._place == str(self._output_dir):
            return f"remove {self._place}"
        return f"remove {self._place} and the local copy {self._output_dir}"


def head_of_record(name: str) -> tuple[int, int] | None:
    """(layer, q_head) of the record with this name in the run folder; None for other files."""
    found = _RECORD_NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def _usable_folder(folder: Path) -> Path:
    """The folder of records, which may not exist yet. Raises if it is a link or unreadable."""
    if folder.is_symlink():  # deleting old records would delete files of another place
        raise ConfigError(f"{folder}: is a symbolic link, not a folder. {REMEDY}")
    try:
        with os.scandir(folder):
            (folder / "settings.json").stat()
    except FileNotFoundError:
        return folder
    except NotADirectoryError as error:
        raise ConfigError(f"{folder}: is a file, not a folder. {REMEDY}") from error
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}. {REMEDY}") from error
    return folder


def _has_columns(record: dict[str, Any]) -> bool:
    """Whether a record has all fields of a result, and every table all of its columns."""
    if not record.keys() >= set(_RESULT_FIELDS):
        return False
    added = {*IDS, *LABELS}  # when tables are written
    columns = {kind: set(table.names) - added for kind, table in TABLES.items()}
    return record["metrics"].keys() == set(HEAD_METRICS.names) and all(
        found.keys() == columns.get(kind) for kind, found in record["tables"].items()
    )


def _changed_names(earlier: dict[str, str], now: dict[str, str]) -> set[str]:
    return {name for name in earlier | now if earlier.get(name) != now.get(name)}


def sealed(content: dict[str, Any]) -> str:
    """JSON in two lines: the hash of the content, then the content."""
    body = json.dumps(content)
    return f"{_seal(body)}\n{body[1:]}\n"


def read_sealed(path: Path) -> dict[str, Any] | None:
    """The content of a sealed file; None if the file is missing or its hash is wrong."""
    try:
        text = read_bounded(path, MOST_JSON_BYTES).decode("utf-8")
        seal, _, rest = text.partition("\n")
    except (FileNotFoundError, ValueError):
        return None
    except PermissionError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}. {REMEDY}") from error
    body = "{" + rest.removesuffix("\n")
    if not rest.endswith("\n") or seal != _seal(body):
        return None
    content: dict[str, Any] = json.loads(body)
    return content


def is_intact(path: Path) -> bool:
    """Whether a sealed file exists and has the hash that it starts with."""
    return read_sealed(path) is not None


def _seal(body: str) -> str:
    return f'{{"sha256": "{hashlib.sha256(body.encode()).hexdigest()}",'
