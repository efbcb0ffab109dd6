"""The files of a dump that a push publishes. All are checked before the first byte is sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qk_dump.card import CARD_FILE, card, is_card
from qk_dump.dump_files import FILES_BESIDE_HEADS
from qk_dump.examples import EXAMPLES_FILE
from qk_dump.head_counts import check_file
from qk_dump.hub.client import is_transient
from qk_dump.hub.files import RemoteFile, is_commit
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_dump.parquet import opened_parquet
from qk_dump.remote import local
from qk_dump.tokens import TOKENS_FILE
from qk_toolkit.errors import ConfigError, DumpError
from qk_toolkit.files import require_regular, resolved

_UNFINISHED = ".capture/plan.json"


def dump_files(dump: Dump) -> dict[str, LocalFile]:
    """The files of the dump by their path on the branch; the heads are in its root.

    Raises an error for an incomplete dump, an unreadable file, and a link to a file outside the
    dump.
    """
    home = local(dump.path)
    if (home / _UNFINISHED).exists():
        raise ConfigError(
            f"{dump.path}: its capture is not finished; run the same capture again, then push"
        )
    files: dict[str, LocalFile] = {}
    for head, folder in dump.all_folders.items():
        shards = dump.files(head)
        if not shards:
            raise DumpError(
                f"{folder}: holds no Parquet file; capture the head again, or remove its folder"
            )
        for path in shards:
            check_file(path)
            files[f"{head.folder}/{path.name}"] = LocalFile(_own_file(local(path), home))
    for name in (*FILES_BESIDE_HEADS, CARD_FILE):
        if os.path.lexists(home / name):
            files[name] = LocalFile(_own_file(home / name, home))
    for name in (EXAMPLES_FILE, TOKENS_FILE):
        if name in files:
            with opened_parquet(home / name):
                pass
    if CARD_FILE not in files or not is_card(home / CARD_FILE):
        manifest = dump.manifest or DumpManifest()
        has_examples, has_tokens = EXAMPLES_FILE in files, TOKENS_FILE in files
        text = card(manifest, list(dump.all_folders), has_examples, tokens=has_tokens)
        files[CARD_FILE] = LocalFile(text.encode("utf-8"))
    return files


def _own_file(path: Path, dump: Path) -> Path:
    """The file with its links followed; it must be a regular file inside the dump."""
    real, home = resolved(path), resolved(dump)
    # in the cache of the Hub client, files of a dump are links to `blobs/`
    commits = [folder for folder in (home, home.parent) if is_commit(folder.name)]
    blobs = [folder.parents[1] / "blobs" for folder in commits if folder.parent.name == "snapshots"]
    if not any(real.is_relative_to(folder) for folder in (home, *blobs)):
        raise ConfigError(
            f"{path}: is a link to {real}, outside the dump; nothing was sent. If the file belongs "
            "to the dump, replace the link with the file, then push"
        )
    try:
        require_regular(real)
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}; nothing was sent") from error
    return real


class LocalFile:
    """A file to publish, on disk or in memory."""

    def __init__(self, content: Path | bytes) -> None:
        self.content = content
        with local_errors():
            self.size = len(content) if isinstance(content, bytes) else content.stat().st_size

    def as_addition(self, path: str) -> Any:
        """The file as an operation of the client's commits."""
        from huggingface_hub import CommitOperationAdd

        try:
            return CommitOperationAdd(path, self.content)
        except ValueError as error:  # the client's error for a missing file
            raise DumpError(
                f"{self.content!s}: cannot be read (it was deleted); the branch is unchanged"
            ) from error

    def same_as(self, remote: RemoteFile | None) -> bool:
        """Whether a file of the branch has the same content."""
        return remote is not None and remote.size == self.size and remote.is_same(self.content)


@contextmanager
def local_errors() -> Iterator[None]:
    """Convert an error of a local file to a `DumpError`; errors of the network pass."""
    try:
        yield
    except OSError as error:
        if error.filename is None or is_transient(error):
            raise
        raise DumpError(
            f"{error.filename}: cannot be read ({error.strerror}); the branch is unchanged"
        ) from error
