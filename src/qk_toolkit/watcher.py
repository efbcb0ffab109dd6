"""How a long task reports its progress, without a terminal library."""

from __future__ import annotations


class Watcher:
    """Receives the progress of a long task. This class shows nothing."""

    def note(self, text: str) -> None:
        """A line of text for the user."""

    def busy(self, task: str) -> None:
        """A task without steps that could be counted begins, such as `loading the model`."""

    def start(self, task: str, total: int | None, done: int = 0, *, rate: str = "") -> None:
        """A task begins: its name in the plural, such as `heads`, and its number of steps.

        `done` steps were finished by an earlier process. `rate` names the count of `advance` whose
        speed is shown; by default it is the steps themselves.
        """

    def advance(self, steps: int = 1, **counts: int) -> None:
        """Some steps are finished. `counts` are further numbers to add up, such as `rows`."""

    def show(self, task: str, done: int, total: int, *, in_bytes: bool = False) -> None:
        """The state of a task that was not started before: `done` of `total`."""

    def stop(self) -> None:
        """The task has ended."""
