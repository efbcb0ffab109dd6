"""Several dumps in one command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.config import make_config
from attention_plasticity.run.finish import Outcome
from attention_plasticity.run.runner import Refused, run_analyses, run_analysis
from attention_plasticity.run.several import configs_of
from dumps import make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_toolkit.watcher import Watcher


def test_runs_are_those_of_single_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = [make_dump(tmp_path / name, layers=1, n=80 + 20 * i) for i, name in enumerate("ab")]
    gone = tmp_path / "gone"
    words = ["analyze", *map(str, [*dumps, gone]), "--output_dir", str(tmp_path / "out")]
    assert main([*words[:3], *words[4:], "--dry_run"]) == 0
    assert capsys.readouterr().out.count("Nothing was computed or written.") == 2
    assert not (tmp_path / "out").exists()
    assert main([*words, "--max_workers", "2"]) == 1
    told = capsys.readouterr().out
    assert f"{gone}: does not exist" in told
    for name, dump in zip("ab", dumps, strict=True):
        alone = run_analysis(
            make_config(dataset_local_root=str(dump), output_dir=str(tmp_path / f"alone-{name}"))
        )
        for path in alone.paths.tables.values():
            assert (tmp_path / "out" / name / path.name).read_bytes() == path.read_bytes()
    (tmp_path / "out" / "b" / ".heads" / "l00h01.json").unlink()
    file = tmp_path / "several.yaml"
    file.write_text(f"dumps: [{dumps[0]}, {dumps[1]}]\noutput_dir: {tmp_path / 'out'}\n")
    assert main(["analyze", "--config", str(file)]) == 0  # computes the missing head only


def test_one_run_that_cannot_begin_does_not_stop_the_others(tmp_path: Path) -> None:
    make_dump(tmp_path / "a", layers=1, n=80)
    (tmp_path / "b").mkdir()
    config = make_config(output_dir=str(tmp_path / "out"), max_workers=1)
    found = list(run_analyses(configs_of(config, [str(tmp_path / "b"), str(tmp_path / "a")])))
    refused, outcome = found
    assert isinstance(refused, Refused)
    assert isinstance(outcome, Outcome)
    assert len(outcome.metrics) == 4
    (again,) = run_analyses(configs_of(config, [str(tmp_path / "a")]))  # nothing is left to do
    assert isinstance(again, Outcome)
    assert again.metrics == outcome.metrics


def test_a_run_is_opened_while_the_last_head_of_the_one_before_is_computed(tmp_path: Path) -> None:
    dumps = [make_dump(tmp_path / name, layers=3, q_heads=1, k_heads=1, n=60) for name in "abc"]
    config = make_config(output_dir=str(tmp_path / "out"), max_workers=1)
    begun: list[list[str]] = []

    class Recording(Watcher):
        def advance(self, steps: int = 1, **counts: int) -> None:
            begun.append(sorted(path.name for path in (tmp_path / "out").iterdir()))

    outcomes = run_analyses(configs_of(config, list(map(str, dumps))), Recording())
    first = next(outcomes)
    assert isinstance(first, Outcome)
    assert begun == [["a"]] * 2 + [["a", "b"]]
    assert isinstance(run_analysis(first.facts.settings), Outcome)  # its folder is not locked
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
    assert begun[3:] == [["a", "b"]] * 2 + [["a", "b", "c"]] * 4


def test_names_of_runs_are_different() -> None:
    config = make_config()
    places = ["dumps/a", "hf://datasets/me/qk@small", "s3://bucket/x/b/", "hf://datasets/me/qk"]
    places += ["hf://datasets/me/qk@a%2Fb", "file:///dumps/c", "hf://datasets/me/qk@c/model"]
    folders = [one.output_dir for one in configs_of(config, places)]
    assert folders == [
        f"results/{name}" for name in ("a", "small", "b", "qk", "a-b", "c", "c-model")
    ]
    with pytest.raises(ap.ConfigError, match="2 of them have the name a"):
        configs_of(config, ["x/a", "y/a"])
    with pytest.raises(ap.ConfigError, match="engine: shards computes one dump"):
        configs_of(make_config(engine="shards"), places)
    with pytest.raises(ap.ConfigError, match="dataset_local_root: cannot be used together"):
        configs_of(make_config(dataset_local_root="x"), ["x/a", "y/b"])


@pytest.mark.parametrize("spare", [12 << 10, 48 << 10], ids=["recording a head", "writing tables"])
def test_a_full_disk_of_one_run_does_not_end_the_others(
    small_disk: Path, tmp_path: Path, spare: int
) -> None:
    dumps = [make_dump(tmp_path / "dumps" / name, layers=1, n=200) for name in ("disk", "b")]
    (small_disk / "filler").write_bytes(bytes((128 << 10) - spare))
    config = make_config(output_dir=str(small_disk.parent), max_workers=1)
    configs = configs_of(config, [str(dump) for dump in dumps])
    refused, outcome = run_analyses(configs)
    assert isinstance(refused, Refused)
    assert isinstance(refused.reason, ap.OutputError)
    assert f"{small_disk}/" in str(refused.reason)
    assert "No space left on device" in str(refused.reason)
    assert isinstance(outcome, Outcome)
    assert len(outcome.metrics) == 4
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    repaired, _ = run_analyses(configs)
    assert isinstance(repaired, Outcome)
    assert len(repaired.metrics) == 4
