"""Records of finished heads. A killed run keeps its finished heads.

`<output_dir>/.heads/<hash>/` has the records of one choice of settings, texts and shared files;
`settings.json` there says what the hash stands for. The name of a record is the head and the hash
of its files: `l03h05-1f…json.gz`. A head is finished if its record is there. A record is JSON,
packed with gzip, which ends with a checksum: a damaged record is not there. Its first line repeats
folder and name, so a record that was renamed or copied from another run is not there either. A head
that failed leaves a file with the reason, `.failed`. Records of other settings and other files are
not touched.
"""

from __future__ import annotations

import gzip
import json
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from attention_plasticity.run.fingerprints import settings_digest
from qk_toolkit.errors import ToolkitError
from qk_toolkit.files import (
    DRAFT_PATTERN,
    MOST_JSON_BYTES,
    cannot_lock,
    cannot_write,
    read_bounded,
    staged,
    sync,
    try_lock,
    write_text,
)

FOLDER = ".heads"
_FINISHED, _FAILED = ".json.gz", ".failed"
_SECONDS_OF_A_DRAFT = 3600.0  # an older draft was left by a killed process
_NAME = re.compile(r"l(\d{2,})h(\d{2,})-([0-9a-f]{16})(\.json\.gz|\.failed)")


class Unit(NamedTuple):
    """A query head, which one record is about."""

    layer: int
    q_head: int
    files: str  # hash of its input files

    @property
    def name(self) -> str:
        """The record's name without its ending."""
        return f"l{self.layer:02d}h{self.q_head:02d}-{self.files[:16]}"


class Records:
    """The records of one choice of settings in the folder of a run."""

    def __init__(self, run_folder: Path, settings: dict[str, Any]) -> None:
        self._all = run_folder / FOLDER
        self.folder = self._all / settings_digest(settings)
        self._settings = settings

    def begin(self) -> None:
        """Create the folder, and remove drafts of killed processes."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        described = self.folder / "settings.json"
        if not described.exists():
            write_text(described, json.dumps(self._settings, indent=2) + "\n")
        before = time.time() - _SECONDS_OF_A_DRAFT
        for draft in [*self._all.parent.glob(DRAFT_PATTERN), *self.folder.glob(DRAFT_PATTERN)]:
            with suppress(FileNotFoundError):  # another command renamed or removed it
                if draft.stat().st_mtime < before:
                    draft.unlink()

    def lock(self, layer: int, k_head: int) -> FileLock | None:
        """Claim a key head and its query heads; None if another command computes them."""
        return try_lock(self.folder / f"l{layer:02d}k{k_head:02d}.lock")

    @contextmanager
    def tables_lock(self) -> Iterator[None]:
        """Held by the command that writes the tables of the folder."""
        lock = FileLock(self._all / "tables.lock")
        try:
            lock.acquire()
        except OSError as error:
            raise cannot_lock(
                self._all / "tables.lock", error, "Remove it, or choose another output_dir."
            ) from error
        try:
            yield
        finally:
            lock.release()

    def exists(self, unit: Unit) -> bool:
        """Whether there is a record of a unit, which may be damaged."""
        return self._path(unit).exists()

    def has(self, unit: Unit) -> bool:
        """Whether a unit is finished, with an undamaged record."""
        return self._text(unit) is not None

    def add(self, unit: Unit, content: bytes) -> None:
        """Write the record of a finished unit, in one step."""
        with staged(self._path(unit)) as draft, draft.open("wb") as file:
            file.write(gzip.compress(self._whose(unit), mtime=0) + content)
            sync(file)
        self._path(unit, _FAILED).unlink(missing_ok=True)

    def add_failure(self, unit: Unit, reason: str) -> None:
        """Write why a unit failed. The next run tries it again. A damaged record is removed."""
        self.drop(unit)
        write_text(self._path(unit, _FAILED), json.dumps(reason) + "\n")

    def drop(self, unit: Unit) -> None:
        """Remove the record of a unit."""
        self._path(unit).unlink(missing_ok=True)

    def read(self, unit: Unit) -> dict[str, Any] | None:
        """The content of a record; None if there is none, or if it is damaged."""
        text = self._text(unit)
        return None if text is None else json.loads(text)

    def _text(self, unit: Unit) -> bytes | None:
        """The JSON text of a record; None if its checksum is wrong, or if it is another's."""
        try:
            text = gzip.decompress(read_bounded(self._path(unit), MOST_JSON_BYTES))
            whose = self._whose(unit)
            return text.removeprefix(whose) if text.startswith(whose) else None
        except (FileNotFoundError, EOFError, gzip.BadGzipFile, zlib.error):
            return None
        except OSError as error:
            reason = error.strerror or error
            raise ToolkitError(f"{self._path(unit)}: cannot be read: {reason}") from error

    def _whose(self, unit: Unit) -> bytes:
        """The first line of a record: hash of the settings, head, and hash of its files."""
        return f"{self.folder.name}/{unit.name}\n".encode()

    def failure(self, unit: Unit) -> str | None:
        """Why a unit failed in the last run that tried it; None if none failed."""
        try:
            return str(json.loads(read_bounded(self._path(unit, _FAILED), MOST_JSON_BYTES)))
        except (OSError, ValueError):
            return None

    def units(self) -> Iterator[Unit]:
        """The units with a record, by their names. Damaged records are included."""
        for path in sorted(self.folder.glob(f"l*{_FINISHED}")):
            found = _NAME.fullmatch(path.name)
            if found is not None:
                layer, q_head, files, _ = found.groups()
                yield Unit(int(layer), int(q_head), files)

    def others(self, planned: Iterable[Unit]) -> list[Path]:
        """Records of other settings or other files than those of `planned`."""
        own = {self._path(unit) for unit in planned}
        return [path for path in sorted(self._all.rglob(f"*{_FINISHED}")) if path not in own]

    def _path(self, unit: Unit, ending: str = _FINISHED) -> Path:
        return self.folder / f"{unit.name}{ending}"


def packed(content: dict[str, Any]) -> bytes:
    """The bytes of a record. The same content gives the same bytes."""
    return gzip.compress(json.dumps(content).encode(), compresslevel=1, mtime=0)
