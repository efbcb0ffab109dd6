"""Code that runs in every new interpreter, before the program: gates at chosen points of our code.

A process at a gate says so with a file, and waits for another file. So a test knows where a process
is when it sends a signal, on any machine.
"""

import os
import sys
from textwrap import indent

import pytest

from waiting import PATIENCE, wait_for

_ANY = """\
import os, sys, time, traceback

def gate(name):
    open(f"{PLACE}/{name}.waits", "w").close()
    end = time.monotonic() + PATIENCE
    while not os.path.exists(f"{PLACE}/{name}.open") and time.monotonic() < end:
        time.sleep(0.01)

def planted():
BODY

if any(WORD in word for word in sys.orig_argv):
    try:
        planted()
    except BaseException:  # Python would go on without this file
        traceback.print_exc()
        os._exit(77)
"""


_BEFORE_HEADS = """\
import attention_plasticity.head_analysis as module
original = module.measure_group
def measure(group):
    {}
    return original(group)
module.measure_group = measure
"""


class Planted:
    """Plants code into the new processes of a test."""

    def __init__(self, place):
        self.place = place
        place.mkdir()

    def plant(self, process, code):
        """Run `code` first in interpreters whose command line has a word that contains `process`.

        It may call `gate(name)`.
        """
        head = f"PLACE, PATIENCE, WORD = {str(self.place)!r}, {PATIENCE}, {process!r}\n"
        text = head + _ANY.replace("BODY", indent(code, "    "))
        compile(text, "sitecustomize.py", "exec")  # Python ignores one that has an error
        (self.place / "sitecustomize.py").write_text(text)

    def remove(self):
        """Plant nothing into processes that are started from now on."""
        (self.place / "sitecustomize.py").unlink()

    def before_heads(self, statement):
        """Run a statement in worker processes before heads are measured; it may use `gate`.

        It has the name `group`: a key head and its query heads.
        """
        self.plant("attention_plasticity.run.worker", _BEFORE_HEADS.format(statement))

    def wait_at(self, name):
        """Wait until a process is at a gate."""
        wait_for(f"a process at the gate {name!r}", (self.place / f"{name}.waits").exists)

    def waiting(self, beginning):
        """The gates whose names begin so, and which processes have reached."""
        return [path.stem for path in self.place.glob(f"{beginning}*.waits")]

    def open(self, name):
        """Open a gate."""
        (self.place / f"{name}.open").touch()


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """Code that the interpreters run first which the test starts."""
    made = Planted(tmp_path / "planted")
    monkeypatch.syspath_prepend(made.place)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    return made
