"""Models whose layers, masks or rotary functions are not where one looks for them first."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qk_sniffer
from qk_dump.manifest import MANIFEST_NAME
from qk_dump.source import open_dump
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.verify.comparison import verify_model
from rotary_records import assert_records
from tiny_models import RARE, VOCABULARY, Architecture, needs_rare

EVERY = [pytest.param(architecture, id=name) for name, architecture in RARE.items()]


def tokens(length: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (1, length), generator=generator)


def model_of(architecture: Architecture, implementation: str) -> Any:
    needs_rare(architecture.model_type)
    model = architecture.model(implementation)
    for weight in model.parameters():
        if not torch.isfinite(weight).all():  # some are left uninitialised
            torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("architecture", EVERY)
def test_layout_and_weights(architecture: Architecture) -> None:
    model = model_of(architecture, "eager")
    layout = probe(model)
    found = layout.layers
    assert tuple(facts.layer for facts in found) == architecture.layers
    assert layout.num_layers == architecture.num_layers
    assert layout.compressed_layers == architecture.compressed
    assert not {*architecture.compressed} & {*layout.layers_without_attention}
    assert {facts.q_heads for facts in found} == {architecture.q_heads}
    assert {facts.k_heads for facts in found} == {architecture.k_heads}
    assert {facts.width for facts in found} == {architecture.width}
    assert tuple(facts.window for facts in found) == architecture.windows
    assert tuple(facts.selective for facts in found) == architecture.selective
    assert tuple(facts.rope for facts in found) == architecture.rope
    assert_records(architecture.model_type, model, layout)
    other = model_of(architecture, architecture.attention[0])
    verified = verify_model(other, tokens()[0].tolist())
    assert tuple(layer.facts.layer for layer in verified.layers) == architecture.layers
    assert not verified.failed
    assert verified.worst.difference < 1e-6


@pytest.mark.parametrize("model_type", ["zamba2", "hrm_text"])
def test_uses_of_one_module_are_separate_layers(model_type: str, tmp_path: Path) -> None:
    model = model_of(RARE[model_type], "sdpa")
    with torch.inference_mode():
        plain = model(input_ids=tokens(), use_cache=False).logits
        with qk_sniffer.tap(model) as tapped:
            assert torch.equal(model(input_ids=tokens(), use_cache=False).logits, plain)
    layers = RARE[model_type].layers
    modules = {place.module for place in tapped.layout.places.values()}
    assert len(modules) == {"zamba2": 2, "hrm_text": 4}[model_type]  # of 2 and of 6 layers
    queries = [tapped.queries(layer, 1).vectors for layer in layers]
    for earlier, later in pairwise(queries):
        assert not np.allclose(earlier, later, atol=1e-3)
    tapped.save(tmp_path)
    assert {layer for layer, _ in open_dump(tmp_path).query_heads} == {*layers}


def test_what_a_dump_tells_of_its_layers(tmp_path: Path) -> None:
    told = {}
    for name in ("deepseek_v4", "minimax_m3_vl_text"):
        model = model_of(RARE[name], "eager")
        with qk_sniffer.tap(model) as tapped, torch.inference_mode():
            model(input_ids=tokens(), use_cache=False)
        told[name] = json.loads((tapped.save(tmp_path / name) / MANIFEST_NAME).read_text())
    compressed = ["compressed_attention"] * 2
    kinds = ["sliding_attention", *compressed, "sliding_attention"]
    assert told["deepseek_v4"]["layer_types"] == kinds
    layers = told["minimax_m3_vl_text"]["layers"]
    assert [layer.get("selective", False) for layer in layers] == [False, True] * 2
