"""Records of finished key heads. A killed run keeps its finished heads.

`<output_dir>/.heads/<hash>/` has the records of one choice of settings, texts and shared files;
`settings.json` there says what the hash stands for. The name of a record is the key head and the
hash of its files and those of its query heads: `l03k01-1f….record`. Its first line repeats folder
and name, with a checksum. So a damaged record, and one that was renamed or copied from another run,
is not there. Records of other settings and other files are not touched.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from attention_plasticity.run.fingerprints import settings_digest
from attention_plasticity.run.record import Record, unpacked
from qk_toolkit.errors import ToolkitError
from qk_toolkit.files import (
    DRAFT_PATTERN,
    MOST_JSON_BYTES,
    cannot_lock,
    cannot_write,
    read_bounded,
    staged,
    sync,
    write_text,
)

FOLDER = ".heads"
ENDING = ".record"
_SECONDS_OF_A_DRAFT = 3600.0  # an older draft was left by a killed process
_NAME = re.compile(r"l(\d{2,})k(\d{2,})-([0-9a-f]{16})")


class Unit(NamedTuple):
    """A key head with its query heads, which one record is about."""

    layer: int
    k_head: int
    files: str  # hash of its input files

    @property
    def name(self) -> str:
        """The record's name without its ending."""
        return f"l{self.layer:02d}k{self.k_head:02d}-{self.files[:16]}"


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

    def add(self, unit: Unit, content: bytes) -> None:
        """Write a record, in one step. `content` is that of `packed`."""
        with staged(self._path(unit)) as draft, draft.open("wb") as file:
            file.write(self._first_line(unit, content) + content)
            sync(file)

    def read(self, unit: Unit) -> Record | None:
        """The record of a unit; None if there is none, or if it is damaged or of another one."""
        try:
            found = read_bounded(self._path(unit), MOST_JSON_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = error.strerror or error
            raise ToolkitError(f"{self._path(unit)}: cannot be read: {reason}") from error
        line, _, content = found.partition(b"\n")
        if line + b"\n" != self._first_line(unit, content):
            return None
        return unpacked(content)

    def _first_line(self, unit: Unit, content: bytes) -> bytes:
        """Whose record it is: hash of the settings, key head, hash of its files; a checksum."""
        return f"{self.folder.name}/{unit.name} {zlib.crc32(content):08x}\n".encode()

    def units(self) -> Iterator[Unit]:
        """The units with a record, by their names. Damaged records are included."""
        for path in sorted(self.folder.glob(f"l*{ENDING}")):
            found = _NAME.fullmatch(path.name.removesuffix(ENDING))
            if found is not None:
                layer, k_head, files = found.groups()
                yield Unit(int(layer), int(k_head), files)

    def _path(self, unit: Unit) -> Path:
        return self.folder / f"{unit.name}{ENDING}"
