"""A whole run from the library's side."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from attention_plasticity.config import make_config
from attention_plasticity.run.preparation import prepare
from attention_plasticity.run.runner import run_analyses, run_analysis
from dumps import make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.examples import Example, write_examples
from qk_dump.manifest import DumpManifest, write_manifest
from qk_toolkit.errors import ConfigError
from qk_toolkit.terminal import TerminalWatcher
from qk_toolkit.watcher import Watcher


class Log(Watcher):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.events: list[object] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def start(self, task: str, total: int | None, done: int = 0, *, rate: str = "") -> None:
        self.events.append((task, total, done))

    def advance(self, steps: int = 1, **counts: int) -> None:
        self.events += [counts["failed"]] * steps

    def stop(self) -> None:
        self.events.append("stop")


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return make_dump(tmp_path / "dump", layers=2, q_heads=2, k_heads=1, n=60)


def test_a_watcher_sees_every_head_once(dump: Path, tmp_path: Path) -> None:
    (dump / "l01h01q" / "data.parquet").write_text("spoilt")
    config = make_config(
        dataset_local_root=str(dump), output_dir=str(tmp_path / "out"), max_workers=2
    )
    first, second = Log(), Log()
    outcome = run_analysis(config, first)
    assert outcome.failures
    assert first.events[0] == ("heads", 4, 0)
    assert sorted(first.events[1:-1]) == [0, 0, 0, 1]  # type: ignore[type-var]
    assert first.events[-1] == "stop"
    run_analysis(config, second)
    assert second.events == [("heads", 4, 3), 1, "stop"]
    assert "3 of 4 heads were finished earlier and are kept" in second.notes
    with redirect_stderr(io.StringIO()) as written:
        again = config.model_copy(update={"overwrite": True})
        run_analysis(again, TerminalWatcher(seconds=0.001))
    assert re.search(r"^heads: \d of 4 done", written.getvalue(), re.M)


@pytest.mark.parametrize("several", [False, True])
def test_without_the_package_ray_nothing_is_written(
    several: bool, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # its import fails
    out = tmp_path / "out"
    config = make_config(dataset_local_root=str(dump), output_dir=str(out), engine="ray")
    with pytest.raises(ConfigError, match="engine: ray is not installed"):
        _ = list(run_analyses([config])) if several else run_analysis(config)
    assert not out.exists()


def test_run_json_tells_how_the_tables_were_made(dump: Path, tmp_path: Path) -> None:
    manifest = DumpManifest(model="m", num_layers=3, num_q_heads=2, num_k_heads=1)
    write_manifest(dump, manifest)
    config = make_config(dataset_local_root=str(dump), output_dir=str(tmp_path / "out"), seed=5)
    outcome = run_analysis(config)
    info = json.loads(outcome.paths.run.read_text())
    assert info["config"]["seed"] == info["seed"] == 5
    assert info["heads"] == {"analysed": 4, "not_captured": 2, "failed": 0}
    assert info["not_captured"] == [[2, 0], [2, 1]]
    assert info["input"]["dump"]["model"] == "m"
    assert len(info["input"]["fingerprint"]) == 64
    assert info["head_layout"]["source"] == "from dump.json"
    assert info["tables"]["head_metrics"] == "head_metrics.csv"
    assert set(info["versions"]) == {"python", "numpy", "scipy", "pyarrow"}
    assert info["seconds"] > 0


def test_a_guessed_layout_is_said_aloud(dump: Path, tmp_path: Path) -> None:
    log = Log()
    run_analysis(make_config(dataset_local_root=str(dump), output_dir=str(tmp_path / "o")), log)
    assert any("counted from the folders" in note for note in log.notes)


def test_the_selection_decides_which_heads_are_run(dump: Path, tmp_path: Path) -> None:
    config = make_config(
        dataset_local_root=str(dump), output_dir=str(tmp_path / "o"), layers=[1], heads="0"
    )
    outcome = run_analysis(config)
    assert [(row["layer"], row["q_head"]) for row in outcome.metrics] == [(1, 0)]


def test_preparing_writes_nothing(dump: Path, tmp_path: Path) -> None:
    _, plan, paths = prepare(
        make_config(dataset_local_root=str(dump), output_dir=str(tmp_path / "out"))
    )
    assert len(plan.heads) == 4
    assert not paths.folder.exists()


def test_a_bar_does_not_outlive_a_dump_that_cannot_be_fetched() -> None:
    log = Log()
    with pytest.raises(ConfigError, match="expected owner/name@branch"):
        run_analysis(make_config(dataset_local_root="hf://models/a/b"), log)
    assert log.events == ["stop"]


def test_more_layers_keep_the_finished_heads(dump: Path, tmp_path: Path) -> None:
    def run(folder: str, **choice: str) -> list[str]:
        watcher = Log()
        config = make_config(
            dataset_local_root=str(dump), output_dir=str(tmp_path / folder), **choice
        )
        run_analysis(config, watcher)
        return watcher.notes

    run("whole")
    run("out", layers="0", heads="0")
    records = tmp_path / "out" / ".heads"
    first = {path.name: path.stat().st_mtime_ns for path in records.glob("l*.json")}
    assert sorted(first) == ["l00h00.json"]
    kept = "{} of {} heads were finished earlier and are kept"
    assert kept.format(1, 2) in run("out", layers="0,1", heads="0")
    with pytest.raises(ConfigError, match=r"differs in layers \(0-1 then, 1 now\)"):
        run("out", layers="1", heads="0")
    with pytest.raises(ConfigError, match=r"heads \(0 then, 1 now\)"):
        run("out", heads="1")
    assert kept.format(2, 4) in run("out")
    now = {path.name: path.stat().st_mtime_ns for path in records.glob("l*.json")}
    assert len(now) == 4
    assert first.items() <= now.items()  # not computed again
    for path in (tmp_path / "whole").glob("*.csv"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_more_layers_with_other_texts_are_refused(tmp_path: Path) -> None:
    """Of an examples.parquet that does not name the texts of the new layers."""
    dump = make_dump(tmp_path / "dump", layers=1, n=60)
    more = make_dump(tmp_path / "more", layers=2, n=60, examples=9)
    fields = {"dataset_local_root": str(dump), "output_dir": str(tmp_path / "out")}
    for head in more.glob("l01*"):
        head.rename(dump / head.name)
    write_examples(dump, [Example(number, f"text {number}", 1024, "0") for number in range(4)])
    run_analysis(make_config(**fields, layers="0"))
    before = sorted((tmp_path / "out" / ".heads").iterdir())
    with pytest.raises(ConfigError, match="differs in the texts of the dump"):
        run_analysis(make_config(**fields))
    assert sorted((tmp_path / "out" / ".heads").iterdir()) == before
