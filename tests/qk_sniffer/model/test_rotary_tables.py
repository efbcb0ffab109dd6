"""A text's vectors do not depend on other texts, whatever the rope type."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import qk_sniffer
from qk_sniffer.model.probing import probe
from qk_toolkit.errors import ConfigError
from rope_types import DEPENDENT, ROPE, model_of
from sniffing import sniff, sniff_first, tables_of
from tiny_models import ARCHITECTURES, VOCABULARY
from tiny_texts import some_text, tiny_tokenizer

LENGTHS = (30, 150, 40, 20)  # shorter and longer than the original context


def vectors_by_text(dump: Path) -> dict[int, Any]:
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


def test_every_rope_type_of_transformers_is_tested() -> None:
    assert {*ROPE_INIT_FUNCTIONS, "default"} <= {*ROPE}


@pytest.mark.parametrize("rope_type", sorted({*ROPE_INIT_FUNCTIONS, "default"}))
def test_a_text_is_captured_alike_in_any_company(
    rope_type: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tmp_path / "model"
    model_of(rope_type).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    for order in (1, -1):
        texts = tmp_path / f"texts{order}"
        texts.mkdir()
        for number, length in enumerate(LENGTHS[::order]):
            (texts / f"{number}.txt").write_text(some_text(length, seed=length))

    every_position: dict[str, object] = {
        "capture__sampler__type": "all",
        "tokenizer__max_length": 256,
    }

    def captured(name: str, order: int = 1, **fields: object) -> dict[int, Any]:
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
def test_a_tap_refuses_angles_that_depend_on_other_texts(rope_type: str) -> None:
    model = model_of(rope_type)
    generator = torch.Generator().manual_seed(0)
    long, short = (torch.randint(3, VOCABULARY, (1, n), generator=generator) for n in (99, 70))
    mask = torch.ones(2, 99, dtype=torch.int64)
    mask[1, 50:] = 0
    both = torch.cat([long, long])
    with torch.inference_mode(), qk_sniffer.tap(model) as tapped:
        model(input_ids=both, use_cache=False)
        if rope_type == "yarn":
            model(input_ids=both, attention_mask=mask, use_cache=False)
            assert tapped.lengths == [99, 99, 99, 50]
            return
        with pytest.raises(ConfigError, match="one at a time"):
            model(input_ids=both, attention_mask=mask, use_cache=False)
        if rope_type == "dynamic":
            with pytest.raises(ConfigError, match="longest earlier sequence"):
                model(input_ids=short, use_cache=False)
            tapped.layout.rotary_tables.reset()
        model(input_ids=short, use_cache=False)
    first = tapped.queries(0, 0).vectors[2 * 99 :]
    with torch.inference_mode(), qk_sniffer.tap(model_of(rope_type)) as fresh:
        fresh.model(input_ids=short, use_cache=False)
    np.testing.assert_array_equal(first, fresh.queries(0, 0).vectors)


def test_tables_of_layer_types_are_found() -> None:
    gemma = ARCHITECTURES["gemma3_text"]
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
    }
    dynamic = replace(gemma, config={**gemma.config, "rope_parameters": rope})
    assert not probe(gemma.model()).rotary_tables
    assert probe(dynamic.model()).rotary_tables
