"""Several dumps in one command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.config import make_config
from attention_plasticity.run.runner import Refused, run_analyses
from attention_plasticity.run.several import configs_of
from attention_plasticity.run.write import Outcome
from dumps import make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from runs_here import Here, analyse, records, tables


def test_runs_are_those_of_single_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = [make_dump(tmp_path / name, layers=1, n=80 + 20 * i) for i, name in enumerate("ab")]
    gone, out = tmp_path / "gone", tmp_path / "out"
    words = ["analyze", *map(str, [*dumps, gone]), "--output_dir", str(out)]
    assert main([*words[:3], *words[4:], "--dry_run"]) == 0
    assert capsys.readouterr().out.count("Nothing was computed or written.") == 2
    assert not out.exists()
    assert main([*words, "--max_workers", "1"]) == 1
    told = capsys.readouterr().out
    assert f"{gone}: does not exist" in told
    for name, dump in zip("ab", dumps, strict=True):
        analyse(dump, tmp_path / f"alone-{name}")
        assert tables(out / name) == tables(tmp_path / f"alone-{name}")
    records(out / "b")[1].unlink()
    file = tmp_path / "several.yaml"
    file.write_text(f"dumps: [{dumps[0]}, {dumps[1]}]\noutput_dir: {out}\n")
    assert main(["analyze", "--config", str(file), "--max_workers", "1"]) == 0
    assert "3 of 4 heads were finished earlier" in capsys.readouterr().err


def test_one_run_that_cannot_begin_does_not_stop_the_others(tmp_path: Path) -> None:
    make_dump(tmp_path / "a", layers=1, n=80)
    (tmp_path / "b").mkdir()
    config = make_config(output_dir=str(tmp_path / "out"), max_workers=1)
    engine = Here()
    configs = configs_of(config, [str(tmp_path / "b"), str(tmp_path / "a")])
    refused, outcome = run_analyses(configs, engine=engine)
    assert isinstance(refused, Refused)
    assert isinstance(outcome, Outcome)
    assert outcome.info["heads"]["analysed"] == 4
    (again,) = run_analyses(configs_of(config, [str(tmp_path / "a")]), engine=engine)
    assert isinstance(again, Outcome)
    assert again.info == outcome.info
    assert len(engine.heads) == 4


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
    refused, outcome = run_analyses(configs, engine=Here())
    assert isinstance(refused, Refused)
    assert isinstance(refused.reason, ap.OutputError)
    assert f"{small_disk}/" in str(refused.reason)
    assert "No space left on device" in str(refused.reason)
    assert isinstance(outcome, Outcome)
    assert outcome.info["heads"]["analysed"] == 4
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    repaired, _ = run_analyses(configs, engine=Here())
    assert isinstance(repaired, Outcome)
    assert repaired.info["heads"]["analysed"] == 4
