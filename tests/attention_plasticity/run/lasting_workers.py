"""Worker processes that serve one run after another, as a start takes more than a second.

They are the real processes: only their end is later. A worker is used again only where a new one
would start with the same environment, import path and folder, and only if it is idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from attention_plasticity.run import local_engine

_WITHOUT_EFFECT = (  # on workers; these differ between tests
    "PYTEST_CURRENT_TEST",
    "ATTENTION_PLASTICITY_CACHE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
)


@pytest.fixture(scope="module", autouse=True)
def workers() -> Iterator[None]:
    """Runs of a test file use idle workers of its earlier runs."""
    with lasting_workers():
        yield


@contextmanager
def lasting_workers() -> Iterator[None]:
    """Runs use idle workers of earlier runs until the block ends."""
    idle: list[_LastingWorker] = []

    def worker() -> Any:
        conditions = _conditions()
        for one in idle:
            if one.conditions == conditions:
                idle.remove(one)
                return one
        return _LastingWorker(idle, conditions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_engine, "_Worker", worker)
        try:
            yield
        finally:
            for one in idle:
                one.end()


class _LastingWorker(local_engine._Worker):
    def __init__(self, idle: list[_LastingWorker], conditions: object) -> None:
        super().__init__()
        self.conditions = conditions
        self._others = idle

    def stop(self) -> None:
        """Wait for the next run instead of ending; a worker amid its work ends."""
        if not self.is_idle or self._process.poll() is not None:
            self.end()
            return
        self._log_output()
        self._job = None  # the next run sends its own, also if it is of the same dump
        self._others.append(self)

    def end(self) -> None:
        super().stop()


def _conditions() -> object:
    variables = local_engine._worker_environment()
    for name in _WITHOUT_EFFECT:
        variables.pop(name, None)
    return variables, Path.cwd()
