"""The files of a dump as they are published, each checked before the first byte is sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qk_dump.card import CARD_FILE, card, is_card
from qk_dump.examples import EXAMPLES_FILE
from qk_dump.hub.client import is_transient
from qk_dump.hub.files import RemoteFile, is_commit
from qk_dump.layout import Dump
from qk_dump.manifest import MANIFEST_NAME, DumpManifest
from qk_dump.parquet import opened_parquet
from qk_dump.reader import check_file
from qk_toolkit.errors import ConfigError, DumpError
from qk_toolkit.files import require_regular, resolved

_UNFINISHED = ".capture/plan.json"


def dump_files(dump: Dump) -> dict[str, LocalFile]:
    """The dump's files by their path on the branch: heads lie in its root.

    Refused are a dump of which a part is missing, a file that nobody could read, and a link that
    would publish a file from elsewhere.
    """
    if (dump.path / _UNFINISHED).exists():
        raise ConfigError(
            f"{dump.path}: its capture is not finished; run the same capture again, then push"
        )
    files: dict[str, LocalFile] = {}
    for head, folder in dump.folders.items():
        shards = dump.files(head)
        if not shards:
            raise DumpError(
                f"{folder}: holds no Parquet file; capture the head again, or remove its folder"
            )
        for path in shards:
            check_file(path)
            files[f"{head.folder}/{path.name}"] = LocalFile(_own_file(path, dump))
    for name in (MANIFEST_NAME, EXAMPLES_FILE, CARD_FILE):
        if os.path.lexists(dump.path / name):
            files[name] = LocalFile(_own_file(dump.path / name, dump))
    if EXAMPLES_FILE in files:
        with opened_parquet(dump.path / EXAMPLES_FILE):
            pass
    if CARD_FILE not in files or not is_card(dump.path / CARD_FILE):
        manifest = dump.manifest or DumpManifest()
        text = card(manifest, list(dump.folders), EXAMPLES_FILE in files)
        files[CARD_FILE] = LocalFile(text.encode("utf-8"))
    return files


def _own_file(path: Path, dump: Dump) -> Path:
    """The file itself, its links followed; it must be a regular file of the dump's folder."""
    real, home = resolved(path), resolved(dump.path)
    # in the Hub client's cache a dump holds links to its bytes
    commits = [folder for folder in (home, home.parent) if is_commit(folder.name)]
    blobs = [folder.parents[1] / "blobs" for folder in commits if folder.parent.name == "snapshots"]
    if not any(real.is_relative_to(folder) for folder in (home, *blobs)):
        raise ConfigError(
            f"{path}: is a link that leaves the dump, to {real}; nothing was sent. If it belongs "
            "to the dump, put the file itself there, then push"
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
        """The file as the client takes it for a commit."""
        from huggingface_hub import CommitOperationAdd

        try:
            return CommitOperationAdd(path, self.content)
        except ValueError as error:  # what the client says of a file that is gone
            raise DumpError(
                f"{self.content!s}: cannot be read (it is gone); the branch is as it was"
            ) from error

    def same_as(self, there: RemoteFile | None) -> bool:
        """Whether a file of the branch is this one."""
        return there is not None and there.size == self.size and there.is_same(self.content)


@contextmanager
def local_errors() -> Iterator[None]:
    """A file of the dump that cannot be read is no fault of the Hub."""
    try:
        yield
    except OSError as error:
        if error.filename is None or is_transient(error):
            raise
        raise DumpError(
            f"{error.filename}: cannot be read ({error.strerror}); the branch is as it was"
        ) from error
