"""Sending the files of a folder while work goes on in it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ToolkitError
from qk_toolkit.mirror import Mirror
from qk_toolkit.store import StoppedError

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
