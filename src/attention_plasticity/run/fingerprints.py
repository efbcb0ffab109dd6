"""Telling whether the files a head was computed from are still the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from qk_dump.layout import Dump, HeadId
from qk_dump.limits import MOST_FOOTER_BYTES
from qk_dump.parquet import footer_length
from qk_toolkit.errors import DumpError
from qk_toolkit.files import open_regular


class InputFiles:
    """The files of a dump as they were when first looked at.

    A file's fingerprint is its size and a hash of its Parquet footer, which lists every column
    chunk with its extent and statistics. It is cheap, and the same wherever the file lies. Whether
    a file was touched is judged more strictly, by its time of modification as well.
    """

    def __init__(self, dump: Dump) -> None:
        self._dump = dump
        self._seen: dict[HeadId, list[_FileState]] = {}

    def look_at(self, layer: int, q_head: int, k_head: int) -> str:
        """Hash of the state of a query head's files and its key head's, as first seen."""
        states = [self._first_seen(head) for head in _pair(layer, q_head, k_head)]
        return hashlib.sha256(json.dumps(states).encode()).hexdigest()

    def unchanged(self, layer: int, q_head: int, k_head: int) -> bool:
        """Whether those files are still as first seen."""
        return all(
            self._state(head) == self._first_seen(head) for head in _pair(layer, q_head, k_head)
        )

    def fingerprint(self, heads: Iterable[HeadId]) -> str:
        """One hash over the files of many heads as first seen, to be quoted with the results."""
        lines = [
            f"{head.folder} {state.name} {state.content}\n"
            for head in heads
            for state in self._first_seen(head)
        ]
        return hashlib.sha256(os.fsencode("".join(lines))).hexdigest()

    def _first_seen(self, head: HeadId) -> list[_FileState]:
        if head not in self._seen:
            self._seen[head] = self._state(head)
        return self._seen[head]

    def _state(self, head: HeadId) -> list[_FileState]:
        try:
            files = self._dump.files(head) if head in self._dump.folders else ()
        except DumpError as error:
            return [_FileState("", str(error), 0)]
        return [_file_state(path) for path in files]


class _FileState(NamedTuple):
    name: str
    content: str  # size and hash of the footer
    modified: int


def _pair(layer: int, q_head: int, k_head: int) -> tuple[HeadId, HeadId]:
    return HeadId(layer, q_head, "q"), HeadId(layer, k_head, "k")


def _file_state(path: Path) -> _FileState:
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            length = min(footer_length(file, status.st_size), MOST_FOOTER_BYTES) + 8
            file.seek(status.st_size - min(status.st_size, length))
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        return _FileState(path.name, f"unreadable ({error.strerror})", 0)
    return _FileState(path.name, f"{status.st_size} {digest}", status.st_mtime_ns)
