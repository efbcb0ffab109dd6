"""`verify` checks the rotary records with the text at shifted positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from qk_sniffer.model.layout import ModelLayout, decoder_of
from qk_sniffer.model.probing import probe
from qk_sniffer.model.rotation_fit import Rotation, Rotations
from qk_sniffer.verify.command import summary_lines
from qk_sniffer.verify.comparison import LayerCheck, Verification
from qk_sniffer.verify.rotation_check import RotationCheck, check_rotations
from rope_types import ROPE, model_of
from tiny_models import ARCHITECTURES, VOCABULARY

TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, 50).tolist()


@pytest.mark.parametrize("name", ["llama", "glm", "cohere2", "llama4_text", "deepseek_v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_records_predict_the_text_at_shifted_positions(name: str, dtype: torch.dtype) -> None:
    model = ARCHITECTURES[name].model("eager", dtype)
    layout = probe(model)
    found = check_rotations(decoder_of(model), layout, layout.layers, TOKENS)
    assert [*found] == [facts.layer for facts in layout.layers if facts.rope]
    assert all(check.agrees for check in found.values())


@pytest.mark.parametrize("rope_type", ROPE)
def test_every_rope_type_within_and_beyond_the_context(rope_type: str) -> None:
    """50 tokens are shorter than the original context, 50 shifted tokens end beyond it."""
    model = model_of(rope_type)
    layout = probe(model)
    found = check_rotations(decoder_of(model), layout, layout.layers, TOKENS)
    assert [check.agrees for check in found.values()] == [True, True]
    assert layout.rotary_tables.are_initial()


def test_wrong_records_are_noticed() -> None:
    """Frequencies that are off by a thousandth, another pairing, another first dimension."""
    model = ARCHITECTURES["stablelm"].model("eager")
    layout = probe(model)
    record = layout.layers[0].rotations.after.record
    assert record is not None
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
    changed = ModelLayout(layout.num_layers, layers)
    found = check_rotations(decoder_of(model), changed, layers, TOKENS)
    assert [check.agrees for check in found.values()] == [False, False, False, True]


def test_a_wrong_record_is_reported_in_the_last_line() -> None:
    layers = probe(ARCHITECTURES["llama"].model("eager")).layers
    problem = Rotations(Rotation(problem="the reason"))
    checks = (
        LayerCheck(layers[0], 1e-7, 0, 1e-5, 0.0, RotationCheck(1e-5, True)),
        LayerCheck(layers[1], 1e-7, 0, 1e-5, 0.0, RotationCheck(0.5, False)),
        LayerCheck(replace(layers[2], rotations=problem), 1e-7, 0, 1e-5, 0.0),
    )
    found = Verification(checks, 50, "float32")
    assert found.failed == [checks[1]]
    lines = summary_lines(found)
    assert "Layers 2 have no rotary record in a capture: the reason." in lines
    assert lines[-1].startswith("NOT faithful: the rotary records of layers 1 do not predict")
    assert summary_lines(Verification(checks[:1], 50, "float32"))[-1].startswith("Faithful")
