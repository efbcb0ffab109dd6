"""A whole run from the library's side: what a watcher is told, and what run.json says."""

import sys

import pandas as pd
import pytest

import attention_plasticity as ap
from attention_plasticity.metrics import KEY_HEADS
from attention_plasticity.run.runner import run_analysis
from dumps import add_rotary, make_dump
from qk_dump.manifest import DumpManifest, write_manifest
from qk_toolkit.errors import ConfigError
from runs_here import Here, Notes, analyse, run_info, settings


class Log(Notes):
    """Remembers what it was told."""

    def __init__(self):
        super().__init__()
        self.events = []

    def start(self, task, total, done=0, *, rate=""):
        self.events.append((task, total, done))

    def advance(self, steps=1, **counts):
        self.events += [counts.get("failed", 0)] * steps

    def stop(self):
        self.events.append("stop")


@pytest.fixture
def dump(tmp_path):
    return make_dump(tmp_path / "dump", layers=2, q_heads=2, k_heads=1, n=60, d=4)


def test_a_watcher_sees_every_head_once(dump, tmp_path):
    (dump / "l01h01q" / "data.parquet").write_text("spoilt")
    first, second, out = Log(), Log(), tmp_path / "out"
    assert analyse(dump, out, watcher=first).failures
    assert first.events[0] == ("heads", 4, 0)
    assert sorted(first.events[1:-1]) == [0, 0, 0, 1]
    assert first.events[-1] == "stop"
    analyse(dump, out, watcher=second)
    assert second.events == [("heads", 4, 2), 0, 1, "stop"]
    assert "2 of 4 heads were finished earlier and are kept" in second.notes
    assert any("counted from the folders" in note for note in first.notes)  # a guessed layout


def test_without_the_package_ray_nothing_is_written(dump, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # its import fails
    out = tmp_path / "out"
    config = settings(dump, out, engine="ray")
    with pytest.raises(ConfigError, match="Ray: is not installed"):
        run_analysis(config)
    assert not out.exists()


def test_run_json_tells_how_the_tables_were_made(dump, tmp_path):
    write_manifest(dump, DumpManifest(model="m", num_layers=3, num_q_heads=2, num_k_heads=1))
    outcome = analyse(dump, tmp_path / "out", seed=5, layers=[1, 2], heads="0")
    info = run_info(tmp_path / "out")
    assert outcome.info == info
    assert info["config"]["seed"] == info["seed"] == 5
    assert not {"layers", "heads", "output_dir", "max_workers", "engine"} & set(info["config"])
    assert info["heads"] == {"analysed": 1, "failed": 0, "not_analysed": 3, "not_captured": 2}
    assert info["not_captured"] == [[2, 0], [2, 1]]
    assert info["not_analysed"] == [[0, 0], [0, 1], [1, 1]]
    assert info["input"]["dump"]["model"] == "m"
    assert len(info["input"]["fingerprint"]) == 64
    assert info["head_layout"]["source"] == "from dump.json"
    assert info["tables"]["head_metrics"] == "head_metrics.csv"
    assert set(info["versions"]) == {"python", "numpy", "scipy", "pyarrow"}
    assert info["seconds"] > 0


def test_the_table_of_key_heads_and_its_means(tmp_path):
    made = make_dump(tmp_path / "dump", layers=2, q_heads=6, k_heads=2, n=90, d=4)
    analyse(add_rotary(made, 2, 4), tmp_path / "out")
    run = ap.open_run(tmp_path / "out")
    rows = run.table("key_heads")
    assert tuple(rows.columns) == KEY_HEADS.names
    assert list(zip(rows["layer"], rows["k_head"], strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (rows["n_q_heads"] == 3).all()
    means = run.info["key_head_means"]
    assert means["static_error"]["value"] == pytest.approx(rows["static_error"].mean())
    assert means["static_error"]["heads"] == 4
    assert set(means) <= set(KEY_HEADS.averaged)
    found = [one for one in run.info["missing"] if one["table"] == "key_heads"]
    columns = {column for one in found for column in one["columns"]}
    assert {"received_gini_se", "far_mass"} <= columns
    assert all(one["where"] == {"0": "0-1", "1": "0-1"} for one in found)
    assert {name for name in KEY_HEADS.averaged if rows[name].isna().any()} <= columns


def test_a_worker_opens_the_dump_for_every_run(tmp_path):
    """The engine of a long session serves several runs, between which the dump may change."""
    engine = Here()
    for heads in (1, 2):
        dump = make_dump(tmp_path / "dump", layers=1, q_heads=heads, k_heads=1, n=60, d=4)
        outcome = analyse(dump, tmp_path / "out", engine=engine)
        assert outcome.info["heads"]["analysed"] == heads
    assert len(pd.read_csv(tmp_path / "out" / "head_metrics.csv")) == 2
