"""`attention-plasticity add-rotary`."""

import json
import shutil
from pathlib import Path

import pytest

from attention_plasticity.cli import main as analysis
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.rotary_file import with_rotary
from qk_dump.source import open_dump
from qk_sniffer.add_rotary import add_rotary
from rope_types import model_of
from sniffing import sniff
from tiny_texts import save_tiny_model, tiny_tokenizer

LENGTHS = [70, 40, 55]


def without_records(dump):
    """Make it a dump of an earlier version; returns the layers as they were."""
    path = dump / "dump.json"
    told = json.loads(path.read_text())
    layers = told["layers"]
    old = [{k: v for k, v in layer.items() if not k.startswith("rotary")} for layer in layers]
    path.write_text(json.dumps(told | {"layers": old}))
    return {layer["layer"]: layer for layer in layers}


def change(dump, edit):
    told = json.loads((dump / "dump.json").read_text())
    edit(told)
    (dump / "dump.json").write_text(json.dumps(told))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"), "smollm3")


@pytest.fixture(scope="module")
def captured(model, texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captured") / "dump"
    assert sniff(model, texts, folder) == 0
    return folder


@pytest.fixture
def dump(captured, tmp_path):
    return Path(shutil.copytree(captured, tmp_path / "dump"))


def rotary_of(file):
    """The entries of a file that say how RoPE turns, by layer."""
    layers = json.loads(file.read_text())["layers"]
    return {layer["layer"]: named(layer) for layer in layers}


def named(layer):
    return {name: value for name, value in layer.items() if name.startswith("rotary")}


def test_a_file_has_the_records_that_a_capture_writes(dump, model, tmp_path, capsys):
    expected = without_records(dump)
    before, file = (dump / "dump.json").read_bytes(), tmp_path / "new" / "rotary.json"
    assert add_rotary([str(dump), str(model), str(file)]) == 0
    assert (dump / "dump.json").read_bytes() == before
    assert rotary_of(file) == {number: named(layer) for number, layer in expected.items()}
    found = with_rotary(open_dump(dump), str(file)).rotary
    assert [record.rotary is not None for record in found.layers] == [True, True, True, False]
    out = capsys.readouterr().out
    assert "Layers 3 have no rotary embedding" in out
    assert f"{file}: rotary records of 3 of 4 layers" in out


def test_a_file_that_cannot_be_written_is_told_first(dump, tmp_path, capsys):
    capsys.readouterr()
    assert add_rotary([str(dump), str(tmp_path / "no model"), str(tmp_path)]) == 2
    assert "is a folder, not a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda told: told["layers"][1].update(head_dim=32), "head_dim of layer 1 is 32"),
        (lambda told: told["layers"][1].update(window=64), "window of layer 1 is 64"),
        (lambda told: told["layers"][1].update(layer=9), "layer 9 is 'listed' in the dump and"),
        (lambda told: told["rope_parameters"].update(rope_theta=2e6 + 1), "theta is 2000001.0 in"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(dump, model, edit, said, capsys):
    change(dump, edit)
    capsys.readouterr()
    assert add_rotary([str(dump), str(model), str(dump.parent / "rotary.json")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (dump.parent / "rotary.json").exists()


def test_heads_and_widths_are_compared_where_there_is_no_manifest(dump, model, tmp_path, capsys):
    (dump / "dump.json").unlink()
    words = [str(dump), str(model), str(tmp_path / "r.json")]
    assert add_rotary(words) == 0
    capsys.readouterr()
    assert add_rotary([*words, "--config_overrides", '{"hidden_size": 32}']) == 2
    assert "width of vectors of l00h00" in capsys.readouterr().err
    (dump / "l03h03q").rename(dump / "l03h04q")
    assert add_rotary(words) == 2
    assert "head l03h04q, which the model does not have" in capsys.readouterr().err


def test_frequencies_of_long_texts_follow_from_the_lengths_in_the_dump(texts, tmp_path, capsys):
    """Texts of 71, 41 and 56 tokens; the original context has 64."""
    model = tmp_path / "model"
    model_of("longrope").save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    dump = tmp_path / "dump"
    assert sniff(model, texts, dump, tokenizer__max_length=256) == 0
    expected = without_records(dump)
    words = [str(dump), str(model), str(tmp_path / "rotary.json")]
    assert add_rotary(words) == 0
    assert rotary_of(tmp_path / "rotary.json") == {
        number: named(layer) for number, layer in expected.items()
    }
    assert "texts of 41 and 71 tokens" in capsys.readouterr().out
    (dump / "examples.parquet").unlink()
    assert add_rotary(words) == 0
    assert "no examples.parquet" in capsys.readouterr().out


def test_an_analysis_takes_the_records_from_a_file(dump, model, tmp_path, capsys):
    layers = without_records(dump)
    file, out = tmp_path / "rotary.json", tmp_path / "run"
    before = (dump / "dump.json").read_bytes()
    assert add_rotary([str(dump), str(model), str(file)]) == 0
    assert (dump / "dump.json").read_bytes() == before
    found = with_rotary(open_dump(dump), str(file)).rotary
    assert [record.to_json()["rotary"] for record in found.layers] == [
        layer["rotary"] for layer in layers.values()
    ]
    words = ["analyze", str(dump), "--layers", "0", "--heads", "0", "--max_workers", "1"]
    words += ["--output_dir", str(out), "--rotary", str(file)]
    assert analysis(words) == 0
    used = {"path": str(file), "sha256": found.digest}
    assert json.loads((out / "run.json").read_text())["input"]["rotary"] == used
    capsys.readouterr()
    change_file = json.loads(file.read_text())
    change_file["layers"][0]["rotary"]["scaling"] = 0.5
    file.write_text(json.dumps(change_file))
    assert analysis(words) == 0
    assert "finished earlier" not in capsys.readouterr().err
    again = json.loads((out / "run.json").read_text())["input"]["rotary"]
    assert again["sha256"] != found.digest
