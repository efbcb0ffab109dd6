"""Whole captures of a tiny model that are refused or fail: one line says why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import qk_sniffer
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError
from sniffing import sniff, sniff_first
from tiny_models import ARCHITECTURES, XMOD, other_model
from tiny_texts import save_texts, save_tiny_model, some_text, tiny_tokenizer

LENGTHS = [100, 0, 50, 1, 520, 20]


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    told = capsys.readouterr().err.strip().splitlines()
    assert told, "nothing was said"
    assert told[-1].startswith("error: ")
    return told[-1].removeprefix("error: ")


def spoiled(folder: Path, name: str, value: float) -> Path:
    """The same model with one weight that makes a layer overflow."""
    save_tiny_model(folder)
    weights = load_file(folder / "model.safetensors")
    weights[name][0, 0] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_nan_stops_and_names_layer_and_text(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = spoiled(tmp_path / "m", "model.layers.2.self_attn.k_proj.weight", float("nan"))
    texts = save_texts(tmp_path / "texts", [0, 200])
    assert sniff(broken, texts, tmp_path / "dump") == 1
    message = refusal(capsys)
    assert "layer 2: NaN or infinity in the keys of text 1" in message
    assert "bfloat16 or float32" in message


@pytest.mark.parametrize("streaming", [False, True], ids=["loaded", "streamed"])
def test_a_changed_text_is_noticed_when_a_capture_goes_on(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    streaming: bool,
) -> None:
    texts, dump = save_texts(tmp_path / "texts", [200, 200, 200]), tmp_path / "dump"
    options = {"dataset__streaming": streaming}
    sniff_first(monkeypatch, 2, model, texts, dump, **options)
    (texts / "000.txt").write_text(some_text(200, seed=99))
    assert sniff(model, texts, dump, **options) == 2
    assert "text 0 (id '000.txt') has changed" in refusal(capsys)
    (texts / "000.txt").write_text(some_text(200, seed=0))
    (texts / "003.txt").write_text("one more")
    assert sniff(model, texts, dump, **options) == 0
    assert "continuing" in capsys.readouterr().err


def test_other_weights_in_the_middle_of_a_capture_are_noticed(
    texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = save_tiny_model(tmp_path / "model")
    sniff_first(monkeypatch, 3, mine, texts, tmp_path / "dump")
    weights = load_file(mine / "model.safetensors")
    for layer in (1, 2):  # in the middle of the file, which keeps its size
        weights[f"model.layers.{layer}.self_attn.q_proj.weight"] *= 1.5
    save_file(weights, mine / "model.safetensors", metadata={"format": "pt"})
    assert sniff(mine, texts, tmp_path / "dump") == 2
    assert "holds a capture that differs in model.files (" in refusal(capsys)


def test_the_analysis_of_an_unfinished_capture_says_how_to_continue(
    model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sniff_first(monkeypatch, 3, model, texts, tmp_path / "dump")
    with pytest.raises(ConfigError, match=r"not finished: run the same sniff-qk command again"):
        open_dump(tmp_path / "dump")


def test_a_capture_that_keeps_nothing_is_an_error(
    model: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = {"capture__sampler__base_rate": 1e-9}
    assert sniff(model, texts, tmp_path, **nothing) == 2
    message = refusal(capsys)
    assert message.startswith("capture.sampler: no position of any text was kept (type uniform, ")
    assert "base_rate 1e-09, min_bucket_size 16)" in message
    assert not (tmp_path / "dump.json").exists()
    assert sniff(model, texts, tmp_path, overwrite="true") == 0


@pytest.mark.parametrize(
    ("fields", "phrase"),
    [
        ({"model__name": "./nowhere"}, "model.name: ./nowhere: does not exist"),
        ({"dataset__text_column": "body"}, "has no column 'body'; its columns are text"),
        ({"capture__layers": "2-7"}, "capture.layers: 4 given, there are 0-3"),
        ({"output__data_root": "/proc/dump"}, "cannot be used as a folder"),
    ],
)
def test_bad_requests_are_refused_in_one_line(
    model: Path,
    texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    phrase: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sniff(model, texts, tmp_path / "dump", **fields) == 2
    assert phrase in refusal(capsys)
    assert not (tmp_path / "dump" / "dump.json").exists()


def test_a_tokenizer_of_another_model_is_told(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ARCHITECTURES["llama"]
    save_tiny_model(tmp_path / "tokenizer")
    narrow = type(small)("llama", {**small.config, "vocab_size": 8}).model()
    narrow.save_pretrained(tmp_path / "model")
    options = {"tokenizer__name": tmp_path / "tokenizer"}
    assert sniff(tmp_path / "model", texts, tmp_path / "dump", **options) == 2
    assert "tokenizer.name: the tokenizer gives token" in refusal(capsys)


def test_a_model_whose_own_forward_fails_is_told(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """xmod runs only after a language was set."""
    model = other_model("xmod", XMOD)
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    for dry_run in ("true", "false"):
        assert sniff(tmp_path / "model", texts, tmp_path / "dump", dry_run=dry_run) == 2
        message = refusal(capsys)
        assert message.startswith("XmodModel: the model's own forward failed on 5 tokens (ValueErr")
        assert "Input language unknown" in message
    with pytest.raises(ConfigError, match=r"own forward failed.*Input language unknown"):
        qk_sniffer.tap(model)


def test_without_the_package_ray_nothing_is_written(
    model: Path,
    texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # its import fails
    monkeypatch.setenv("ATTENTION_PLASTICITY_CACHE", str(tmp_path / "cache"))
    assert sniff(model, texts, tmp_path / "dump", engine="ray") == 2
    assert refusal(capsys).startswith("engine: ray is not installed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words"), [("run.json", "results of an analysis"), ("study.json", "a study")]
)
def test_the_folder_of_another_command_is_refused(
    name: str, words: str, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("{}")
    for flags in ({}, {"overwrite": "true"}, {"dry_run": "true"}):
        assert sniff(tmp_path / "no model", texts, tmp_path, **flags) == 2
        message = f"output.data_root: {tmp_path}: holds {words} ({name}); choose"
        assert message in refusal(capsys)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_folder_of_the_texts_is_refused(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(texts.iterdir())
    for flags in ({}, {"overwrite": "true"}, {"dry_run": "true"}):
        assert sniff(tmp_path / "no model", texts, texts, **flags) == 2
        assert refusal(capsys).startswith(f"output.data_root: {texts}: holds the texts; choose")
    assert sorted(texts.iterdir()) == before


def test_a_failed_capture_leaves_no_empty_folder(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = save_texts(tmp_path / "texts", [50])
    (texts / "000.txt").write_bytes(b"\xff")
    (tmp_path / "mine").mkdir()
    assert sniff(model, texts, tmp_path / "new" / "dump") == 2
    assert sniff(model, texts, tmp_path / "mine") == 2
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "mine").iterdir()) == []  # a folder of the user stays
    assert "000.txt: is not a text" in refusal(capsys)


def test_texts_that_came_or_went_after_the_dump_was_complete_are_noticed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = save_texts(tmp_path / "texts", [20, 30])
    assert sniff(model, mine, tmp_path / "dump") == 0
    for more in (True, False):
        if more:
            (mine / "more.txt").write_text("more")
        else:
            (mine / "more.txt").unlink()
            (mine / "001.txt").unlink()
        assert sniff(model, mine, tmp_path / "dump") == 2
        assert "holds a complete dump of 2 texts, but the dataset now has" in refusal(capsys)
