"""`attention-plasticity verify`: the table, the words, the exit codes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from attention_plasticity.cli import main
from qk_sniffer.engines.engine import Rotation, Rotations
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.engines.hf.rotary import RotationCheck
from qk_sniffer.verify.command import summary_lines
from qk_sniffer.verify.comparison import LayerCheck, Verification
from tiny_models import ARCHITECTURES
from tiny_texts import save_tiny_model, some_text

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    kinds = ("llama", "gemma3_text", "smollm3", "gpt2")
    return {kind: save_tiny_model(folder / kind, kind) for kind in kinds}


def verify(*words: object) -> int:
    return main(["verify", *(str(word) for word in words)])


def told_by(err: str) -> str:
    """The error's line; bars of libraries that were imported before the command stand above it."""
    *above, line = err.splitlines()
    assert all(not part.strip() or "it/s" in part for part in above)
    return line


def rows_of(output: str) -> list[list[str]]:
    """The cells of the table's rows."""
    lines = [line.split("  ") for line in output.splitlines() if "e-" in line and "  " in line]
    return [[cell.strip() for cell in line if cell.strip()] for line in lines]


def test_a_faithful_model(models: dict[str, Path], capsys: Captured) -> None:
    assert verify(models["smollm3"]) == 0
    out = capsys.readouterr().out
    rows = rows_of(out)
    assert [row[:3] for row in rows] == [
        ["0", "full", "4 / 2"],
        ["1", "full", "4 / 2"],
        ["2", "full", "4 / 2"],
        ["3", "full, NoPE", "4 / 2"],
    ]
    assert all(max(map(float, row[3:5])) < 2e-6 for row in rows)
    assert all((row[5], row[7]) == ("1e-05", "ok") for row in rows)
    assert all(float(row[6]) < 1e-4 for row in rows[:3])
    assert rows[3][6] == "no RoPE"
    last = out.splitlines()[-1]
    assert last.startswith("Faithful: ")
    assert "in all 4 checked layers" in last
    assert last.endswith("; 256 tokens, float32.")


def test_windows_are_tested_by_texts_that_leave_them(
    models: dict[str, Path], tmp_path: Path, capsys: Captured
) -> None:
    text = tmp_path / "text.md"
    text.write_text(some_text(60))
    assert verify(models["gemma3_text"], "--text", text) == 0
    out = capsys.readouterr().out
    assert [row[1] for row in rows_of(out)] == ["sliding 8", "full"] * 2
    assert "not tested" not in out
    assert "61 tokens" in out  # a begin token comes first
    assert verify(models["gemma3_text"], "--text", text, "--max_length=8") == 0
    assert "The windows of layers 0,2 are not tested" in capsys.readouterr().out


def test_settings_reach_the_check(models: dict[str, Path], capsys: Captured) -> None:
    words = ("--dtype", "float16", "--layers", "1,3", "--tolerance", "1e-9", "--max-length", "20")
    assert verify(models["llama"], *words) == 1
    out = capsys.readouterr().out
    assert [(row[0], row[5]) for row in rows_of(out)] == [("1", "1e-09"), ("3", "1e-09")]
    assert out.endswith("20 tokens, float16.\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "the following arguments are required: MODEL"),
        (["no/such-model"], "model.name: no/such-model: is neither a local folder nor a model "),
        (["./nowhere"], "model.name: ./nowhere: does not exist"),
        (["{llama}", "--layers", "2-4"], "capture.layers: 4 given, there are 0-3"),
        (["{llama}", "--text", "{empty}"], "--text: the text is 0 tokens long, expected 2"),
        (["{llama}", "--text", "{llama}"], "--text: {llama}: cannot be read: Is a directory"),
        (["{llama}", "--model.trust_remote_code"], "--model.trust_remote_code: unknown flag; did"),
    ],
)
def test_refusals_are_one_line_and_exit_code_2(
    words: list[str], told: str, models: dict[str, Path], tmp_path: Path, capsys: Captured
) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    names = {"llama": models["llama"], "empty": empty}
    assert verify(*(word.format(**names) for word in words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told_by(err).startswith(f"error: {told.format(**names)}")


def test_a_model_that_fails_on_the_text_ends_with_1(
    models: dict[str, Path], tmp_path: Path, capsys: Captured
) -> None:
    text = tmp_path / "long.txt"
    text.write_text(some_text(700))
    assert verify(models["gpt2"], "--text", text, "--max_length", 600) == 1
    told = "error: the model failed on the text (600 tokens), try a smaller --max_length: "
    assert told_by(capsys.readouterr().err).startswith(told)


def test_a_wrong_rotary_record_is_reported_in_the_last_line() -> None:
    layers = probe(ARCHITECTURES["llama"].model("eager")).layers
    problem = Rotations(Rotation(problem="the reason"))
    checks = (
        LayerCheck(layers[0], 1e-7, 0, 1e-5, 0.0, RotationCheck(1e-5, True)),
        LayerCheck(layers[1], 1e-7, 0, 1e-5, 0.0, RotationCheck(0.5, False)),
        LayerCheck(replace(layers[2], rotations=problem), 1e-7, 0, 1e-5, 0.0),
    )
    found = Verification(checks, 50, "float32")
    assert found.failed == [checks[1]]
    lines = summary_lines(found)
    assert "Layers 2 have no rotary record in a capture: the reason." in lines
    assert lines[-1].startswith("NOT faithful: the rotary records of layers 1 do not predict")
    assert summary_lines(Verification(checks[:1], 50, "float32"))[-1].startswith("Faithful")
