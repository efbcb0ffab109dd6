"""What the result of a head depends on: settings, texts and input files, as hashes.

The records of a run are in a folder that is named by the hash of its settings, its texts and the
files that all heads use. The name of a record contains the hash of the files of its heads. So a
record can never be used with other settings or other files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

from attention_plasticity import __version__
from attention_plasticity.config import ANALYSIS_FIELDS, RunnerConfig
from attention_plasticity.read.layout import HeadLayout
from attention_plasticity.read.repeated import repeated_digest
from attention_plasticity.read.texts import DumpTexts
from attention_plasticity.tables.run_info import NUMERIC_LIBRARIES
from qk_dump.heads import ATTENDED, MOST_FOOTER_BYTES, HeadId
from qk_dump.layout import FILES_BESIDE_HEADS, Dump
from qk_dump.parquet import footer_length
from qk_dump.remote import DumpPath, RemotePath
from qk_toolkit.errors import DumpError
from qk_toolkit.files import open_regular

SCHEMA = 15
"""Number of the form of a record. It changes with the form, and with the arithmetic of a head."""
_BLOCK = 4096  # bytes in the middle of a file that are hashed
_PART = 1 << 20  # bytes of a footer that are in memory at a time
_WHOLE = 8 << 20  # bytes of a file beside the heads that is hashed as a whole


class _FileState(NamedTuple):
    name: str
    content: str  # size, and a hash of parts of the file


class InputFiles:
    """Fingerprints of the files of a dump.

    The fingerprint of a file is its size and a hash of its Parquet footer and of a block in its
    middle. The footer lists every column chunk with its offset, size and statistics. The
    fingerprint does not depend on the path. At a URL it is the size and the version (ETag) in the
    listing of the store.
    """

    def __init__(self, dump: Dump, shared: dict[str, str] | None = None) -> None:
        self._dump = dump
        self._states: dict[HeadId, list[_FileState]] = {}
        self._shared = shared_files(dump) if shared is None else shared

    @property
    def shared(self) -> dict[str, str]:
        """Fingerprints of the files beside the heads, by name; absent files are left out."""
        return self._shared

    def of_group(self, layer: int, k_head: int, q_heads: Iterable[int]) -> str:
        """A hash of the files of a key head and its query heads, as at the first call."""
        return self._hash(_members(layer, k_head, q_heads))

    def joint(self, heads: Iterable[tuple[int, int, int]]) -> str:
        """One hash of the files of many heads, each with layer, query head and key head."""
        members = {one for layer, q, k in heads for one in _members(layer, k, [q])}
        return self._hash(sorted(members))

    def _hash(self, heads: Iterable[HeadId]) -> str:
        lines = []
        for head in heads:
            if head not in self._states:
                self._states[head] = _states(self._dump, head)
            found = self._states[head]
            lines.append([head.folder, *([state.name, state.content] for state in found)])
        return _digest(lines)


def group_digest(dump: Dump, layer: int, k_head: int, q_heads: Iterable[int]) -> str:
    """The hash of `InputFiles.of_group`, of the files as they are now."""
    return InputFiles(dump, {}).of_group(layer, k_head, q_heads)


def shared_files(dump: Dump) -> dict[str, str]:
    """Fingerprints of the files beside the heads, by name; absent files are left out."""
    states = [_file_state(dump.path / name, most_whole=_WHOLE) for name in FILES_BESIDE_HEADS]
    return {state.name: state.content for state in states if state is not None}


def _members(layer: int, k_head: int, q_heads: Iterable[int]) -> list[HeadId]:
    """A key head and its query heads."""
    return [HeadId(layer, k_head, "k"), *(HeadId(layer, q_head, "q") for q_head in q_heads)]


def run_settings(
    config: RunnerConfig, layout: HeadLayout, dump: Dump, texts: DumpTexts, files: InputFiles
) -> dict[str, Any]:
    """All values that change the result of a head, except its own files."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        **{name: version(name) for name in NUMERIC_LIBRARIES},
        "num_q_heads": layout.num_q_heads,
        "num_k_heads": layout.num_k_heads,
        **{name: getattr(config, name) for name in ANALYSIS_FIELDS},
        "rotary": None if dump.rotary is None else dump.rotary.digest,
        "repeated": repeated_digest(dump),
        "texts": texts.digest,
        "files": files.shared,
    }


def settings_digest(settings: dict[str, Any]) -> str:
    """The name of the folder of records with these settings."""
    return _digest(settings)[:16]


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode("utf-8", "surrogateescape")).hexdigest()


def _states(dump: Dump, head: HeadId) -> list[_FileState]:
    """States of all files from which the rows of a head come.

    They include keys that were drawn by attention, and the head in the dump of repeated tokens.
    """
    sources = {"": dump, "repeated/": dump.repeated if head.kind == "q" else None}
    found = []
    for place, source in sources.items():
        if source is None:
            continue
        try:
            files, drawn = source.files(head), source.files(head._replace(attended=True))
        except DumpError as error:
            found.append(_FileState(place, str(error)))
            continue
        for prefix, paths in ((place, files), (f"{place}{ATTENDED}/", drawn)):
            states = [_file_state(path) for path in paths]
            found += [one._replace(name=f"{prefix}{one.name}") for one in states if one is not None]
    return found


def _file_state(path: DumpPath, *, most_whole: int = 0) -> _FileState | None:
    """The state of a file; None if there is none. Files up to `most_whole` are hashed entirely."""
    try:
        if isinstance(path, RemotePath):
            return _FileState(path.name, f"{path.stored.size} {path.stored.version}")
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= most_whole:
                digest = hashlib.file_digest(file, "sha256")
            else:
                tail = min(size, min(footer_length(file, size), MOST_FOOTER_BYTES) + 8)
                file.seek(size // 2)
                digest = hashlib.sha256(file.read(_BLOCK))
                file.seek(size - tail)
                for part in iter(partial(file.read, _PART), b""):
                    digest.update(part)
    except FileNotFoundError:
        return None
    except OSError as error:
        return _FileState(path.name, f"unreadable ({error.strerror})")
    return _FileState(path.name, f"{size} {digest.hexdigest()[:16]}")
