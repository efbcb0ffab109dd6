"""Where a complete dump goes: to a branch on the Hub, or to a URL. It is made in a folder first.

A capture to a URL works in a folder of the cache, or in `output.work_dir`. When the dump is
complete, its files are sent, `dump.json` last, and removed here. Then `dump.json` alone stays:
other processes of the capture and the next command see from it that the dump is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock

from qk_dump.hub.publish import Pushed, push_dump, require_target
from qk_dump.layout import UNFINISHED, is_dump_file
from qk_dump.manifest import MANIFEST_NAME
from qk_sniffer.capture.result import SentDump
from qk_sniffer.config import CaptureConfig
from qk_toolkit.cache import folder_of_url
from qk_toolkit.errors import ConfigError, StoreError
from qk_toolkit.files import user_path
from qk_toolkit.store import Store
from qk_toolkit.sync import send_files
from qk_toolkit.watcher import Watcher

_REPLACES = ".replaces-url"  # in a work folder whose capture replaces the dump at the URL
_WRITE_TEST = ".write-test"
_REMEDY = "choose another output.data_root, or add --overwrite to discard it."


def require_publishable(config: CaptureConfig) -> None:
    """Refuse wrong names of the dataset and the branch before the capture begins."""
    if config.output.hf_repo_id is not None:
        require_target(config.output.hf_repo_id, config.hf_branch)


def publish(config: CaptureConfig, folder: Path, watcher: Watcher) -> Pushed | None:
    """Send the dump in `folder` to the Hub; None if this is not wanted."""
    output = config.output
    if output.hf_repo_id is None:
        return None
    watcher.note(f"{folder}: is complete; sending it to {output.hf_repo_id}")
    on_bytes = partial(watcher.show, "sending", in_bytes=True)
    pushed = push_dump(
        folder, output.hf_repo_id, config.hf_branch, private=output.private, on_bytes=on_bytes
    )
    for note in pushed.notes:
        watcher.note(note)
    return pushed


class UrlTarget:
    """The URL of a dump, and the work folder in which the capture makes it."""

    def __init__(self, config: CaptureConfig, watcher: Watcher) -> None:
        work_dir = config.output.work_dir
        parent = None if work_dir is None else user_path(work_dir)
        self.folder = folder_of_url(config.data_root, "captures", parent)
        self._config = config
        self._watcher = watcher
        self._store = Store(config.data_root)
        self.url = self._store.url

    @property
    def work_config(self) -> CaptureConfig:
        """The config of the capture in the work folder."""
        output = self._config.output.model_copy(update={"data_root": str(self.folder)})
        return self._config.model_copy(update={"output": output})

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Errors about settings name the URL."""
        try:
            yield
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(self.folder), self.url)) from error

    def begin(self) -> None:
        """Let the work folder be complete if the URL is.

        Raises a `ConfigError` if the URL holds another dump, and a `StoreError` if it cannot be
        written to.
        """
        with self._locked():
            present = self._store.files()
            here, heads = self.folder / MANIFEST_NAME, self._heads()
            if self._config.overwrite:
                (self.folder / _REPLACES).touch()
            elif MANIFEST_NAME in present and self._has_this(here):
                self._clear()  # it was sent to the end
                return
            elif not heads and not (self.folder / UNFINISHED).exists():
                for file in (here, self.folder / _REPLACES):
                    file.unlink(missing_ok=True)
                if MANIFEST_NAME in present:  # the capture compares its settings with it
                    self._store.download(MANIFEST_NAME, here)
                    return
                self._refuse([name for name in present if is_dump_file(name)])
            elif not (self.folder / _REPLACES).exists():
                self._refuse([MANIFEST_NAME] if MANIFEST_NAME in present else [])
            self._store.write(_WRITE_TEST, b"")  # so that a missing permission fails early
            self._store.remove([_WRITE_TEST])

    def _refuse(self, found: list[str]) -> None:
        if found:
            raise ConfigError(f"{self.url}: holds another dump ({found[0]}); {_REMEDY}")

    def send(self) -> SentDump | None:
        """Send the dump, check the sizes at the URL and empty the work folder.

        None if the dump was sent before.
        """
        with self._locked():
            if not self._heads():
                if self._store.file(MANIFEST_NAME) is None:
                    raise ConfigError(
                        f"output.work_dir: {self.folder}: holds no dump that could be sent to "
                        f"{self.url}; give a folder that this command and all other processes and "
                        "nodes share"
                    )
                return None
            self._watcher.note(f"the dump is complete; sending it to {self.url}")
            try:
                self._make_room()
                sent = self._send()
            finally:
                self._watcher.stop()
            self._clear()
            return sent

    def _make_room(self) -> None:
        """Remove the dump at the URL that this one replaces, its dump.json first."""
        if not (self.folder / _REPLACES).exists():
            return
        try:
            old = [name for name in self._store.files() if is_dump_file(name)]
            self._store.remove(sorted(old, key=MANIFEST_NAME.__ne__))
        except StoreError as error:
            raise StoreError(f"{error}; all files are kept in {self.folder}") from error

    def _send(self) -> SentDump:
        sizes = {
            path.relative_to(self.folder).as_posix(): path.stat().st_size for path in self._files()
        }
        names = [name for name in sizes if name != MANIFEST_NAME]
        on_bytes = partial(self._watcher.show, "sending", in_bytes=True)
        send_files(self.url, self.folder, names, on_bytes)
        send_files(self.url, self.folder, [MANIFEST_NAME], always=True)
        return SentDump(len(sizes), sum(sizes.values()))

    def _has_this(self, manifest: Path) -> bool:
        """Whether the URL has a local dump.json."""
        return manifest.exists() and self._store.read(MANIFEST_NAME) == manifest.read_bytes()

    def _clear(self) -> None:
        """Empty the work folder after its dump was sent, except for dump.json and locks."""
        (self.folder / _REPLACES).unlink(missing_ok=True)
        for path in self._files():
            if path.name != MANIFEST_NAME:
                path.unlink(missing_ok=True)
                with suppress(OSError):  # it has other files
                    path.parent.rmdir()

    def _files(self) -> list[Path]:
        """The files of the dump in the work folder."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [p for p in found if not any(q[0] == "." for q in p.relative_to(self.folder).parts)]

    def _heads(self) -> bool:
        """Whether the work folder has heads of a dump."""
        return any(
            path.suffix == ".parquet" and path.parent != self.folder for path in self._files()
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the work folder against other processes of the capture."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"output.work_dir: {self.folder}: cannot be used as a folder: "
                f"{error.strerror or error}"
            ) from error
        with FileLock(self.folder / ".sending.lock", thread_local=False):
            yield
