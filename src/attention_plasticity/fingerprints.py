"""Telling whether the files a head was computed from are still the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from qk_dump.errors import DumpError
from qk_dump.layout import Dump, HeadId


class InputFiles:
    """The files of a dump as they were when first looked at.

    A file's fingerprint is its size and a hash of its Parquet footer, which lists every column
    chunk with its extent and statistics. It is cheap, and the same wherever the file lies. Whether
    a file was touched is judged more strictly, by its time of modification as well.
    """

    def __init__(self, dump: Dump) -> None:
        self._dump = dump
        self._seen: dict[HeadId, str] = {}

    def look_at(self, layer: int, q_head: int, k_head: int) -> str:
        """State of a query head's files and its key head's, as first seen."""
        heads = (HeadId(layer, q_head, "q"), HeadId(layer, k_head, "k"))
        for head in heads:
            if head not in self._seen:
                self._seen[head] = self._state(head)
        return " ".join(self._seen[head] for head in heads)

    def unchanged(self, layer: int, q_head: int, k_head: int) -> bool:
        """Whether those files are still as first seen."""
        heads = (HeadId(layer, q_head, "q"), HeadId(layer, k_head, "k"))
        return all(self._state(head) == self._seen[head] for head in heads)

    def fingerprint(self, heads: Iterable[HeadId]) -> str:
        """One hash over the files of many heads, to be quoted with the results."""
        lines = (f"{head.folder} {self._state(head, with_time=False)}\n" for head in heads)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def _state(self, head: HeadId, *, with_time: bool = True) -> str:
        try:
            files = self._dump.files(head) if head in self._dump.folders else ()
        except DumpError as error:
            return str(error)
        return "|".join(f"{path.name} {_file_state(path, with_time)}" for path in files)


def _file_state(path: Path, with_time: bool) -> str:
    try:
        status = path.stat()
        with path.open("rb") as file:
            file.seek(-min(status.st_size, 8), os.SEEK_END)
            footer_size = int.from_bytes(file.read(4), "little")
            file.seek(-min(status.st_size, footer_size + 8), os.SEEK_END)
            footer = file.read()
    except OSError as error:
        return f"unreadable ({error.strerror})"
    time = f" {status.st_mtime_ns}" if with_time else ""
    return f"{status.st_size} {hashlib.sha256(footer).hexdigest()[:16]}{time}"
