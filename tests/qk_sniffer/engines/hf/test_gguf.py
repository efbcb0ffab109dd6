"""GGUF files: loaded or converted, and given the special tokens that their header asks for."""

import json

import gguf
import pytest
import torch
import transformers

from qk_sniffer.config import ModelSettings, TokenizerSettings
from qk_sniffer.engines.hf.gguf import convert_gguf, model_title
from qk_sniffer.engines.hf.loading import load_model, load_tokenizer
from qk_toolkit.errors import ConfigError
from sniffing import sniff, tables_of
from tiny_models import ARCHITECTURES
from tiny_texts import save_gguf, save_texts

BOS, EOS = 1, 2


def settings_of(folder, **fields):
    return ModelSettings(name=str(folder), gguf_file="tiny.gguf", **fields)


def tiny(folder, name=None, **flags):
    save_gguf(ARCHITECTURES["llama"].model(), folder / "tiny.gguf", name=name, **flags)
    return settings_of(folder)


@pytest.mark.parametrize(
    ("flags", "begins", "ends"),
    [
        ({}, None, False),  # as transformers does, which depends on its version
        ({"add_bos_token": True}, True, False),
        ({"add_bos_token": True, "add_eos_token": True}, True, True),
        ({"add_bos_token": False, "add_eos_token": False}, False, False),
    ],
)
def test_special_tokens_are_those_of_the_header(flags, begins, ends, tmp_path):
    model = tiny(tmp_path, **flags)
    tokenizer = load_tokenizer(TokenizerSettings(), model)
    plain = tokenizer("abc", add_special_tokens=False)["input_ids"]
    assert len(plain) == 4
    if begins is None:
        own = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
        begins = own("abc")["input_ids"][0] == BOS
    assert tokenizer("abc")["input_ids"] == [BOS] * begins + plain + [EOS] * ends


def test_a_capture_says_and_keeps_the_special_tokens_and_the_name(tmp_path, capsys):
    texts = save_texts(tmp_path / "texts", [20])
    lengths = {}
    for name, added in (("plain", False), ("bos", True)):
        (tmp_path / name).mkdir()
        tiny(tmp_path / name, "Tiny 1M Instruct" if added else None, add_bos_token=added)
        dump = tmp_path / f"dump-{name}"
        assert sniff(tmp_path / name, texts, dump, model__gguf_file="tiny.gguf") == 0
        notes = capsys.readouterr().err.splitlines()
        first = next(line for line in notes if "query and" in line)
        assert first.endswith(f"special tokens added: {'BOS' if added else 'none'}")
        title = "Tiny 1M Instruct" if added else "tiny"
        assert json.loads((dump / "dump.json").read_text())["model"] == title
        assert f"# Queries and keys of `{title}`" in (dump / "README.md").read_text()
        lengths[name] = tables_of(dump)["examples"]["num_tokens"].to_pylist()
    assert lengths["bos"][0] == lengths["plain"][0] + 1


def test_a_file_and_the_checkpoint_of_it_have_the_same_weights_and_tokens(tmp_path):
    (tmp_path / "packed").mkdir()
    save_gguf(
        ARCHITECTURES["llama"].model(),
        tmp_path / "packed" / "tiny.gguf",
        gguf.GGMLQuantizationType.Q8_0,
        add_eos_token=True,
    )
    convert_gguf(tmp_path / "packed" / "tiny.gguf", tmp_path / "converted")
    packed, converted = (
        settings_of(tmp_path / "packed"),
        ModelSettings(name=f"{tmp_path}/converted"),
    )
    notes = []
    direct, loaded = load_model(packed, "cpu", notes.append), load_model(converted, "cpu")
    assert notes == ["tiny.gguf: unpacking its weights to float32"]
    assert direct.dtype == loaded.dtype == "float32"
    assert load_model(settings_of(tmp_path / "packed", dtype="bfloat16"), "cpu").dtype == "bfloat16"
    weights, found = direct.model.state_dict(), loaded.model.state_dict()
    assert {*found} == {*weights}
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    ids = [
        load_tokenizer(TokenizerSettings(), one)("abc")["input_ids"] for one in (packed, converted)
    ]
    assert ids[0] == ids[1]
    assert ids[0][-1] == EOS


def test_a_folder_of_gguf_files_names_the_setting(tmp_path, capsys):
    tiny(tmp_path)
    texts = save_texts(tmp_path / "texts", [20])
    for option in ({}, {"dry_run": "true"}):
        assert sniff(tmp_path, texts, tmp_path / "dump", **option) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"error: model.name: {tmp_path}: holds GGUF files only; "
            "set model.gguf_file to tiny.gguf"
        )
    with pytest.raises(ConfigError, match=r"model\.gguf_file: .*no\.gguf: does not exist"):
        load_model(ModelSettings(name=str(tmp_path), gguf_file="no.gguf"), "cpu")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(200))
    with pytest.raises(ConfigError, match=r"model\.name: "):
        load_model(ModelSettings(name=str(tmp_path), gguf_file="bad.gguf"), "cpu")


@pytest.mark.parametrize(
    ("fields", "title"),
    [
        ({"name": "SmolLM2 135M Instruct", "basename": "x"}, "SmolLM2 135M Instruct"),
        ({"name": "  Größe\n1 ", "size_label": "1B"}, "Größe 1"),
        ({"basename": "SmolLM2", "size_label": "135M"}, "SmolLM2 135M"),
        ({"basename": "SmolLM2"}, "SmolLM2"),
        ({}, "a.Q4_1"),
    ],
)
def test_the_title_is_the_name_in_the_header(fields, title, tmp_path):
    path = tmp_path / "a.Q4_1.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in fields.items():
        writer.add_string(f"general.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert model_title(path) == title
