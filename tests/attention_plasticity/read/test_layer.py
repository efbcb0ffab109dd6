"""What the analysis knows about a layer: its rotary record, its logits, and which keys it sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import attention_plasticity as ap
from attention_plasticity.estimate.quantity import Unknown
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.read.layer import (
    NO_CHUNK_SIZE,
    LayerRotation,
    layer_facts,
    rotation_of,
)
from dumps import make_dump
from qk_dump.layers import RotaryFile, RotaryRecord, layer_records
from qk_dump.manifest import DumpManifest

RECORD = RotaryRecord((1.0, 0.1))
TURNING = {"layer": 0, "rope": True, "rotary": RECORD.to_json()}
COMMAND = "add it with: attention-plasticity add-rotary DUMP "


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> ap.Dump:
    root = make_dump(tmp_path_factory.mktemp("dump"), layers=1, q_heads=1, k_heads=1, n=20)
    return ap.open_dump(root)


def with_layer(dump: ap.Dump, entry: dict[str, Any], **facts: Any) -> ap.Dump:
    return replace(dump, manifest=DumpManifest(layers=[entry], **facts))


def test_a_file_of_records_comes_first(dump: ap.Dump) -> None:
    other = RotaryRecord((0.5, 0.25), pairing="interleaved")
    layers = layer_records([TURNING | {"rotary": other.to_json()}])
    file = RotaryFile("r.json", "0", layers, True, "", {})
    found = rotation_of(replace(with_layer(dump, TURNING), rotary=file), 0)
    assert found == LayerRotation(other, pre_rope=True)


def test_without_a_record_the_reason_names_the_command(dump: ap.Dump) -> None:
    entry = {"layer": 0, "rope": True}
    problem = rotation_of(with_layer(dump, entry, model="org/model"), 0).problem
    assert problem is not None
    assert problem.endswith(
        f"{COMMAND}org/model rotary.json, and analyze with --rotary rotary.json"
    )
    problem = rotation_of(dump, 0).problem
    assert problem is not None
    assert problem.endswith(f"{COMMAND}MODEL rotary.json, and analyze with --rotary rotary.json")


def test_a_record_of_wider_vectors_is_a_problem(dump: ap.Dump) -> None:
    found = LayerRotation(RECORD)
    assert found.for_width(4) is found
    narrow = found.for_width(3)
    assert narrow.record is None
    assert "has 4 dimensions and the vectors have 3" in (narrow.problem or "")


def test_logits_have_the_scale_of_the_layer_or_of_the_model(dump: ap.Dump) -> None:
    assert layer_facts(dump, 0, 8).scale is None
    told = with_layer(dump, {"layer": 0, "scale": 0.3, "softcap": 20.0}, attention_scale=0.5)
    found = layer_facts(told, 0, 8)
    assert (found.scale, found.softcap, found.logit_problem) == (0.3, 20.0, None)
    assert layer_facts(told, 1, 8).scale == 0.5


def test_a_layer_with_chunks_needs_their_size(dump: ap.Dump) -> None:
    chunked = layer_facts(with_layer(dump, TURNING | {"type": "chunked_attention"}), 0, 8)
    assert chunked.visible(16) == Visible(16, chunked=True)
    assert chunked.visible(None) == Unknown(NO_CHUNK_SIZE)
    full = layer_facts(dump, 0, 8)
    assert full.visible(None) == Visible()
    assert full.visible(16) == Visible(16)
