"""Runs in the test process: an engine without worker processes, which counts what it computes."""

import json
from concurrent.futures import Future

from attention_plasticity.config import make_config
from attention_plasticity.run.engines import Engine
from attention_plasticity.run.runner import run_analysis
from attention_plasticity.run.worker import analyze_key_head
from qk_toolkit.watcher import Watcher


class Here(Engine):
    """Calls functions at once in this process. `heads` is what it computed."""

    def __init__(self, before=lambda layer, k_head: None):
        self.heads = []
        self._before = before  # is called with the layer and the key head of every task

    def submit(self, fn, /, *args, **kwargs):
        """The result of a call."""
        if fn is analyze_key_head:
            _, layer, k_head, q_heads, _ = args
            self._before(layer, k_head)
            self.heads += [(layer, q_head) for q_head in q_heads]
        future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Notes(Watcher):
    """Keeps the notes of a run."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def settings(dump, out, **fields):
    """Settings of a run with one worker, unless another number is given."""
    places = {"dataset_local_root": str(dump), "output_dir": str(out)}
    return make_config({"max_workers": 1, **places, **fields})


def analyse(dump, out, *, engine=None, watcher=None, **fields):
    """A run in this process."""
    return run_analysis(settings(dump, out, **fields), watcher, engine=engine or Here())


def computed(dump, out, **fields):
    """The heads that a run computes, as layer and query head."""
    engine = Here()
    analyse(dump, out, engine=engine, **fields)
    return sorted(engine.heads)


def tables(folder):
    """The content of all tables."""
    return {path.name: path.read_bytes() for path in folder.glob("*.csv")}


def run_info(folder):
    """run.json."""
    return json.loads((folder / "run.json").read_text())


def compared_info(folder):
    """run.json without what differs between two equal runs."""
    info = run_info(folder)
    del info["finished"], info["seconds"]
    return info


def records(folder):
    """The records of finished key heads with any settings, sorted by name."""
    return sorted((folder / ".heads").glob("*/l*.record"), key=lambda path: path.name)


def state(folder):
    """Files and their changes: an equal state means that nothing was written."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}
