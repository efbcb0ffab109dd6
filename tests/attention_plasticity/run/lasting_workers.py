"""Worker processes that serve one run after another, as a start takes more than a second.

They are the real processes: only their end is later. A worker is used again only where a new one
would start with the same environment and import path, and only if it is idle. It goes to the folder
of the run.
"""

import atexit
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

import processes
from attention_plasticity.run import engines
from attention_plasticity.run.worker import _opened

_MOST_IDLE = 4  # of other conditions, such as another import path
_WITHOUT_EFFECT = (  # on workers; these differ between tests
    "PYTEST_CURRENT_TEST",
    "ATTENTION_PLASTICITY_CACHE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
)


@pytest.fixture(scope="module", autouse=True)
def workers():
    """Runs of a test file use idle workers of earlier runs, also of earlier files."""
    with lasting_workers():
        yield


@contextmanager
def lasting_workers():
    """Runs use idle workers of earlier runs until the block ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "_Process", _worker)
        yield


def _worker():
    conditions = _conditions()
    for one in _idle:
        if one.conditions == conditions and one.is_alive:
            _idle.remove(one)
            one.call(os.chdir, (Path.cwd(),))
            one.call(_opened.cache_clear, ())  # its paths may be relative
            return one
    while len(_idle) >= _MOST_IDLE:
        _idle.pop(0).end()
    return _LastingWorker(conditions)


class _LastingWorker(engines._Process):
    def __init__(self, conditions):
        super().__init__()
        processes.kept.add(self._process.pid)
        self.conditions = conditions
        self._calls = False

    @property
    def is_alive(self):
        return self._process.poll() is None

    def call(self, function, arguments):
        self._calls = True
        result = super().call(function, arguments)
        self._calls = False
        return result

    def kill(self):
        """A worker amid its work ends; an idle one waits for the next run."""
        if self._calls:
            super().kill()

    def close(self):
        if self._calls or not self.is_alive:
            super().kill()
            super().close()
        elif self not in _idle:
            _idle.append(self)

    def end(self):
        super().kill()
        super().close()
        processes.kept.discard(self._process.pid)


_idle = []


@atexit.register
def _end_all():
    for one in _idle:
        one.end()


def _conditions():
    variables = engines._environment()
    for name in _WITHOUT_EFFECT:
        variables.pop(name, None)
    return variables
