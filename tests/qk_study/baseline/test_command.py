"""`attention-plasticity baseline`, with a real tiny model."""

from __future__ import annotations

import json
import shutil
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest

from attention_plasticity.tables.intervals import half_width
from commands_here import analyze_here
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_study.baseline.command import baseline
from rank_processes import Forwards, ended, start_alone
from sniffing import same_bytes, sniff
from tiny_texts import save_texts, save_tiny_model

ROOT = Path(__file__).parents[3]
BASELINE = "qk_study.baseline.command:baseline"
NAMES = ("random", "shuffled")
TEXTS = 4
FEW = ("--texts", str(TEXTS), "--max_workers", "1")


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without baselines, of a capture of two layers of a random llama."""
    folder = tmp_path_factory.mktemp("analysed")
    model = save_tiny_model(folder / "model")
    texts = save_texts(folder / "texts", [300] * 6)
    fields = {"capture.layers": "0,2", "capture.attention": "false"}
    assert sniff(model, texts, folder / "dump", **fields) == 0
    told = analyze_here(folder / "dump", "--output_dir", folder / "run", "--bin_size", 16)
    assert told.returncode == 0
    return folder / "run"


@pytest.fixture(scope="module")
def finished(analysed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with its baselines."""
    run = Path(shutil.copytree(analysed, tmp_path_factory.mktemp("finished") / "run"))
    assert baseline([str(run), *FEW]) == 0
    return run


@pytest.fixture
def run(analysed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(analysed, tmp_path / "run"))


def info_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "run.json").read_text()))


def test_both_baselines_are_captured_and_analysed_as_the_run(finished: Path) -> None:
    own = info_of(finished)
    for name in NAMES:
        found = info_of(finished / "baseline" / name)
        dump = found["input"]["dump"]
        assert dump["num_examples"] == TEXTS
        assert found["heads"] == own["heads"] | {"analysed": 8}
        assert found["bin_size"] == own["bin_size"] == 16
        assert found["means"]["ap_aligned"]["standard_error"] > 0
        assert dump["capture"]["tokenizer"] == own["input"]["dump"]["capture"]["tokenizer"]
        assert dump["capture"]["capture"]["layers"] == [0, 2]
        # 6 texts of rate 8 have 48 queries per bucket of 16 tokens, and so have 4 texts
        assert dump["sampler"]["base_rate"] == 12.0
    captures = {name: info_of(finished / "baseline" / name)["input"]["dump"] for name in NAMES}
    assert captures["random"]["random_weights"] is True
    assert captures["shuffled"]["synthetic"]["type"] == "shuffled"


def test_a_repeated_command_changes_nothing_and_prints_the_means(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("data.parquet")}
    assert baseline([str(finished), *FEW]) == 0
    told = capsys.readouterr().out
    for words, folder in (
        ("this run", finished),
        ("random weights", finished / "baseline" / "random"),
        ("shuffled tokens", finished / "baseline" / "shuffled"),
    ):
        mean = info_of(folder)["means"]["ap_aligned"]
        half = float(half_width(mean["standard_error"], mean["groups"]))
        assert f"{words}: {mean['value']:.3f} ± {half:.3f}, drop " in told
    assert "baseline, 8 heads, 4 texts" in told
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("data.parquet")} == before


def test_every_result_is_printed_as_soon_as_it_is_known(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def capture(_: object) -> None:
        told.append(capsys.readouterr().out)

    monkeypatch.setattr("qk_study.baseline.command._capture", capture)
    assert baseline([str(finished), *FEW]) == 0
    told.append(capsys.readouterr().out)
    starts = [[line.split(":")[0] for line in part.splitlines()] for part in told]
    assert starts == [
        ["Attention plasticity at one position", "this run"],
        ["random weights"],
        ["shuffled tokens", "next"],
    ]


def test_the_summary_of_the_run_has_a_line_per_baseline(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    dump = info_of(run)["input"]["path"]
    words = (dump, "--output_dir", run, "--bin_size", 16)
    told = analyze_here(*words)
    assert told.returncode == 0
    means = {name: info_of(run / "baseline" / name)["means"] for name in NAMES}
    for name, title in (("random", "random weights"), ("shuffled", "shuffled tokens")):
        assert f"{title}: {means[name]['ap_aligned']['value']:.3f} ± " in told.stdout
    other = analyze_here(*words, "--pair_sampling", "context").stdout
    assert "random weights: 0." not in other
    assert "made for another capture or other settings" in " ".join(other.split())
    assert baseline([str(run), *FEW]) == 0  # the dumps stay, the analyses are made again
    assert info_of(run / "baseline" / "random")["config"]["pair_sampling"] == "context"
    assert "random weights: 0." in analyze_here(*words, "--pair_sampling", "context").stdout
    (run / "baseline" / "random" / "run.json").write_text("{")
    damaged = analyze_here(*words, "--pair_sampling", "context")
    assert damaged.returncode == 0
    assert "run.json: was edited or damaged" in " ".join(damaged.stdout.split())


def test_a_killed_command_continues_and_ends_the_same(
    run: Path, finished: Path, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    forwards = Forwards(tmp_path / "log", 1, {0: TEXTS + 3})  # in the second baseline
    words = [str(run), *FEW]
    assert ended(start_alone(words, told, forwards, BASELINE)) == -signal.SIGKILL
    assert (run / "baseline" / "random" / "run.json").exists()
    assert not (run / "baseline" / "shuffled" / "run.json").exists()
    assert ended(start_alone(words, told, command=BASELINE)) == 0
    assert "is complete already; nothing to do" in told.read_text()
    for name in NAMES:
        one, other = (folder / "baseline" / name for folder in (run, finished))
        assert same_bytes(one / "dump", other / "dump")
        assert (one / "head_metrics.csv").read_bytes() == (other / "head_metrics.csv").read_bytes()


def test_ctrl_c_says_how_to_continue(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qk_sniffer.pipeline.capture._forward", interrupted)
    assert baseline([str(run), *FEW]) == 130
    assert "run the same command again to continue" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert baseline([str(run), "--dry_run"]) == 0
    told = capsys.readouterr().out
    assert "random weights" in told
    assert "shuffled tokens" in told
    assert str(Path("baseline") / "shuffled" / "dump") in told
    assert not (run / "baseline").exists()


def changed(run: Path, **sections: dict[str, Any]) -> None:
    """Change the record of the capture in run.json."""
    info = info_of(run)
    for name, values in sections.items():
        info["input"]["dump"]["capture"][name] |= values
    (run / "run.json").write_text(json.dumps(info))


def test_mistakes_have_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)

    def refused(*words: str, code: int = 2) -> str:
        assert baseline(list(words)) == code
        error = capsys.readouterr().err
        assert "Traceback" not in error
        return next(line for line in error.splitlines() if line.startswith("error: "))

    assert "required: RUN" in refused()
    assert "missing: does not exist" in refused("missing")
    assert "is not a folder of this machine" in refused("s3://bucket/run")
    assert "texts: expected an integer of at least 4" in refused(str(run), "--texts", "3")
    assert "did you mean --texts?" in refused(str(run), "--text", "8")
    assert "give --model.name if it is not where" in refused(
        str(run), "--model.name", str(tmp_path / "no")
    )
    assert "give --dataset.path if it is not" in refused(str(run), "--dataset.path", "nowhere.txt")
    assert "does not exist" in refused(str(run), "--dry_run", "--dataset.path", "nowhere.txt")
    changed(run, model={"random_weights": True})
    assert "so it is a baseline itself" in refused(str(run))
    changed(run, model={"random_weights": False}, tokenizer={"max_length": 100})
    assert "holds baselines of another capture; give --overwrite" in refused(str(run))
    (run / "run.json").unlink()
    assert "has no run.json" in refused(str(run))


def test_a_missing_library_is_named(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_torch(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("qk_sniffer.pipeline.capture.run_capture", without_torch)
    assert baseline([str(run)]) == 2
    assert "pip install 'attention-plasticity[capture]'" in capsys.readouterr().err


def test_it_is_a_verb_of_the_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["attention_plasticity.verbs"]["baseline"] == BASELINE
