"""Loading models and tokenizers: the same vectors as before saving, and what is refused.

`model.config_overrides` are merged into the config, or refused in one line.
"""

import json
import shutil
import sys
from dataclasses import replace

import gguf
import huggingface_hub.constants
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import qk_sniffer
from qk_sniffer.config import ModelSettings, TokenizerSettings
from qk_sniffer.engines.hf.layout import decoder_of, run_backbone
from qk_sniffer.engines.hf.loading import load_model, load_model_config, load_tokenizer
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.engines.hf.unloaded import shape_of
from qk_toolkit.errors import ConfigError
from tiny_models import ARCHITECTURES, VOCABULARY, needs, probed, shown_by
from tiny_texts import save_gguf, save_tiny_model, vision_language_model

LOADABLE = [name for name in ARCHITECTURES if name != "mllama_text_model"]
"""It is in no AutoModel's list; mllama as a whole is."""
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    """The cache of a Hub that cannot be reached."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("llama"))


def loaded(folder, **settings):
    return load_model(ModelSettings(name=str(folder), **settings), "cpu")


def shapes(layout):
    """What a model without weights can tell."""
    return [replace(facts, logits=None) for facts in layout.layers]


def refusal(load):
    with pytest.raises(ConfigError) as caught:
        load()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    return str(caught.value)


def tapped(model):
    """A tap of two texts."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(8, VOCABULARY, (2, 24), generator=generator)
    with qk_sniffer.tap(model, sampler="all") as tap:
        run_backbone(decoder_of(model), ids)
    return tap


def assert_same_vectors(model, other, tolerance=0.0):
    expected, got = tapped(model), tapped(other)
    assert got.layout == expected.layout
    assert got.heads == expected.heads
    for head in expected.heads:
        both = got.rows(head).vectors, expected.rows(head).vectors
        np.testing.assert_allclose(*both, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    "name", shown_by(LOADABLE, "llama", "gemma3_text", "gpt_oss", "gpt2", "deepseek_v3")
)
def test_a_loaded_model_gives_the_vectors_it_gave_before_saving(name, tmp_path):
    model, _ = probed(name)
    model.save_pretrained(tmp_path / "model")
    configs = (model.config, type(model.config).from_pretrained(tmp_path / "model"))
    saved, read = (config.to_dict().get("rope_parameters") for config in configs)
    needs(read == saved, "read rope parameters as it saved them")
    found = loaded(tmp_path / "model")
    assert not found.model.training
    assert found.attention == ARCHITECTURES[name].attention[0]
    assert found.dtype == "float32"
    assert found.context == 512
    assert found.commit is None
    assert_same_vectors(model, found.model)


@pytest.mark.parametrize("model_type", ["gemma3", "mllama"])
def test_a_vision_language_model_is_loaded_with_its_text_layers(model_type, tmp_path):
    model = vision_language_model(model_type)
    model.save_pretrained(tmp_path / "model")
    found = loaded(tmp_path / "model")
    assert found.context == 512
    assert_same_vectors(model, found.model)
    _, shape = shape_of(ModelSettings(name=str(tmp_path / "model")))
    assert shapes(shape) == shapes(probe(model))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # CPUs without bfloat16
def test_the_wanted_precision_leaves_rotary_frequencies_alone(llama):
    found = loaded(llama, dtype="bfloat16")
    assert found.dtype == "bfloat16"
    assert {weight.dtype for weight in found.model.parameters()} == {torch.bfloat16}
    assert found.model.rotary_emb.inv_freq.dtype == torch.float32
    exact = loaded(llama).model.rotary_emb.inv_freq
    assert torch.equal(found.model.rotary_emb.inv_freq, exact)


def changed_weights(llama, folder, change):
    shutil.copytree(llama, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


KEY = "model.layers.2.self_attn.k_proj.weight"


def test_missing_and_misshapen_weights_are_refused_by_name(llama, tmp_path):
    verbosity = transformers.logging.get_verbosity()
    less = changed_weights(llama, tmp_path / "less", lambda weights: weights.pop(KEY))
    message = refusal(lambda: loaded(less))
    assert message.startswith(f"model.name: {less}: 1 weights are missing or have the wrong")
    assert "layers.2.self_attn.k_proj.weight" in message
    misshapen = changed_weights(
        llama, tmp_path / "misshapen", lambda weights: weights.update({KEY: torch.zeros(3, 3)})
    )
    assert "layers.2.self_attn.k_proj.weight" in refusal(lambda: loaded(misshapen))
    assert "layers.4." in refusal(lambda: loaded(llama, config_overrides={"num_hidden_layers": 5}))
    assert transformers.logging.get_verbosity() == verbosity


def test_places_that_are_no_model_are_refused(llama, tmp_path):
    assert refusal(lambda: loaded(tmp_path / "no")) == (
        f"model.name: {tmp_path / 'no'}: does not exist"
    )
    assert refusal(lambda: loaded(llama / "config.json")) == (
        f"model.name: {llama / 'config.json'}: is a file; give its folder (and model.gguf_file "
        "for a GGUF file)"
    )
    (tmp_path / "empty").mkdir()
    no_model = f"model.name: {tmp_path / 'empty'}: holds no model (config.json)"
    assert refusal(lambda: loaded(tmp_path / "empty")) == no_model
    nowhere = ModelSettings(name=str(tmp_path / "empty"))
    assert refusal(lambda: load_tokenizer(TokenizerSettings(), nowhere)) == no_model
    shutil.copytree(llama, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert refusal(lambda: loaded(tmp_path / "cut")).startswith("model.name: ")
    weights.unlink()
    assert "model.safetensors" in refusal(lambda: loaded(tmp_path / "cut"))
    (tmp_path / "cut" / "config.json").write_text("{")
    assert "JSON" in refusal(lambda: loaded(tmp_path / "cut"))


@pytest.mark.parametrize("name", ["nobody/nothing", "not a name"])
def test_an_unknown_model_is_told_in_one_line(name):
    settings = ModelSettings(name=name)
    for load in (lambda: load_model(settings, "cpu"), lambda: shape_of(settings)):
        assert refusal(load).startswith(
            f"model.name: {name}: is neither a local folder nor a model"
        )
    message = refusal(lambda: load_tokenizer(TokenizerSettings(), settings))
    assert message.startswith(f"model.name: {name}: is neither a local folder nor")


def test_a_model_of_the_hub_is_remembered_by_its_commit(hub):
    repository = hub / "models--nobody--tiny"
    save_tiny_model(repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    for branch in ("main", "step-1"):
        (repository / "refs" / branch).write_text(COMMIT)
    assert loaded("nobody/tiny").commit == COMMIT
    assert loaded("nobody/tiny", revision="step-1").commit == COMMIT
    assert loaded("nobody/tiny", config_overrides={"rope_parameters": YARN}).commit == COMMIT
    assert refusal(lambda: loaded("nobody/tiny", revision="step-2")).startswith("model.name: ")
    model = ModelSettings(name="nobody/tiny")
    load_tokenizer(TokenizerSettings(revision="main"), model)
    older = TokenizerSettings(revision="older")
    assert refusal(lambda: load_tokenizer(older, model)).startswith("tokenizer.")


def with_code_of_its_own(llama, folder, trace):
    shutil.copytree(llama, folder)
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "mine"
    config["auto_map"] = {"AutoConfig": "mine.MyConfig", "AutoModel": "mine.MyModel"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig, LlamaModel\n"
        f"Path({str(trace)!r}).touch()\n"
        "class MyConfig(LlamaConfig):\n"
        "    model_type = 'mine'\n"
        "class MyModel(LlamaModel):\n"
        "    config_class = MyConfig\n"
    )
    return folder


def test_code_of_a_model_runs_only_when_trusted(llama, tmp_path, monkeypatch):
    modules = sys.modules["transformers.dynamic_module_utils"]
    monkeypatch.setattr(modules, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path)
    trace = tmp_path / "ran"
    folder = with_code_of_its_own(llama, tmp_path / "model", trace)
    settings = ModelSettings(name=str(folder))
    for load in (lambda: load_model(settings, "cpu"), lambda: shape_of(settings)):
        assert refusal(load) == (
            f"model.name: {folder}: needs its own code; if you trust this code, set "
            "model.trust_remote_code"
        )
    assert not trace.exists()
    before = sorted(folder.rglob("*"))
    found = loaded(folder, trust_remote_code=True)
    assert sorted(folder.rglob("*")) == before
    assert trace.exists()
    assert type(found.model).__name__ == "MyModel"
    assert_same_vectors(loaded(llama).model, found.model)


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [(gguf.GGMLQuantizationType.F32, 1e-5), (gguf.GGMLQuantizationType.Q8_0, 0.1)],
    ids=["F32", "Q8_0"],
)
def test_a_gguf_file_gives_the_vectors_of_the_model_it_was_made_from(tmp_path, kind, tolerance):
    model, layout = probed("llama")
    save_gguf(model, tmp_path / "tiny.gguf", kind)
    settings = ModelSettings(name=str(tmp_path), gguf_file="tiny.gguf")
    found = load_model(settings, "cpu")
    assert_same_vectors(model, found.model, tolerance)
    assert shapes(shape_of(settings)[1]) == shapes(layout)
    assert load_tokenizer(TokenizerSettings(), settings).vocab_size == VOCABULARY
    assert "no.gguf" in refusal(lambda: loaded(tmp_path, gguf_file="no.gguf"))


def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    ARCHITECTURES["cohere2"].model("eager").save_pretrained(tmp_path)
    bare = ModelSettings(name=str(tmp_path))
    message = refusal(lambda: load_tokenizer(TokenizerSettings(), bare))
    assert message.startswith(f"tokenizer.name: {tmp_path}: ")


@pytest.mark.parametrize("name", ["sdqa", "flash_attention_2"])
def test_an_attention_that_cannot_be_used_is_told(llama, name):
    assert loaded(llama, attn_implementation="eager").attention == "eager"
    settings = ModelSettings(name=str(llama), attn_implementation=name)
    for load in (lambda: load_model(settings, "cpu"), lambda: shape_of(settings)):
        message = refusal(load)
        assert message.startswith(f"model.name: {llama}: ")
        assert name in message or "FlashAttention" in message


# model.config_overrides


LINEAR = {"rope_type": "linear", "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "original_max_position_embeddings": 512,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
}


def config_of(folder, overrides):
    return load_model_config(ModelSettings(name=str(folder), config_overrides=overrides))


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_rope_overrides_keep_what_they_do_not_mention(llama, name):
    config = config_of(llama, {name: YARN})
    assert dict(config.rope_parameters) == {"rope_theta": 10_000.0, **YARN}
    found = loaded(llama, config_overrides={name: YARN})
    assert found.text_config.rope_parameters["rope_type"] == "yarn"
    plain = loaded(llama)
    assert not torch.equal(found.model.rotary_emb.inv_freq, plain.model.rotary_emb.inv_freq)


def test_overrides_reach_into_nested_configs(tmp_path):
    vision_language_model("gemma3").save_pretrained(tmp_path / "model")
    config = config_of(tmp_path / "model", {"text_config": {"max_position_embeddings": 1024}})
    assert config.text_config.max_position_embeddings == 1024
    assert config.text_config.sliding_window == 8
    assert config.vision_config.hidden_size == 32
    message = refusal(
        lambda: config_of(tmp_path / "model", {"text_config": {"max_position_embedings": 1024}})
    )
    assert "did you mean" in message
    assert "max_position_embeddings?" in message


def test_a_rope_override_that_would_reach_no_layer_is_refused(tmp_path):
    folder = save_tiny_model(tmp_path / "model", "gemma3_text")
    config = config_of(folder, {"rope_parameters": {"full_attention": LINEAR}})
    assert config.rope_parameters["full_attention"] == {"rope_theta": 1_000_000.0, **LINEAR}
    assert config.rope_parameters["sliding_attention"]["rope_type"] == "default"
    message = refusal(lambda: config_of(folder, {"rope_parameters": YARN}))
    assert message.startswith("model.config_overrides: ")
    assert "full_attention" in message


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"rope_paramters": YARN}, "has no such field; did you mean rope_parameters?"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "factor"),
        ({"rope_parameters": {"rope_type": "nonsense"}}, "rope_type"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings"),
        ({"rope_scaling": {**LONGROPE, "short_factor": 1.0}}, "short_factor"),
        ({"hidden_act": "nonsense"}, "nonsense"),
    ],
)
def test_overrides_that_cannot_be_are_refused(llama, overrides, told):
    settings = ModelSettings(name=str(llama), config_overrides=overrides)
    for load in (lambda: load_model(settings, "cpu"), lambda: shape_of(settings)):
        message = refusal(load)
        assert message.startswith(("model.config_overrides: ", f"model.name: {llama}: "))
        assert told in message
