"""Fixtures shared by several test files."""

import gc
import os
import signal
import subprocess

import pytest
from hypothesis import settings

from processes import adopt_orphans, end_left, running

# Read when numpy and torch are imported. Threads of several test processes would wait for each
# other by spinning, and workers have one thread too.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["s3_server", "planted"]  # fixtures s3, s3_of_file, s3_endpoint, planted

# timings are no assertions; what fails once fails again
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children are to be interrupted


FIRST = (  # takes longest, so that at the end no process waits for the other
    "tests/browser/",
    "tests/end_to_end/test_capture_interruptions.py",
    "tests/qk_study/test_command.py",
    "tests/attention_plasticity/figures/test_registry.py",
)


def pytest_collection_modifyitems(items):
    """What takes long comes first."""
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A process runs whole files, and one runs all of the browser: fixtures are made once."""
    from xdist.scheduler import LoadFileScheduling

    class WholeFiles(LoadFileScheduling):
        def _split_scope(self, nodeid):
            browser = "tests/browser/"
            return browser if nodeid.startswith(browser) else super()._split_scope(nodeid)

    return WholeFiles(config, log)


def pytest_collection_finish():
    """The garbage collector leaves out the many objects of imported libraries from now on."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _no_process_outlives_the_tests():
    """Fixtures of all scopes end their processes, also those of a test that failed."""
    adopt_orphans()
    yield
    assert end_left(()) == []


@pytest.fixture(autouse=True)
def _no_process_outlives_its_test():
    """A process that a test left is ended, and the test fails."""
    before = {*running()}
    yield
    assert end_left(before) == []


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Converted GGUF files do not go to the developer's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTENTION_PLASTICITY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def file(tmp_path):
    """Where a head's file would lie."""
    return tmp_path / "data.parquet"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 128 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system to fill")
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("this machine does not let us mount a small file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
