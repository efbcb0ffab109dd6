"""Files of a commit on the Hub: names, hashes and bytes, all checked.

Answers of the Hub become file names and sizes on this machine. So commit ids and hashes must be
hexadecimal, file names must stay inside their folder, and a download stops at the listed size. The
client's `hf_hub_download` builds file names from headers (`ETag`, `X-Repo-Commit`). Here a file is
named by its hash in the listing, which is the name that the client would use.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import secrets
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from qk_dump.hub.client import network_error, with_retries
from qk_dump.hub.place import HubPlace
from qk_dump.limits import MOST_HEADS_IN_ALL
from qk_toolkit.errors import HubError, in_short
from qk_toolkit.files import cannot_write, open_regular

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DRIVE = re.compile(r"[A-Za-z]:")
_DIGITS = {"git": 40, "sha256": 64}  # of a hash
_MOST_FILES = 4 * MOST_HEADS_IN_ALL  # of a commit
_MAX_NAME_BYTES = 255  # of one part of a path; the limit of file systems
_NOT_USED = "the answer was not used. Check HF_ENDPOINT."


@dataclass(frozen=True)
class RemoteFile:
    """A file of a commit: its size and its hash (sha256 for large files, git for small files)."""

    size: int
    digest: str
    kind: str

    def is_same(self, content: Path | bytes) -> bool:
        """Whether a local file, or bytes, equal the file of the commit."""
        if isinstance(content, bytes):
            return self._equals(io.BytesIO(content), len(content))
        with open_regular(content) as file:
            return self._equals(file, os.fstat(file.fileno()).st_size)

    def _equals(self, file: IO[bytes], size: int) -> bool:
        return size == self.size and content_digest(file, size, self.kind) == self.digest


def is_commit(text: object) -> bool:
    """Whether the value is a commit id."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def commit_id(answer: object, place: HubPlace) -> str:
    """The commit id in an answer of the Hub, checked because it becomes a folder name."""
    if not isinstance(answer, str) or not is_commit(answer):
        raise HubError(
            f"{place}: the Hub gives {in_short(answer)} as a commit, expected 40 hexadecimal "
            f"digits; {_NOT_USED}"
        )
    return answer


def list_files(api: Any, place: HubPlace, commit: str) -> dict[str, RemoteFile]:
    """The files of a commit by path."""
    from huggingface_hub.hf_api import RepoFile

    options = {"repo_type": "dataset", "revision": commit, "recursive": True}

    def listed() -> list[Any]:
        return list(islice(api.list_repo_tree(place.repo, **options), _MOST_FILES + 1))

    entries = with_retries(listed)
    if len(entries) > _MOST_FILES:
        raise HubError(f"{place}: the Hub lists more than {_MOST_FILES:,} files; {_NOT_USED}")
    files = [entry for entry in entries if isinstance(entry, RepoFile)]
    return {require_name(file.path, place): _remote_file(file, place) for file in files}


def find_file(api: Any, place: HubPlace, commit: str, name: str) -> RemoteFile | None:
    """One file of a commit, None when the commit does not have it."""
    from huggingface_hub.hf_api import RepoFile

    options = {"repo_type": "dataset", "revision": commit, "paths": [name]}
    entries = with_retries(lambda: list(api.get_paths_info(place.repo, **options)))
    found = [entry for entry in entries if isinstance(entry, RepoFile) and entry.path == name]
    return _remote_file(found[0], place) if found else None


def _remote_file(entry: Any, place: HubPlace) -> RemoteFile:
    found = RemoteFile(entry.size, entry.blob_id, "git")
    if entry.lfs is not None:
        found = RemoteFile(entry.size, entry.lfs.sha256, "sha256")
    return require_file(found, f"{place}: the Hub lists {in_short(entry.path)}")


def require_file(file: RemoteFile, source: str) -> RemoteFile:
    """Raise an error for an invalid size or hash; `source` begins the message."""
    if type(file.size) is not int or not 0 <= file.size < 2**63:
        raise HubError(f"{source} with a size of {in_short(file.size)}; {_NOT_USED}")
    digits = _DIGITS.get(file.kind) if isinstance(file.kind, str) else None
    if digits is None or not is_commit(file.digest) or len(file.digest) != digits:
        raise HubError(f"{source} with {in_short(file.digest)} as its hash; {_NOT_USED}")
    return file


def require_name(path: object, place: HubPlace) -> str:
    """The path of a file in a commit. Raises an error when it could leave its folder."""
    parts = path.split("/") if isinstance(path, str) else [""]
    if (
        not isinstance(path, str)
        or not path.isprintable()
        or "\\" in path
        or _DRIVE.match(path)
        or any(part in ("", ".", "..") or len(part.encode()) > _MAX_NAME_BYTES for part in parts)
    ):
        raise HubError(f"{place}: the Hub lists a file named {in_short(path)}; {_NOT_USED}")
    return path


def content_digest(file: IO[bytes], size: int, kind: str) -> str:
    """The hash of a file as the Hub lists it; `kind` is "sha256" or "git"."""
    digest = hashlib.sha256()
    if kind == "git":
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def download(
    api: Any, place: HubPlace, commit: str, path: str, file: RemoteFile, target: Path
) -> bool:
    """Fetch a file of a commit to `target`. Returns False, without the file, for wrong bytes.

    The download stops when it gets longer than the listed size.
    """
    import huggingface_hub.utils
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get

    options = {"repo_type": "dataset", "revision": commit, "endpoint": api.endpoint}
    url = hf_hub_url(place.repo, path, **options)
    client: Any = huggingface_hub.utils
    headers = client.build_hf_headers(token=api.token, library_name=api.library_name)
    headers["Accept-Encoding"] = "identity"
    draft = target.with_name(f"{target.name}.{secrets.token_hex(4)}.incomplete")  # client's suffix

    def fetched() -> bool:
        with _BoundedFile(draft, file.size) as body:
            http_get(url, body, headers=headers)
        return file.is_same(draft)

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not with_retries(fetched):
            return False
        draft.replace(target)
    except _TooLongError:
        return False
    except OSError as error:
        if "Consistency check failed" in str(error):  # length differs from Content-Length
            return False
        if network_error(error) is not None:
            raise
        raise cannot_write(target, error) from error
    finally:
        draft.unlink(missing_ok=True)
    return True


class _TooLongError(Exception):
    """The download is longer than the listed size."""


class _BoundedFile(io.BufferedWriter):
    """A new file of at most `most_bytes`."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self._most_bytes = most_bytes

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._most_bytes:
            raise _TooLongError
        return super().write(data)
