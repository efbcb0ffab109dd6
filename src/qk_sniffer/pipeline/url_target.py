"""Captures to a URL: the dump is made in a work folder of this machine, then sent.

While files are sent, the URL has `.capture/plan.json`; `dump.json` is sent last. So an unfinished
copy is not taken for a dump. After a check of all sizes the work folder is emptied. It keeps
`dump.json`, from which other processes of the capture see that the dump is complete.

With `overwrite`, the work folder has the file `.replaces-url` until the new dump is sent. So an
interrupted capture can continue while the URL still holds the old dump.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock

from qk_dump.card import CARD_FILE, is_card
from qk_dump.dump_files import is_dump_file
from qk_dump.layout import UNFINISHED, parse_head
from qk_dump.manifest import (
    MANIFEST_NAME,
    json_text,
    plan_difference,
    read_manifest,
    read_plan,
)
from qk_sniffer.config import CaptureConfig
from qk_sniffer.pipeline.result import SentDump
from qk_sniffer.pipeline.work_folder import PLAN, SEGMENTS, locked_work_folder
from qk_toolkit.errors import ConfigError, StoreError
from qk_toolkit.files import user_path
from qk_toolkit.mirror import Mirror, mirror_folder
from qk_toolkit.store import call_after
from qk_toolkit.watcher import Watcher

_PLAN_NAME = f"{UNFINISHED}/{PLAN}"
_FETCHED = ".at-url"  # ending of names of small files that were fetched to be compared
_REPLACES = ".replaces-url"
_SENT = ".sent"  # in a work folder whose dump is sent, until the folder is empty
_WRITE_TEST = ".write-test"
_REMEDY = "choose another output.data_root, or add --overwrite to discard it."


class UrlTarget:
    """The URL of a dump, and the work folder in which the capture makes it."""

    def __init__(self, config: CaptureConfig, watcher: Watcher) -> None:
        work_dir = config.output.work_dir
        parent = None if work_dir is None else user_path(work_dir)
        self.folder = mirror_folder(config.data_root, "captures", parent)
        self._config = config
        self._watcher = watcher
        mirror = Mirror(config.data_root, self.folder, last=MANIFEST_NAME, note=watcher.note)
        self._mirror, self.url = mirror, mirror.url

    @property
    def work_config(self) -> CaptureConfig:
        """The config of the capture in the work folder."""
        output = self._config.output.model_copy(update={"data_root": str(self.folder)})
        return self._config.model_copy(update={"output": output})

    @property
    def work_watcher(self) -> Watcher:
        """The watcher of the capture in the work folder; its notes name the URL."""
        return _RenamingWatcher(self._watcher, self._renamed)

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
        lock = FileLock(self.folder / ".sending.lock", thread_local=False)
        lock.acquire()
        try:
            yield
        finally:
            call_after(self._mirror.senders, lock.release)

    def _renamed(self, text: str) -> str:
        """A message with the URL in place of the work folder."""
        return text.replace(str(self.folder), self.url)

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Errors about settings name the URL."""
        try:
            yield
        except ConfigError as error:
            raise ConfigError(self._renamed(str(error))) from error

    def take_over(self) -> None:
        """Take over what the URL has: the work folder is complete if the URL is.

        Raises a `ConfigError` if the URL holds another dump.
        """
        with self._locked():
            self._compare(self._config.overwrite)

    def send(self) -> SentDump | None:
        """Send the dump, check the sizes at the URL and empty the work folder.

        None if the dump was sent before.
        """
        with self._locked():
            return self._send_if_new()

    def _compare(self, overwrite: bool) -> None:
        self._clear_if_sent()
        self._list()
        if overwrite:
            self._require_permission()
            (self.folder / _REPLACES).touch()
        if overwrite or self._replaces():
            return
        (self.folder / _REPLACES).unlink(missing_ok=True)  # the overwrite has not begun
        finished, started = self._finished(), self._started()
        here = self.folder / MANIFEST_NAME
        if here.exists() and not self._has_heads() and finished is None:
            here.unlink()  # the dump was sent, and removed from the URL later
        own = self._own_plan()
        if finished is None and started is None:
            self._refuse_heads()
        for other in (finished, started):
            if own is not None and other is not None:
                self._refuse_difference(plan_difference(other, own, ignored="versions"))
        if finished is not None and not self._has_heads():
            self._fetch(MANIFEST_NAME).replace(here)
            return
        self._require_permission()
        if started is not None and own is None:
            with locked_work_folder(self.folder) as place:
                (place / SEGMENTS).mkdir(exist_ok=True)
                self._fetch(_PLAN_NAME).replace(place / PLAN)

    def _send_if_new(self) -> SentDump | None:
        watcher = self._watcher
        self._clear_if_sent()
        if not self._has_heads():
            self._require_sent()
            return None
        watcher.note(f"the dump is complete; sending it to {self.url}")
        try:
            with self._kept_in_errors():
                self._list()
                sent = self._send(self._own_plan(), partial(watcher.show, "sending", in_bytes=True))
        finally:
            watcher.stop()
        (self.folder / _SENT).touch()
        self._clear_if_sent()
        return sent

    def _clear_if_sent(self) -> None:
        """Empty the work folder after its dump was sent, also if this was interrupted before."""
        if (self.folder / _SENT).exists():
            self._mirror.clear(keep=[MANIFEST_NAME])
            (self.folder / _REPLACES).unlink(missing_ok=True)
            (self.folder / _SENT).unlink()

    def _replaces(self) -> bool:
        """Whether the capture of the work folder replaces the dump at the URL."""
        begun = self._has_heads() or (self.folder / _PLAN_NAME).exists()
        return begun and (self.folder / _REPLACES).exists()

    def _require_permission(self) -> None:
        """Write a small file to the URL and remove it, so that a missing permission fails early."""
        self._mirror.store.write(_WRITE_TEST, b"")
        self._mirror.store.remove([_WRITE_TEST])

    def _require_sent(self) -> None:
        if self._mirror.store.file(MANIFEST_NAME) is None:
            raise ConfigError(
                f"output.work_dir: {self.folder}: holds no dump that could be sent to {self.url}; "
                "give a folder that this command and all other processes and nodes share"
            )

    @contextmanager
    def _kept_in_errors(self) -> Iterator[None]:
        kept = f"all files are kept in {self.folder}"
        try:
            yield
        except StoreError as error:
            text = str(error)
            raise StoreError(text if kept in text else f"{text}; {kept}") from error

    def _send(self, plan: Any, on_bytes: Callable[[int, int], None]) -> SentDump:
        files = {
            path.relative_to(self.folder).as_posix(): path.stat().st_size
            for path in self.folder.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }
        old = [name for name in self._mirror.listed if is_dump_file(name) and name not in files]
        store = self._mirror.store
        store.remove([MANIFEST_NAME])
        store.write(_PLAN_NAME, json_text(plan).encode())
        store.remove(old)
        if CARD_FILE in self._mirror.listed and not is_card(self._fetch(CARD_FILE)):
            (self.folder / CARD_FILE).unlink(missing_ok=True)  # the user's own is kept
        self._list()
        self._mirror.push(on_bytes)
        store.remove([_PLAN_NAME])
        return SentDump(len(files), sum(files.values()))

    def _list(self) -> None:
        self._mirror.compare()

    def _fetch(self, name: str) -> Path:
        """A small file of the URL, beside the files of the work folder."""
        target = self.folder / f".{PurePosixPath(name).name}{_FETCHED}"
        self._mirror.store.download(name, target)
        return target

    def _finished(self) -> Any:
        """The plan of the complete dump at the URL; empty if its dump.json has none."""
        if MANIFEST_NAME not in self._mirror.listed:
            return None
        manifest = read_manifest(self._fetch(MANIFEST_NAME))
        return (manifest.capture if manifest else None) or {}

    def _started(self) -> dict[str, Any] | None:
        """The plan of a dump that was not sent completely to the URL."""
        if _PLAN_NAME not in self._mirror.listed:
            return None
        return read_plan(self._fetch(_PLAN_NAME))

    def _own_plan(self) -> dict[str, Any] | None:
        """The plan of the capture in the work folder."""
        manifest = read_manifest(self.folder / MANIFEST_NAME)
        finished = manifest.capture if manifest else None
        return finished or read_plan(self.folder / UNFINISHED / PLAN)

    def _has_heads(self) -> bool:
        return any(parse_head(path.name) for path in self.folder.iterdir())

    def _refuse_heads(self) -> None:
        found = [name for name in self._mirror.listed if is_dump_file(name)]
        if found:
            raise ConfigError(f"{self.url}: holds another dump ({found[0]}); {_REMEDY}")

    def _refuse_difference(self, difference: str | None) -> None:
        if difference is not None:
            raise ConfigError(
                f"{self.url}: holds a capture that differs in {difference}; {_REMEDY}"
            )


class _RenamingWatcher(Watcher):
    """The same watcher, with other names in the notes."""

    def __init__(self, watcher: Watcher, renamed: Callable[[str], str]) -> None:
        self._watcher = watcher
        self._renamed = renamed

    def note(self, text: str) -> None:
        self._watcher.note(self._renamed(text))

    def busy(self, task: str) -> None:
        self._watcher.busy(task)

    def start(self, task: str, total: int | None, done: int = 0, *, rate: str = "") -> None:
        self._watcher.start(task, total, done, rate=rate)

    def advance(self, steps: int = 1, **counts: int) -> None:
        self._watcher.advance(steps, **counts)

    def show(self, task: str, done: int, total: int, *, in_bytes: bool = False) -> None:
        self._watcher.show(task, done, total, in_bytes=in_bytes)

    def stop(self) -> None:
        self._watcher.stop()
