"""Files for a URL: sent while work goes on in their folder, or when all of them are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import user_path
from qk_toolkit.mirror import Mirror
from qk_toolkit.store import StoppedError, Store
from qk_toolkit.urls import is_remote

_SECONDS = 5.0  # between two uploads
_SECONDS_TO_STOP = 1.0  # seconds that an interrupted run waits for requests in progress


class Uploads:
    """Sends new files of a mirror every few seconds, in a thread of its own."""

    def __init__(self, mirror: Mirror, note: Callable[[str], None]) -> None:
        self._mirror = mirror
        self._note = note
        self._stopped = Event()
        self._thread = Thread(target=self._work, name="uploads", daemon=True)

    def begin(self) -> None:
        """Send what is there, so that a wrong URL fails early, and start the thread."""
        self._mirror.push()
        self._thread.start()

    def finish(self) -> None:
        """Send the rest. Raises a `StoreError` that names the local folder."""
        self._stop(None)
        self._mirror.push()

    def stop(self) -> None:
        """End the thread. Files that were not sent stay in the local folder.

        A request that the server does not answer is not waited for.
        """
        self._stop(_SECONDS_TO_STOP)

    @property
    def threads(self) -> list[Thread]:
        """Threads that still send files, such as those of a request without an answer."""
        return [one for one in (self._thread, *self._mirror.senders) if one.is_alive()]

    def _stop(self, most_seconds: float | None) -> None:
        self._stopped.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join(most_seconds)

    def _work(self) -> None:
        failed = False
        while not self._stopped.wait(_SECONDS):
            try:
                self._mirror.push(stopped=self._stopped)
                failed = False
            except StoppedError:
                return
            except ToolkitError as error:
                if not failed:
                    show_traceback(error)
                    self._note(f"sending failed and is tried again: {error}")
                failed = True


@dataclass(frozen=True)
class OutputFolder:
    """The local folder to write to. The files of a URL are sent from there."""

    folder: Path
    url: str | None = None

    def shown(self, path: Path) -> str:
        """The place of a file, as the user sees it."""
        if self.url is None:
            return str(path)
        return f"{self.url}/{path.relative_to(self.folder).as_posix()}"


@contextmanager
def output_folder(place: str) -> Iterator[OutputFolder]:
    """Yield a folder for the files of `place`. At the end, the files of a URL are sent."""
    if not is_remote(place):
        yield OutputFolder(user_path(place))
        return
    refuse_hub(place)
    store = Store(place)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        yield OutputFolder(folder, store.url)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        names = {path.relative_to(folder).as_posix(): path for path in files}
        store.each(lambda name: store.upload(names[name], name), names)


@contextmanager
def output_file(place: str) -> Iterator[tuple[Path, OutputFolder]]:
    """Yield a path for one file and files beside it, and their folder."""
    if not is_remote(place):
        path = user_path(place)
        yield path, OutputFolder(path.parent)
        return
    parent, _, name = place.rpartition("/")
    with output_folder(parent) as output:
        yield output.folder / name, output


def refuse_hub(url: str) -> None:
    """Raise a `ConfigError` for a URL of the Hub, where every file would be a commit."""
    if url.startswith("hf://"):
        raise ConfigError(
            f"{url}: files cannot be written to the Hub in this way; use a folder, or a URL such "
            "as s3://bucket/folder"
        )
