"""Whole captures of a tiny model, in this process: what is written, and what is refused."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

import qk_sniffer
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.manifest import read_manifest
from qk_dump.rotary import rotate
from qk_dump.source import open_dump
from qk_sniffer.capture.ranks import Ranks
from qk_sniffer.capture.run import run_rank
from qk_sniffer.config import make_config
from qk_sniffer.engines.hf.layout import decoder_of, run_backbone
from qk_sniffer.sampling.positions import PositionSampler
from qk_toolkit.errors import ConfigError
from qk_toolkit.terminal import TerminalWatcher
from sniffing import same_bytes, sniff, sniff_first, tables_of
from tiny_models import ARCHITECTURES, XMOD, other_model
from tiny_texts import save_texts, save_tiny_model, some_text, tiny_tokenizer

LENGTHS = [100, 8, 50, 1, 520, 20]  # characters; a begin token comes before them
CONTEXT = 512
SAMPLER = PositionSampler("uniform", 16, 8.0)


def test_rows_are_the_samplers_choice_and_the_models_own_vectors(whole):
    reference = ARCHITECTURES["llama"].model()
    tokenizer = tiny_tokenizer()
    tables = tables_of(whole)
    for example, length in enumerate(LENGTHS):
        ids = tokenizer(some_text(length, seed=example))["input_ids"][:CONTEXT]
        with qk_sniffer.tap(reference, sampler="all") as heard:
            run_backbone(decoder_of(reference), torch.tensor(ids)[None])
        for head in heard.heads:
            table = tables[head.folder].to_pandas()
            mine = table[table.example_id == example]
            positions = SAMPLER.positions(
                len(ids), example=example, layer=head.layer, kind=head.kind
            )
            np.testing.assert_array_equal(mine.position, positions)
            np.testing.assert_array_equal(mine.bucket, positions // 16)
            np.testing.assert_array_equal(
                np.stack([*mine.vector, np.zeros(16)])[:-1], heard.rows(head).vectors[positions]
            )


def test_examples_keep_their_names_and_lengths(whole):
    table = pq.read_table(whole / "examples.parquet").to_pydict()
    assert table["example_id"] == [*range(len(LENGTHS))]
    assert table["original_id"] == [f"{number:03d}.txt" for number in range(len(LENGTHS))]
    assert table["num_tokens"] == [101, 9, 51, 2, CONTEXT, 21]


def test_manifest_tells_the_layout(whole):
    text = (whole / "dump.json").read_text()
    assert '"frequencies": [ 1.0, ' in text  # on one line
    told = json.loads(text)
    assert (told["num_layers"], told["num_q_heads"], told["num_k_heads"]) == (4, 4, 2)
    assert [layer["learned_sinks"] for layer in told["layers"]] == [False] * 4
    assert (told["head_dim"], told["attention_scale"], told["dtype"]) == (16, 0.25, "float32")
    assert (told["bucket_type"], told["min_bucket_size"]) == ("uniform", 16)
    assert told["layer_types"] == ["full_attention"] * 4
    assert told["rope_parameters"] == {"rope_theta": 10000.0, "rope_type": "default"}
    assert told["sampler"] == {"type": "uniform", "base_rate": 8.0, "seed": 0}
    assert told["num_examples"] == len(LENGTHS)
    assert told["versions"]["transformers"]
    assert told["capture"]["tokenizer"]["max_length"] == CONTEXT
    frequencies = torch.tensor(10_000.0) ** -(torch.arange(0, 16, 2) / 16)  # (8,) in float32
    for layer in told["layers"]:
        rotary = layer["rotary"]
        assert (rotary["start"], rotary["dimensions"], rotary["scaling"]) == (0, 16, 1.0)
        assert rotary["pairing"] == "halves"
        np.testing.assert_allclose(rotary["frequencies"], frequencies, rtol=2e-7)
        assert "rotary_problem" not in layer


def test_pre_rope_differs_from_post_in_all_but_position_zero(model, texts, whole, tmp_path):
    assert sniff(model, texts, tmp_path, capture__capture_pre_rope="true") == 0
    manifest = read_manifest(tmp_path / "dump.json")
    assert manifest.pre_rope is True
    pre, post = (
        np.stack(tables_of(dump)["l03h02q"]["vector"].to_numpy()) for dump in (tmp_path, whole)
    )
    position = tables_of(whole)["l03h02q"]["position"].to_numpy()
    same = np.isclose(pre, post).all(axis=1)
    np.testing.assert_array_equal(same, position == 0)
    record = manifest.layer(3)
    assert record.rotary is not None
    np.testing.assert_allclose(rotate(pre, 0, position, record.rotary), post, atol=1e-4)
    assert manifest.layer(4) is None


def test_a_complete_dump_is_left_alone(model, texts, whole, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    assert sniff(model, texts, whole) == 0
    assert "is complete already" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_settings_that_change_no_row_change_no_dump(model, texts, whole, tmp_path):
    assert sniff(model, texts, tmp_path, dataset__streaming="true") == 0
    assert same_bytes(tmp_path, whole)


def test_a_rank_that_saw_no_other_asks_whether_the_folder_is_shared(
    model, texts, tmp_path, monkeypatch, capsys
):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert sniff(model, texts, tmp_path, dataset__max_samples=1) == 0
    question = f"no other process was seen in {tmp_path}; is the folder shared?"
    assert question in " ".join(capsys.readouterr().err.split())
    sections = {"dataset": {"path": str(texts), "max_samples": 1}, "model": {"name": str(model)}}
    config = make_config(sections, output={"data_root": str(tmp_path / "tested")})
    run_rank(config, TerminalWatcher(), Ranks(0, 2, knows_folder_is_shared=True))
    assert "is the folder shared?" not in capsys.readouterr().err


def test_rows_damaged_on_disk_are_refused_and_captured_again(
    model, texts, whole, tmp_path, capsys, monkeypatch
):
    sniff_first(monkeypatch, 3, model, texts, tmp_path)
    segments = sorted((tmp_path / ".capture" / "segments").iterdir())
    assert [path.name for path in segments] == ["00000", "00002", "00004"]  # the longest texts
    file = segments[1] / "l02k.parquet"
    rows = bytearray(file.read_bytes())
    rows[len(rows) // 3] ^= 1
    file.write_bytes(rows)
    assert sniff(model, texts, tmp_path) == 1
    message = f"error: {segments[1]}: is damaged ("
    printed = capsys.readouterr().err
    assert message in printed
    assert "Remove this folder and run the same command again" in printed
    shutil.rmtree(segments[1])
    with monkeypatch.context() as patch:
        patch.setattr("qk_toolkit.terminal._Lines", EveryStep)
        assert sniff(model, texts, tmp_path) == 0
    printed = capsys.readouterr().err
    assert same_bytes(tmp_path, whole)
    assert re.search("^loading texts and model: ", printed, re.M)
    assert "continuing: 5 texts are finished" in printed
    assert re.search(r"^texts: .*, [\d,]+ tokens, [\d,]+ rows, .* left", printed, re.M)


class EveryStep:
    """Prints the state of a task at its begin and at every step, where a pipe has lines by time."""

    def __init__(self, seconds, label):
        """The arguments are those of the lines by time."""

    def begin(self, state):
        sys.stderr.write(f"{state.line()}\n")

    update = begin

    def end(self):
        """Nothing is printed at the end."""


def test_a_capture_is_finished_without_the_model(
    model, texts, whole, tmp_path, capsys, monkeypatch
):
    dump = tmp_path / "dump"
    with monkeypatch.context() as patch:
        patch.setattr("qk_sniffer.capture.finish.write_side_files", _interrupted)
        assert sniff(model, texts, dump) == 130
    elsewhere = shutil.copytree(model, tmp_path / "tokenizer")
    (elsewhere / "model.safetensors").unlink()
    assert sniff(elsewhere, tmp_path / "no texts", dump, finish="true") == 0
    assert same_bytes(dump, whole)
    written, expected = (json.loads((one / "dump.json").read_text()) for one in (dump, whole))
    assert written == expected
    assert sniff(elsewhere, tmp_path / "no texts", dump, finish="true") == 0
    assert "is complete already" in capsys.readouterr().err


def test_what_cannot_be_finished_without_the_model_is_told(
    model, texts, tmp_path, capsys, monkeypatch
):
    assert sniff(model, texts, tmp_path / "none", finish="true") == 2
    assert "none: holds no capture" in refusal(capsys)
    assert sniff(model, texts, tmp_path, finish="true", overwrite="true") == 2
    assert "overwrite: cannot be used together with finish" in refusal(capsys)
    sniff_first(monkeypatch, 2, model, texts, tmp_path / "begun")
    assert sniff(model, texts, tmp_path / "begun", finish="true") == 2
    assert "2 of 6 texts are captured. Run the command of the capture" in refusal(capsys)
    outline = tmp_path / "begun" / ".capture" / "outline.json"
    content = outline.read_text()
    for name, words in (("texts", "number"), ("manifest", "lengths")):  # streamed; rope of lengths
        outline.write_text(json.dumps({**json.loads(content), name: None}))
        assert sniff(model, texts, tmp_path / "begun", finish="true") == 2
        assert f"dump.json depends on the {words} of the texts" in refusal(capsys)


def _interrupted(*_):
    raise KeyboardInterrupt


def refusal(capsys):
    told = capsys.readouterr().err.strip().splitlines()
    assert told, "nothing was said"
    assert told[-1].startswith("error: ")
    return told[-1].removeprefix("error: ")


def spoiled(folder, name, value):
    """The same model with one weight that makes a layer overflow."""
    save_tiny_model(folder)
    weights = load_file(folder / "model.safetensors")
    weights[name][0, 0] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_nan_stops_and_names_layer_and_text(model, tmp_path, capsys):
    broken = spoiled(tmp_path / "m", "model.layers.2.self_attn.k_proj.weight", float("nan"))
    texts = save_texts(tmp_path / "texts", [5, 200])
    assert sniff(broken, texts, tmp_path / "dump") == 1
    message = refusal(capsys)
    assert "layer 2: NaN or infinity in the keys of text 1" in message
    assert "bfloat16 or float32" in message


@pytest.mark.parametrize("streaming", [False, True], ids=["loaded", "streamed"])
def test_a_changed_text_is_noticed_when_a_capture_goes_on(
    model, tmp_path, capsys, monkeypatch, streaming
):
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


def test_other_weights_in_the_middle_of_a_capture_are_noticed(texts, tmp_path, capsys, monkeypatch):
    mine = save_tiny_model(tmp_path / "model")
    sniff_first(monkeypatch, 3, mine, texts, tmp_path / "dump")
    weights = load_file(mine / "model.safetensors")
    for layer in (1, 2):  # in the middle of the file, which keeps its size
        weights[f"model.layers.{layer}.self_attn.q_proj.weight"] *= 1.5
    save_file(weights, mine / "model.safetensors", metadata={"format": "pt"})
    assert sniff(mine, texts, tmp_path / "dump") == 2
    assert "holds a capture that differs in model.files (" in refusal(capsys)


def test_the_analysis_of_an_unfinished_capture_says_how_to_continue(
    model, texts, tmp_path, monkeypatch
):
    sniff_first(monkeypatch, 3, model, texts, tmp_path / "dump")
    with pytest.raises(ConfigError, match=r"its capture is not finished\. Run the same"):
        open_dump(tmp_path / "dump")


def test_a_capture_that_keeps_nothing_is_an_error(model, texts, tmp_path, capsys):
    nothing = {"capture__sampler__base_rate": 1e-9}
    assert sniff(model, texts, tmp_path, **nothing) == 2
    message = refusal(capsys)
    assert message.startswith("capture.sampler: no position of any text was kept (type uniform, ")
    assert "base_rate 1e-09, min_bucket_size 16)" in message
    assert not (tmp_path / "dump.json").exists()
    assert sniff(model, texts, tmp_path, overwrite="true") == 0


def test_a_folder_that_cannot_be_made_is_told(model, texts, tmp_path, capsys):
    assert sniff(model, texts, Path("/proc/dump")) == 2
    assert "cannot be used as a folder" in refusal(capsys)


def test_a_tokenizer_of_another_model_is_told(texts, tmp_path, capsys):
    small = ARCHITECTURES["llama"]
    save_tiny_model(tmp_path / "tokenizer")
    narrow = type(small)("llama", {**small.config, "vocab_size": 8}).model()
    narrow.save_pretrained(tmp_path / "model")
    options = {"tokenizer__name": tmp_path / "tokenizer"}
    assert sniff(tmp_path / "model", texts, tmp_path / "dump", **options) == 2
    assert "tokenizer.name: the tokenizer gives token" in refusal(capsys)


def test_a_model_whose_own_forward_fails_is_told(texts, tmp_path, capsys):
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
        qk_sniffer.tap(model, sampler="all")


def test_without_the_package_ray_nothing_is_written(model, texts, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # its import fails
    monkeypatch.setenv("ATTENTION_PLASTICITY_CACHE", str(tmp_path / "cache"))
    assert sniff(model, texts, tmp_path / "dump", ray="{}") == 2
    assert refusal(capsys).startswith("Ray: is not installed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words"), [("run.json", "results of an analysis"), ("study.json", "a study")]
)
def test_the_folder_of_another_command_is_refused(name, words, texts, tmp_path, capsys):
    (tmp_path / name).write_text("{}")
    for flags in ({}, {"overwrite": "true"}, {"dry_run": "true"}):
        assert sniff(tmp_path / "no model", texts, tmp_path, **flags) == 2
        message = f"output.data_root: {tmp_path}: holds {words} ({name}); choose"
        assert message in refusal(capsys)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_folder_of_the_texts_is_refused(texts, tmp_path, capsys):
    before = sorted(texts.iterdir())
    for flags in ({}, {"overwrite": "true"}, {"dry_run": "true"}):
        assert sniff(tmp_path / "no model", texts, texts, **flags) == 2
        assert refusal(capsys).startswith(f"output.data_root: {texts}: is also dataset.path")
    assert sorted(texts.iterdir()) == before


def test_a_failed_capture_leaves_no_empty_folder(model, tmp_path, capsys):
    texts = save_texts(tmp_path / "texts", [50])
    (texts / "000.txt").write_bytes(b"\xff")
    (tmp_path / "mine").mkdir()
    assert sniff(model, texts, tmp_path / "new" / "dump") == 2
    assert sniff(model, texts, tmp_path / "mine") == 2
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "mine").iterdir()) == []  # a folder of the user stays
    assert "000.txt: is not a text" in refusal(capsys)


def test_texts_that_came_or_went_after_the_dump_was_complete_are_noticed(model, tmp_path, capsys):
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
