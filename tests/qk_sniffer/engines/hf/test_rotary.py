"""How RoPE turns queries and keys is measured, and a text's angles depend on that text alone."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import qk_sniffer
from qk_dump.layers import RotaryRecord
from qk_dump.rotary import rotate
from qk_sniffer.engines.engine import Rotation, Rotations
from qk_sniffer.engines.hf.layout import decoder_of
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.engines.hf.rotary import check_rotations
from qk_toolkit.errors import ConfigError
from rope_types import CONTEXT, DEPENDENT, model_of
from rotary_records import assert_records
from sniffing import sniff, sniff_first, tables_of
from tiny_models import (
    ARCHITECTURES,
    RARE,
    VOCABULARY,
    needs,
    needs_rare,
    other_model,
    probed,
    shown_by,
)
from tiny_texts import some_text, tiny_tokenizer

TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, 50).tolist()
_LLAMA = ARCHITECTURES["llama"].config
_MLA = ARCHITECTURES["deepseek_v3"].config
_MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
MORE = {
    "cohere": _LLAMA,
    "deepseek_v2": _MLA,
    "ernie4_5": {**_LLAMA, "head_dim": 16},
    "hunyuan_v1_dense": {**_LLAMA, "head_dim": 16},
    "nanochat": _LLAMA,
    "persimmon": {**_LLAMA, "partial_rotary_factor": 0.5},
    "phi": {**_LLAMA, "partial_rotary_factor": 0.5},
    "qwen2_vl_text": {**_LLAMA, "rope_parameters": _MROPE},
}


def model_for(name, dtype=torch.float32):
    if name in MORE:
        needs(name in CONFIG_MAPPING, f"have {name}")
        return other_model(name, MORE[name])
    if name in RARE:
        needs_rare(name)
    architecture = {**ARCHITECTURES, **RARE}[name]
    return architecture.model(architecture.attention[0], dtype)


@pytest.mark.parametrize("name", MORE)
def test_more_architectures_have_records(name):
    model = model_for(name)
    assert_records(name, model, probe(model))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # on processors without bfloat16
@pytest.mark.parametrize(
    "name", ["gpt2", "cohere2", "gemma3_text", "gpt_oss", "llama4_text", "deepseek_v3"]
)
def test_a_model_in_half_precision_has_the_record_of_the_same_model_in_float32(name):
    """Rounding is not taken for position, and records predict the text at shifted positions."""
    model = model_for(name, torch.bfloat16)
    layout = probe(model)
    for found, exact in zip(layout.layers, probed(name)[1].layers, strict=True):
        assert found.rotations.after == exact.rotations.after
        assert (found.rope, found.window) == (exact.rope, exact.window)
    checks = check_rotations(decoder_of(model), layout, TOKENS)
    assert [*checks] == [facts.layer for facts in layout.layers if facts.rope]
    assert all(check.agrees for check in checks.values())


def test_wrong_records_are_noticed():
    """Frequencies that are off by a thousandth, another pairing, another first dimension."""
    model = ARCHITECTURES["stablelm"].model("eager")
    layout = probe(model)
    record = layout.layers[0].rotations.after.record
    slower = tuple(frequency * 0.999 for frequency in record.frequencies)
    wrong = [
        replace(record, frequencies=slower),
        replace(record, pairing="interleaved"),
        replace(record, start=8),
        record,
    ]
    layers = tuple(
        replace(facts, rotations=Rotations(Rotation(one)))
        for facts, one in zip(layout.layers, wrong, strict=True)
    )
    changed = replace(layout, layers=layers)
    found = check_rotations(decoder_of(model), changed, TOKENS)
    assert [check.agrees for check in found.values()] == [False, False, False, True]


@pytest.mark.parametrize("name", ["deepseek_v3", "gpt_oss", "cohere2"])
def test_vectors_before_rope_become_those_after_it(name):
    """Up to the arrangement of dimensions, which no score depends on."""
    model = model_for(name)
    tokens = torch.randint(3, VOCABULARY, (1, 20), generator=torch.Generator().manual_seed(1))
    found = {}
    for pre_rope in (True, False):
        with (
            torch.inference_mode(),
            qk_sniffer.tap(model, sampler="all", pre_rope=pre_rope) as tapped,
        ):
            model(input_ids=tokens, use_cache=False)
        found[pre_rope] = [tapped.queries(0, 0), tapped.keys(0, 0)]
    rotation = tapped.layout.layers[0].rotations.before
    scores = {}
    for pre_rope, rows in found.items():
        q, k = (one.vectors.astype(np.float64) for one in rows)  # (20, d) each
        if pre_rope:
            q, k = (rotate(one, 0, np.arange(20), rotation.record) for one in (q, k))
            turned = slice(rotation.record.start, rotation.record.end)
            for one in (q, k):
                one[:, turned] *= rotation.record.scaling
        scores[pre_rope] = q @ k.T  # (20, 20)
    np.testing.assert_allclose(scores[True], scores[False], rtol=1e-4, atol=1e-3)


def test_a_norm_with_weights_after_rope_has_no_record():
    model = model_for("hunyuan_v1_dense")
    for name, weight in model.named_parameters():
        if name.endswith(("query_layernorm.weight", "key_layernorm.weight")):
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    for facts in probe(model).layers:
        assert facts.rotations.after.record is None
        assert "by more than a factor" in str(facts.rotations.after.problem)
        assert facts.rotations.before.record is not None


def test_frequencies_that_are_not_those_of_the_model_are_not_recorded():
    """A buffer with a plausible name is no proof."""
    model = ARCHITECTURES["llama"].model()
    rotary = decoder_of(model).rotary_emb
    true = rotary.inv_freq.clone()

    def faster(hidden, position_ids):
        angles = (position_ids[..., None] * true * 1.5).repeat(1, 1, 2)  # (1, s, 16)
        return angles.cos(), angles.sin()

    rotary.forward = faster
    for facts in probe(model).layers:
        assert facts.rotations.after == Rotation(
            problem="queries and keys do not turn with position_ids by any frequencies of the model"
        )


def test_a_model_that_takes_no_position_ids_has_no_record():
    model = ARCHITECTURES["llama"].model()
    decoder = decoder_of(model)
    usual = type(decoder)

    class Refuses(usual):
        def forward(self, *arguments, position_ids=None, **options):
            if position_ids is not None:
                raise TypeError("unexpected keyword argument 'position_ids'")
            return super().forward(*arguments, **options)

    class Ignores(usual):
        def forward(self, *arguments, position_ids=None, **options):
            return super().forward(*arguments, **options)

    for kind, problem in ((Refuses, "'position_ids'"), (Ignores, "do not change with")):
        decoder.__class__ = kind
        for facts in probe(model).layers:
            assert facts.rope
            assert facts.rotations.after.record is None
            assert problem in str(facts.rotations.after.problem)


@pytest.mark.parametrize("rope_type", sorted({*ROPE_INIT_FUNCTIONS, "default"}))
def test_every_rope_type_has_the_frequencies_of_its_texts(rope_type):
    """Texts are shorter than the original context, of both kinds, or longer."""
    model = model_of(rope_type)
    layout = probe(model)
    found = check_rotations(decoder_of(model), layout, TOKENS)  # shifted, they end beyond it
    assert [check.agrees for check in found.values()] == [True, True]
    assert layout.rotary_tables.are_initial()
    inv_freq = decoder_of(model).rotary_emb.inv_freq.double().tolist()
    scaling = decoder_of(model).rotary_emb.attention_scaling
    rotation = layout.layers[1].rotations.after
    short, mixed, long = (
        rotation.for_texts(lengths)
        for lengths in ((30, CONTEXT), (0, 30, 150), (CONTEXT + 1, 150, 0))
    )
    assert short.record == RotaryRecord(tuple(inv_freq), 0, "halves", scaling)
    if rope_type not in ("dynamic", "longrope"):
        assert short == mixed == long
        return
    assert mixed.record is None
    assert "texts of 30 and 150 tokens have different ones" in str(mixed.problem)
    if rope_type == "dynamic":
        assert "65 and 150" in str(long.problem)
        long = rotation.for_texts([150, 150])
    tokens = torch.zeros(1, 150, dtype=torch.int64)
    with torch.inference_mode():
        model(input_ids=tokens, use_cache=False)
    used = tuple(decoder_of(model).rotary_emb.inv_freq.double().tolist())
    assert long.record == RotaryRecord(used, 0, "halves", scaling)
    assert used != tuple(inv_freq)


def test_layer_types_with_the_same_frequencies_in_short_texts_are_told_apart():
    gemma = ARCHITECTURES["gemma3_text"]
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
    }
    model = replace(gemma, config={**gemma.config, "rope_parameters": rope}).model()
    for facts in probe(model).layers:
        rotation = facts.rotations.after.for_texts([100, 2000])
        assert (rotation.record is None) == (facts.type == "full_attention")
    assert not probe(gemma.model()).rotary_tables
    assert probe(model).rotary_tables


LENGTHS = (30, 150, 40, 20)  # shorter and longer than the original context


def vectors_by_text(dump):
    """Vectors of all heads by the number of characters of their text."""
    tables = {name: table.to_pandas() for name, table in tables_of(dump).items()}
    lengths = tables.pop("examples").set_index("example_id").num_tokens
    return {
        int(length): np.stack(
            [
                np.stack(table.vector[table.example_id == example].to_list())
                for table in tables.values()
            ]
        )
        for example, length in lengths.items()
    }


@pytest.mark.parametrize(
    "rope_type", shown_by(sorted({*ROPE_INIT_FUNCTIONS, "default"}), *DEPENDENT)
)
def test_a_text_is_captured_alike_in_any_company(rope_type, tmp_path, capsys, monkeypatch):
    model = tmp_path / "model"
    model_of(rope_type).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    for order in (1, -1):
        texts = tmp_path / f"texts{order}"
        texts.mkdir()
        for number, length in enumerate(LENGTHS[::order]):
            (texts / f"{number}.txt").write_text(some_text(length, seed=length))

    every_position = {
        "capture__sampler__type": "all",
        "tokenizer__max_length": 256,
    }

    def captured(name, order=1, **fields):
        settings = {**every_position, **fields}
        assert sniff(model, tmp_path / f"texts{order}", tmp_path / name, **settings) == 0
        return vectors_by_text(tmp_path / name)

    alone = captured("alone")
    for layer in json.loads((tmp_path / "alone" / "dump.json").read_text())["layers"]:
        assert (layer["rotary"] is None) == (rope_type in DEPENDENT)
        problem = layer.get("rotary_problem", "no problem")
        assert ("texts of 21 and 151 tokens" in problem) == (rope_type in DEPENDENT)
    assert "one at a time" not in capsys.readouterr().err
    together = captured("together", inference__batch_size=4)
    assert ("one at a time" in capsys.readouterr().err) == (rope_type in DEPENDENT)
    begun = (model, tmp_path / "texts-1", tmp_path / "resumed")
    sniff_first(monkeypatch, 2, *begun, **every_position)  # 20 and 40, then 150 and 30
    reversed_and_resumed = captured("resumed", order=-1)
    assert {*alone} == {length + 1 for length in LENGTHS}
    for length, expected in alone.items():
        np.testing.assert_array_equal(reversed_and_resumed[length], expected)
        np.testing.assert_allclose(together[length], expected, atol=1e-4)


@pytest.mark.parametrize("rope_type", ["longrope", "dynamic", "yarn"])
def test_a_tap_refuses_angles_that_depend_on_other_texts(rope_type):
    model = model_of(rope_type)
    generator = torch.Generator().manual_seed(0)
    long, short = (torch.randint(3, VOCABULARY, (1, n), generator=generator) for n in (99, 70))
    mask = torch.ones(2, 99, dtype=torch.int64)
    mask[1, 50:] = 0
    both = torch.cat([long, long])
    with torch.inference_mode(), qk_sniffer.tap(model, sampler="all") as tapped:
        model(input_ids=both, use_cache=False)
        if rope_type == "yarn":
            model(input_ids=both, attention_mask=mask, use_cache=False)
            assert tapped.lengths == [99, 99, 99, 50]
            return
        with pytest.raises(ConfigError, match="one at a time"):
            model(input_ids=both, attention_mask=mask, use_cache=False)
        # transformers 5.1 forgets the longest earlier sequence: it stores it under this name.
        forgets = hasattr(model.model.rotary_emb, "None_max_seq_len_cached")
        if rope_type == "dynamic" and not forgets:
            with pytest.raises(ConfigError, match="longest earlier sequence"):
                model(input_ids=short, use_cache=False)
            tapped.layout.rotary_tables.reset()
        model(input_ids=short, use_cache=False)
    first = tapped.queries(0, 0).vectors[2 * 99 :]
    with torch.inference_mode(), qk_sniffer.tap(model_of(rope_type), sampler="all") as fresh:
        fresh.model(input_ids=short, use_cache=False)
    np.testing.assert_array_equal(first, fresh.queries(0, 0).vectors)
