"""Captures to a URL: the dump is made in a work folder of this machine, then sent.

While files are sent, the URL has `.capture/plan.json`; `dump.json` is sent last. So a capture is
complete at the URL if there is `dump.json` and no plan. Then the work folder is emptied, except for
`dump.json`, from which other processes of the capture see that the dump is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from qk_dump.card import is_card
from qk_dump.heads import CARD_FILE, parse_head
from qk_dump.layout import PLAN, UNFINISHED, is_dump_file
from qk_dump.manifest import MANIFEST_NAME, json_text, plan_difference
from qk_sniffer.capture.folder import plan_in
from qk_sniffer.capture.result import SentDump
from qk_sniffer.config import CaptureConfig
from qk_toolkit.cache import folder_of_url
from qk_toolkit.errors import ConfigError, StoreError
from qk_toolkit.files import parsed_json, user_path, write_text
from qk_toolkit.store import Store, StoredFile
from qk_toolkit.sync import Sync
from qk_toolkit.watcher import Watcher

_PLAN_NAME = f"{UNFINISHED}/{PLAN}"
_REPLACES = ".replaces-url"  # in a work folder whose capture replaces the dump at the URL
_BEGUN = ".sending"  # in a work folder from which all files of the dump at the URL were sent
_CARD_THERE = ".card-at-url"
_WRITE_TEST = ".write-test"
_REMEDY = "choose another output.data_root, or add --overwrite to discard it."


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

    @property
    def work_watcher(self) -> Watcher:
        """The watcher of the capture in the work folder; its notes name the URL."""
        return _RenamingWatcher(self._watcher, self._renamed)

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

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the work folder against other processes of the capture."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(
                f"output.work_dir: {self.folder}: cannot be used as a folder: {reason}"
            ) from error
        with FileLock(self.folder / ".sending.lock", thread_local=False):
            yield

    def take_over(self) -> None:
        """Take over what the URL has: the work folder is complete if the URL is.

        The plan of an unfinished copy is put into the work folder, so that the capture refuses
        other settings. Raises a `ConfigError` if the URL holds another dump.
        """
        with self._locked():
            present = self._store.files()
            if self._config.overwrite:
                self._require_permission()
                (self.folder / _REPLACES).touch()
                (self.folder / _BEGUN).unlink(missing_ok=True)
            elif not self._replaces():
                self._compare(present)

    def _replaces(self) -> bool:
        """Whether the capture of the work folder replaces the dump at the URL."""
        return (self.folder / _REPLACES).exists() and plan_in(self.folder) is not None

    def _compare(self, present: dict[str, StoredFile]) -> None:
        (self.folder / _REPLACES).unlink(missing_ok=True)  # the overwrite has not begun
        here = self.folder / MANIFEST_NAME
        if not self._has_heads() and MANIFEST_NAME not in present:
            here.unlink(missing_ok=True)  # the dump was sent, and removed from the URL later
        plan, own = self._plan_at_url(present), plan_in(self.folder)
        if plan is None:
            found = [name for name in present if is_dump_file(name)]
            if found:
                raise ConfigError(f"{self.url}: holds another dump ({found[0]}); {_REMEDY}")
        elif own is not None:
            difference = plan_difference(plan, own, ignored="versions")
            if difference is not None:
                raise ConfigError(
                    f"{self.url}: holds a capture that differs in {difference}; {_REMEDY}"
                )
        if MANIFEST_NAME in present and _PLAN_NAME not in present:
            self._clear()
            self._store.download(MANIFEST_NAME, here)
            return
        self._require_permission()
        if plan is not None and own is None:
            write_text(self.folder / UNFINISHED / PLAN, json_text(plan))

    def _plan_at_url(self, present: dict[str, StoredFile]) -> dict[str, Any] | None:
        """The plan of the dump at the URL; empty if it has none, None if there is no dump."""
        name = _PLAN_NAME if _PLAN_NAME in present else MANIFEST_NAME
        if name not in present:
            return None
        try:
            content = parsed_json(self._store.read(name) or b"")
            return dict(content if name == _PLAN_NAME else content.get("capture") or {})
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self._store.inside(name)}: cannot be read; {_REMEDY}") from error

    def send(self) -> SentDump | None:
        """Send the dump, check the sizes at the URL and empty the work folder.

        None if the dump was sent before.
        """
        with self._locked():
            if not self._has_heads():
                self._require_sent()
                return None
            self._watcher.note(f"the dump is complete; sending it to {self.url}")
            try:
                sent = self._send()
            finally:
                self._watcher.stop()
            self._clear()
            return sent

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Say in an error of a request that nothing is lost, as `Sync` does in its errors."""
        try:
            yield
        except StoreError as error:
            raise StoreError(f"{error}; all files are kept in {self.folder}") from error

    def _send(self) -> SentDump:
        with self._kept():
            self._make_room()
        sizes = {
            path.relative_to(self.folder).as_posix(): path.stat().st_size for path in self._files()
        }
        names = [name for name in sizes if name != MANIFEST_NAME]
        on_bytes = partial(self._watcher.show, "sending", in_bytes=True)
        Sync(self.url, self.folder, lambda: names, self._watcher.note, on_bytes).finish(
            [[MANIFEST_NAME]]
        )
        with self._kept():
            self._store.remove([_PLAN_NAME])
        return SentDump(len(sizes), sum(sizes.values()))

    def _make_room(self) -> None:
        """Write the plan to the URL, and remove an earlier dump from it."""
        present = self._store.files()
        if CARD_FILE in present:
            self._store.download(CARD_FILE, self.folder / _CARD_THERE)
            if not is_card(self.folder / _CARD_THERE):
                (self.folder / CARD_FILE).unlink(missing_ok=True)  # the user's own is kept
        if not (self.folder / _BEGUN).exists():
            self._store.write(_PLAN_NAME, json_text(plan_in(self.folder)).encode())
            old = [name for name in present if is_dump_file(name)]
            self._store.remove(sorted(old, key=MANIFEST_NAME.__ne__))  # dump.json first
            (self.folder / _BEGUN).touch()

    def _clear(self) -> None:
        """Empty the work folder after its dump was sent, except for dump.json and locks."""
        for name in (_REPLACES, _BEGUN):
            (self.folder / name).unlink(missing_ok=True)
        for path in self._files():
            if path.name != MANIFEST_NAME:
                path.unlink(missing_ok=True)
                with suppress(OSError):  # it has other files
                    path.parent.rmdir()

    def _files(self) -> list[Path]:
        """The files of the dump in the work folder."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [p for p in found if not any(q[0] == "." for q in p.relative_to(self.folder).parts)]

    def _has_heads(self) -> bool:
        return any(parse_head(path.name) for path in self.folder.iterdir())

    def _require_permission(self) -> None:
        """Write a small file to the URL and remove it, so that a missing permission fails early."""
        self._store.write(_WRITE_TEST, b"")
        self._store.remove([_WRITE_TEST])

    def _require_sent(self) -> None:
        if self._store.file(MANIFEST_NAME) is None:
            raise ConfigError(
                f"output.work_dir: {self.folder}: holds no dump that could be sent to {self.url}; "
                "give a folder that this command and all other processes and nodes share"
            )


class _RenamingWatcher(Watcher):
    """The same watcher, with other names in the notes."""

    def __init__(self, watcher: Watcher, renamed: Callable[[str], str]) -> None:
        same = ("busy", "start", "advance", "show", "stop")
        vars(self).update({name: getattr(watcher, name) for name in same})
        self._watcher = watcher
        self._renamed = renamed

    def note(self, text: str) -> None:
        self._watcher.note(self._renamed(text))
