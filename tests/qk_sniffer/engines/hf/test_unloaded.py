"""Models made from a config alone: their shape, and how RoPE turns their queries and keys."""

import tempfile

import pytest
from transformers import AutoConfig

from qk_sniffer.config import ModelSettings
from qk_sniffer.engines.hf.layout import decoder_of
from qk_sniffer.engines.hf.loading import load_model_config
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.engines.hf.unloaded import shape_of, small_model
from qk_toolkit.errors import ConfigError
from tiny_models import ARCHITECTURES, RARE, probed, shown_by

MADE = [name for name in (*ARCHITECTURES, *RARE) if name != "mllama_text_model"]  # no AutoModel


def settings_of(config, **fields):
    folder = tempfile.mkdtemp()
    config.save_pretrained(folder)
    return ModelSettings(name=folder, **fields)


def assert_empty(settings, expected):
    """A model without weights has the same layout."""
    empty, layout = shape_of(settings)
    assert all(weight.is_meta for weight in empty.parameters())
    for one, other in zip(layout.layers, expected.layers, strict=True):
        facts = ("layer", "q_heads", "k_heads", "width", "type", "window", "scale", "rope")
        assert [getattr(one, name) for name in facts] == [getattr(other, name) for name in facts]
        assert one.pre_rope_known


@pytest.mark.parametrize(
    "name",
    shown_by(
        MADE, "llama", "gemma3_text", "gpt_oss", "llama4_text", "deepseek_v3", "longcat_flash"
    ),
)
def test_a_small_model_turns_its_vectors_as_the_model_does(name):
    """For every architecture, in all layers."""
    model, expected = probed(name)
    attention = {**ARCHITECTURES, **RARE}[name].attention[0]
    settings = settings_of(model.config, attn_implementation=attention)
    if name == "gpt_neox":
        read = load_model_config(settings).rope_parameters
        if read != model.config.rope_parameters:
            pytest.skip("transformers 5.1 does not read the rotary_pct that it writes")
    found = probe(small_model(settings))
    assert found.num_layers == expected.num_layers
    for one, other in zip(found.layers, expected.layers, strict=True):
        assert (one.layer, one.type, one.window) == (other.layer, other.type, other.window)
        assert (one.rope, one.width) == (other.rope, other.width)
        assert one.rotations == other.rotations
    _, shape = shape_of(settings, heads_only=True)
    for one, other in zip(shape.layers, expected.layers, strict=True):
        assert (one.q_heads, one.k_heads, one.width) == (other.q_heads, other.k_heads, other.width)
    if name in ARCHITECTURES:
        assert_empty(settings, expected)


@pytest.mark.parametrize(
    "name", ["gpt_neox", "deepseek_v3", pytest.param("gemma3n_text", marks=pytest.mark.long)]
)
def test_a_small_model_of_a_large_config_is_small(name):
    """The widths of heads are those of the config: 96, 192 and 256."""
    config = AutoConfig.for_model(name)
    if not getattr(config, "layer_types", None):
        config.num_hidden_layers = 5
    settings = settings_of(config)
    model = small_model(settings)
    assert sum(weight.numel() for weight in decoder_of(model).parameters()) < 50e6
    shape = shape_of(settings, heads_only=True)[1]
    found = probe(model).layers
    assert [facts.width for facts in found] == [facts.width for facts in shape.layers]
    assert all(facts.rotations.after.record is not None for facts in found)


def test_an_architecture_that_cannot_be_made_small_is_refused(monkeypatch):
    settings = settings_of(ARCHITECTURES["llama"].model().config)
    monkeypatch.setattr("qk_sniffer.engines.hf.unloaded._HEADS", 0)
    with pytest.raises(ConfigError, match="cannot be measured: a small model of this architect"):
        small_model(settings)
