"""The rotary record of a layer, as the analysis uses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import attention_plasticity as ap
from attention_plasticity.head.layer import NO_ROTATION, LayerRotation, rotation_of
from dumps import make_dump
from qk_dump.manifest import DumpManifest
from qk_dump.rotary import RotaryRecord
from qk_dump.rotary_records import RotaryFile

RECORD = RotaryRecord((1.0, 0.1))
TURNING = {"layer": 0, "rope": True, "rotary": RECORD.to_json()}
COMMAND = "add it with: attention-plasticity add-rotary DUMP --model.name "


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> ap.Dump:
    root = make_dump(tmp_path_factory.mktemp("dump"), layers=1, q_heads=1, k_heads=1, n=20)
    return ap.open_dump(root)


def with_layer(dump: ap.Dump, entry: dict[str, Any], **facts: Any) -> ap.Dump:
    return replace(dump, manifest=DumpManifest(layers=[entry], **facts))


@pytest.mark.parametrize("pre_rope", [False, True])
def test_a_record_comes_from_dump_json(dump: ap.Dump, pre_rope: bool) -> None:
    found = rotation_of(with_layer(dump, TURNING, pre_rope=pre_rope), 0)
    assert found == LayerRotation(RECORD, pre_rope)


def test_a_file_of_records_comes_first(dump: ap.Dump) -> None:
    other = RotaryRecord((0.5, 0.25), pairing="interleaved")
    file = RotaryFile("rotary.json", "0" * 16, [TURNING | {"rotary": other.to_json()}], True)
    found = rotation_of(replace(with_layer(dump, TURNING), rotary=file), 0)
    assert found == LayerRotation(other, pre_rope=True)


def test_a_layer_without_rope_has_neither_record_nor_problem(dump: ap.Dump) -> None:
    entry = {"layer": 0, "rope": False, "rotary": None}
    assert rotation_of(with_layer(dump, entry), 0) == NO_ROTATION


def test_the_reason_of_the_capture_is_given(dump: ap.Dump) -> None:
    entry = {"layer": 0, "rope": True, "rotary": None, "rotary_problem": "frequencies differ"}
    assert rotation_of(with_layer(dump, entry), 0).problem == "frequencies differ"


def test_without_a_record_the_reason_names_the_command(dump: ap.Dump) -> None:
    entry = {"layer": 0, "rope": True}
    problem = rotation_of(with_layer(dump, entry, model="org/model"), 0).problem
    assert problem is not None
    assert problem.endswith(f"{COMMAND}org/model")
    problem = rotation_of(dump, 0).problem  # dump.json could not take the record
    assert problem is not None
    assert problem.endswith(
        f"{COMMAND}MODEL --output rotary.json, and analyze with --rotary rotary.json"
    )


def test_a_record_of_wider_vectors_is_a_problem(dump: ap.Dump) -> None:
    found = LayerRotation(RECORD)
    assert found.for_width(4) is found
    narrow = found.for_width(3)
    assert narrow.record is None
    assert "has 4 dimensions and the vectors have 3" in (narrow.problem or "")
