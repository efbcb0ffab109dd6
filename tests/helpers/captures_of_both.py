"""Captures of tiny models with both engines, each made once, and how far their dumps differ."""

import json
import os
import shutil
import subprocess
from functools import cache

import numpy as np
import pyarrow as pa

from helpers.vllm_models import save_model
from sniffing import attended_tables, sniff, start_sniffing, tables_of, words
from tiny_texts import save_texts

LENGTHS = (60, 200, 37, 3, 5, 90)
WIDER_IN_VLLM = ("cohere2",)  # vLLM adds a token to its window
VECTOR, OTHER = 2e-5, 1e-4  # largest differences
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB of every rank
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise two ranks need two NUMA nodes
}


os.environ.update(_ENVIRONMENT)


class Captures:
    """Models, texts and dumps in a folder of the test."""

    def __init__(self, folder):
        self.folder = folder
        self.texts = save_texts(folder / "texts", LENGTHS)
        self.model = cache(self._model)
        self.hf = cache(self._hf)

    def _model(self, kind, key_heads=2):
        place = self.folder / f"{kind}-{key_heads}"
        return save_model(place, kind, num_key_value_heads=key_heads)

    def _hf(self, kind, key_heads=2):
        dump = self.folder / f"{kind}-{key_heads}-hf"
        model = self.model(kind, key_heads)
        if kind in WIDER_IN_VLLM:  # the same weights with the window that vLLM computes
            wider = self.folder / "wider" / model.name
            shutil.copytree(model, wider)
            config = json.loads((wider / "config.json").read_text())
            config["sliding_window"] += 1
            (wider / "config.json").write_text(json.dumps(config))
            model = wider
        assert sniff(model, self.texts, dump) == 0
        return dump

    def vllm(self, kind, name, key_heads=2, **settings):
        """The dump of a capture in this process, which must succeed; made once."""
        dump = self.folder / f"{kind}-{key_heads}-{name}"
        if not dump.exists():
            model = self.model(kind, key_heads)
            assert sniff(model, self.texts, dump, engine="vllm", **settings) == 0
        return dump


def run_vllm(model, texts, dump, **settings):
    """The exit code and the output of a capture with vLLM in a process of its own."""
    flags = words(model, texts, dump, engine="vllm", **settings)
    process = start_sniffing(*flags, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        told, _ = process.communicate()
    finally:
        process.kill()
    return process.returncode, told


def assert_same_dump(one, other):
    """Rows are equal, and numbers to the tolerance of another order of sums."""
    for tables in (tables_of, attended_tables):
        here, there = tables(one), tables(other)
        assert here.keys() == there.keys()
        assert sum(table.num_rows for table in here.values())
        for name, table in here.items():
            _assert_same_rows(name, table, there[name])
    here, there = (json.loads((dump / "dump.json").read_text()) for dump in (one, other))
    differ = {name for name in here.keys() | there.keys() if here.get(name) != there.get(name)}
    assert differ <= {"capture", "layers", "model", "created"}, differ
    for own, their in zip(here["layers"], there["layers"], strict=True):
        assert own.keys() == their.keys()
        for name in own.keys() - {"rotary", "scale"}:
            assert own[name] == their[name], name
        assert np.isclose(own["scale"], their["scale"], rtol=1e-6)
        _assert_same_rotary(own["rotary"], their["rotary"])


def _assert_same_rows(head, here, there):
    assert here.schema.equals(there.schema)
    assert here.num_rows == there.num_rows, head
    for column in here.column_names:
        own, their = here[column], there[column]
        if pa.types.is_integer(own.type) or pa.types.is_string(own.type):
            assert own.equals(their), (head, column)
            continue
        mine, theirs = _floats(own), _floats(their)
        tolerance = VECTOR if column == "vector" else OTHER
        np.testing.assert_allclose(mine, theirs, atol=tolerance, rtol=0, err_msg=f"{head} {column}")


def _floats(column):
    return np.array(column.to_pylist(), np.float64)


def _assert_same_rotary(own, their):
    assert (own is None) == (their is None)
    if own is None or their is None:
        return
    assert own.keys() == their.keys()
    for name, value in own.items():
        if name == "frequencies":
            np.testing.assert_allclose(value, their[name], rtol=1e-5)
        else:
            assert value == their[name], name
