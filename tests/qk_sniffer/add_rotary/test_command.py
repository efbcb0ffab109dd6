"""`attention-plasticity add-rotary`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_plasticity.cli import main as analysis
from qk_dump.rotary_file import layer_rotation, read_rotary_file
from qk_dump.source import open_dump
from qk_sniffer.add_rotary.command import add_rotary
from qk_sniffer.config import ModelSettings
from qk_sniffer.model.probing import probe
from qk_sniffer.model.stand_in import stand_in_model
from rope_types import model_of
from sniffing import sniff
from tiny_models import ARCHITECTURES, RARE, needs_rare
from tiny_texts import save_texts, save_tiny_model, tiny_tokenizer


def without_records(dump: Path) -> dict[str, Any]:
    """Make it a dump of an earlier version; returns the layers as they were."""
    path = dump / "dump.json"
    told = json.loads(path.read_text())
    layers = told["layers"]
    old = [{k: v for k, v in layer.items() if not k.startswith("rotary")} for layer in layers]
    path.write_text(json.dumps(told | {"layers": old}))
    return {layer["layer"]: layer for layer in layers}


def change(dump: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    told = json.loads((dump / "dump.json").read_text())
    edit(told)
    (dump / "dump.json").write_text(json.dumps(told))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_texts(tmp_path_factory.mktemp("texts"), [70, 40, 55])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), "smollm3")


@pytest.fixture(scope="module")
def captured(model: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captured") / "dump"
    assert sniff(model, texts, folder) == 0
    return folder


@pytest.fixture
def dump(captured: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(captured, tmp_path / "dump"))


@pytest.mark.parametrize("name", [*ARCHITECTURES, *RARE])
def test_a_stand_in_has_the_records_of_the_model(name: str, tmp_path: Path) -> None:
    """For every architecture, in all layers."""
    if name in RARE:
        needs_rare(name)
    if name == "mllama_text_model":
        pytest.skip("no AutoModel has it")
    architecture = {**ARCHITECTURES, **RARE}[name]
    model = architecture.model(architecture.attention[0])
    model.config.save_pretrained(tmp_path)
    settings = ModelSettings(
        name=str(tmp_path), attn_implementation=architecture.attention[0], dtype="float32"
    )
    expected, found = probe(model), probe(stand_in_model(settings))
    assert found.num_layers == expected.num_layers
    for one, other in zip(found.layers, expected.layers, strict=True):
        assert (one.layer, one.type, one.window) == (other.layer, other.type, other.window)
        assert (one.rope, one.width) == (other.rope, other.width)
        assert one.rotations == other.rotations


def test_records_are_added_to_dump_json(
    dump: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = json.loads((dump / "dump.json").read_text())
    without_records(dump)
    assert layer_rotation(open_dump(dump), 0) is None
    assert add_rotary([str(dump), "--model.name", str(model)]) == 0
    assert json.loads((dump / "dump.json").read_text()) == expected
    assert layer_rotation(open_dump(dump), 0) is not None
    assert layer_rotation(open_dump(dump), 3) is None  # without rotary embedding
    out = capsys.readouterr().out
    assert "Layers 3 have no rotary embedding" in out
    assert "rotary records of 3 of 4 layers" in out
    assert add_rotary([str(dump), "--model.name", str(model)]) == 0  # again: the same
    assert json.loads((dump / "dump.json").read_text()) == expected


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda told: told.update(num_layers=5), "num_layers is 5 in the dump and 4"),
        (lambda told: told["layers"][1].update(head_dim=32), "head_dim of layer 1 is 32"),
        (lambda told: told["layers"][1].update(rope=False), "rope of layer 1 is False"),
        (lambda told: told["layers"][1].update(type="sliding_attention"), "type of layer 1"),
        (lambda told: told["layers"][1].update(window=64), "window of layer 1 is 64"),
        (lambda told: told["layers"][1].update(layer=9), "lists layer 9"),
        (
            lambda told: told["rope_parameters"].update(rope_theta=5e5),
            "rope_parameters.rope_theta is 500000.0 in the dump",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    dump: Path,
    model: Path,
    edit: Callable[[dict[str, Any]], object],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(dump, edit)
    before = (dump / "dump.json").read_bytes()
    capsys.readouterr()
    assert add_rotary([str(dump), "--model.name", str(model)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert (dump / "dump.json").read_bytes() == before


def test_heads_and_widths_are_compared_where_there_is_no_manifest(
    dump: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dump / "dump.json").unlink()
    words = [str(dump), "--model.name", str(model)]
    assert add_rotary(words) == 2
    assert "give --output FILE" in capsys.readouterr().err
    assert add_rotary([*words, "--output", str(tmp_path / "r.json")]) == 0
    capsys.readouterr()
    words += ["--output", str(tmp_path / "r.json")]
    assert add_rotary([*words, "--model.config_overrides", '{"hidden_size": 32}']) == 2
    assert "width of vectors of l00h00" in capsys.readouterr().err
    (dump / "l03h03q").rename(dump / "l03h04q")
    assert add_rotary(words) == 2
    assert "head l03h04q, which the model does not have" in capsys.readouterr().err


def test_frequencies_of_long_texts_follow_from_the_lengths_in_the_dump(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts of 71, 41 and 56 tokens; the original context has 64."""
    model = tmp_path / "model"
    model_of("longrope").save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    dump = tmp_path / "dump"
    assert sniff(model, texts, dump, tokenizer__max_length=256) == 0
    expected = without_records(dump)
    assert add_rotary([str(dump), "--model.name", str(model)]) == 0
    layers = json.loads((dump / "dump.json").read_text())["layers"]
    assert {layer["layer"]: layer for layer in layers} == expected
    assert "texts of 41 and 71 tokens" in capsys.readouterr().out
    (dump / "examples.parquet").unlink()
    assert add_rotary([str(dump), "--model.name", str(model)]) == 0
    assert "no examples.parquet" in capsys.readouterr().out


def test_the_overrides_of_the_capture_are_used(
    model: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = tmp_path / "dump"
    overrides = "{rope_parameters: {rope_type: linear, rope_theta: 10000.0, factor: 4.0}}"
    assert sniff(model, texts, dump, model__config_overrides=overrides) == 0
    expected = without_records(dump)
    assert add_rotary([str(dump), "--model.name", str(model)]) == 0
    assert "those that dump.json records" in capsys.readouterr().err
    layers = json.loads((dump / "dump.json").read_text())["layers"]
    assert {layer["layer"]: layer for layer in layers} == expected


def test_an_analysis_takes_the_records_from_a_file(
    dump: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = without_records(dump)
    file, out = tmp_path / "rotary.json", tmp_path / "run"
    before = (dump / "dump.json").read_bytes()
    assert add_rotary([str(dump), "--model.name", str(model), "--output", str(file)]) == 0
    assert (dump / "dump.json").read_bytes() == before
    found = read_rotary_file(str(file))
    assert [entry["rotary"] for entry in found.layers] == [
        layer["rotary"] for layer in layers.values()
    ]
    words = ["analyze", str(dump), "--layers", "0", "--heads", "0", "--max_workers", "1"]
    words += ["--output_dir", str(out), "--rotary", str(file)]
    assert analysis(words) == 0
    used = {"path": str(file), "sha256": found.digest}
    assert json.loads((out / "run.json").read_text())["input"]["rotary"] == used
    capsys.readouterr()
    assert analysis(words) == 0
    assert "rotary" not in capsys.readouterr().err
    change_file = json.loads(file.read_text())
    change_file["layers"][0]["rotary"]["frequencies"][0] = 0.5
    file.write_text(json.dumps(change_file))
    assert analysis(words) == 0
    assert "1 record of other settings or files: kept" in capsys.readouterr().err
    again = json.loads((out / "run.json").read_text())["input"]["rotary"]
    assert again["sha256"] != found.digest


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda told: told.update(format="other"), "is not a file of rotary records"),
        (lambda told: told.update(pre_rope=True), "pre_rope is True there and False in"),
        (lambda told: told.update(pre_rope=None), "pre_rope: expected true or false"),
        (lambda told: told.update(layers=[]), "expected a list"),
        (lambda told: told.update(layers=[3]), "expected objects"),
        (lambda told: told["layers"].pop(), "has no entry for layer 3"),
        (lambda told: told["layers"][1].update(layer=0), "a layer is given twice"),
        (lambda told: told["layers"][1].update(layer="1"), "expected a number of a layer"),
        (lambda told: told["layers"][1].update(rope=False), "rope of layer 1 is False there"),
        (lambda told: told["layers"][1]["rotary"].update(start=99), "do not fit vectors of 16"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    dump: Path,
    tmp_path: Path,
    edit: Callable[[dict[str, Any]], object],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    layers = json.loads((dump / "dump.json").read_text())["layers"]
    content = {"format": "rotary records", "model": "m", "pre_rope": False, "layers": layers}
    edit(content)
    (tmp_path / "rotary.json").write_text(json.dumps(content))
    words = ["analyze", str(dump), "--rotary", str(tmp_path / "rotary.json"), "--dry_run"]
    capsys.readouterr()
    assert analysis(words) == 2
    assert said in capsys.readouterr().err


def test_what_cannot_be_read_or_written_is_one_line(
    dump: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert analysis(["analyze", str(dump), "--rotary", str(tmp_path / "none"), "--dry_run"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "text").write_text("not JSON")
    assert analysis(["analyze", str(dump), "--rotary", str(tmp_path / "text"), "--dry_run"]) == 2
    assert "is not JSON" in capsys.readouterr().err
    place = str(tmp_path / "text" / "r.json")
    assert add_rotary([str(dump), "--model.name", str(model), "--output", place]) != 0
    error = capsys.readouterr().err
    assert "cannot be written" in error
    assert error.count("\n") == 1


def test_a_large_model_takes_hardly_any_memory() -> None:
    """The weights of a stand-in are two vectors each."""
    from qk_sniffer.model import stand_in

    layer = torch.nn.Linear(3, 5)
    weight = stand_in._random(layer, torch.empty(50_000, 40_000, device="meta"), torch.Generator())
    assert weight.untyped_storage().nbytes() == 50_000 * 4
