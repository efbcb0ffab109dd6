"""The rotary record and the rotation of vectors."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as interleaved_rope
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halves_rope

from dumps import make_dump
from qk_dump.layers import RotaryError, RotaryFile, RotaryRecord, check_rotary, layer_records
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.rotary import rotate
from qk_dump.rotary_file import with_rotary, write_rotary_file
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError

FAR = 2**20
POSITIONS = st.integers(0, FAR)


@st.composite
def records(draw):
    pairs = draw(st.integers(1, 6))
    theta = draw(st.floats(10, 1e8))
    return RotaryRecord(
        tuple(theta ** (-m / pairs) for m in range(pairs)),
        draw(st.integers(0, 5)),
        draw(st.sampled_from(["halves", "interleaved"])),
        draw(st.floats(0.5, 2)),
    )


def some_vectors(record, n=7, seed=0):
    return np.random.default_rng(seed).normal(size=(n, record.end + 3))  # (n, d)


def rotated_plainly(vectors, positions, targets, record):
    result = np.array(vectors, np.float64)
    pairs = len(record.frequencies)
    for row, position, target in zip(result, positions, targets, strict=True):
        before = row.copy()
        for m, frequency in enumerate(record.frequencies):
            first, second = record.start + m, record.start + pairs + m
            if record.pairing == "interleaved":
                first, second = record.start + 2 * m, record.start + 2 * m + 1
            angle = math.fmod(frequency * (int(target) - int(position)), 2 * math.pi)
            a, b = before[first], before[second]
            row[first] = a * math.cos(angle) - b * math.sin(angle)
            row[second] = a * math.sin(angle) + b * math.cos(angle)
    return result


@settings(max_examples=60, deadline=None)
@given(records(), st.lists(POSITIONS, min_size=7, max_size=7), POSITIONS, st.integers(0, 99))
def test_rotations_obey_their_laws(record, positions, target, seed):
    vectors, others = some_vectors(record, seed=seed), some_vectors(record, seed=seed + 1)
    there = rotate(vectors, positions, target, record)
    np.testing.assert_allclose(rotate(there, target, positions, record), vectors, atol=1e-12)
    halfway = rotate(vectors, positions, 4321, record)
    np.testing.assert_allclose(rotate(halfway, 4321, target, record), there, atol=2e-8)
    shift = np.asarray(positions) + target
    one, other = (rotate(rows, positions, shift, record) for rows in (vectors, others))
    np.testing.assert_allclose((one * other).sum(1), (vectors * others).sum(1), atol=1e-11)
    np.testing.assert_array_equal(one[:, : record.start], vectors[:, : record.start])
    np.testing.assert_array_equal(one[:, record.end :], vectors[:, record.end :])
    plain = rotated_plainly(vectors, positions, [target] * 7, record)
    np.testing.assert_allclose(there, plain, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_a_rotation_is_exact_to_rounding_at_far_positions(pairing, dtype):
    """The rows cross the border of a block."""
    record = RotaryRecord(tuple(1e4 ** (-m / 32) for m in range(32)), 0, pairing)
    generator = np.random.default_rng(1)
    vectors = generator.normal(size=(5000, 64)).astype(dtype)
    positions, targets = generator.integers(0, FAR, (2, 5000))
    found = rotate(vectors, positions, targets, record)
    assert found.dtype == (np.float64 if dtype == np.float64 else np.float32)
    expected = rotated_plainly(vectors[::50], positions[::50], targets[::50], record)
    rounding = 1e-9 if dtype == np.float64 else 2.0**-22
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    assert (abs(found[::50] - expected) / lengths).max() < rounding
    assert rotate(vectors[:0], [], [], record).shape == (0, 64)


@pytest.mark.parametrize(
    ("pairing", "apply"), [("halves", halves_rope), ("interleaved", interleaved_rope)]
)
def test_a_rotation_from_zero_is_that_of_transformers(pairing, apply):
    record = RotaryRecord(tuple(1e4 ** (-m / 8) for m in range(8)), 0, pairing)
    vectors = torch.randn(1, 3, 40, 16, generator=torch.Generator().manual_seed(0))
    angles = torch.arange(40)[:, None] * torch.tensor(record.frequencies)  # (s, 8)
    both = angles.repeat_interleave(2, 1) if pairing == "interleaved" else angles.repeat(1, 2)
    expected, _ = apply(vectors, vectors, both.cos()[None], both.sin()[None])
    for head in range(3):
        found = rotate(vectors[0, head].numpy(), 0, np.arange(40), record)
        np.testing.assert_allclose(found, expected[0, head].numpy(), atol=1e-5)


def entry(theta=1e4, factor=1.0, pairs=4, **facts):
    """A layer whose frequencies are those of rope parameters."""
    numbers = tuple(theta ** (-m / pairs) / factor for m in range(pairs))
    record = RotaryRecord(numbers).to_json()
    return {"layer": 0, "type": "full_attention", "head_dim": 8, "rotary": record, **facts}


DEFAULT = {"rope_type": "default", "rope_theta": 1e4}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}


@pytest.mark.parametrize(
    ("layer", "rope", "message"),
    [
        (entry(), DEFAULT, None),
        (entry(), None, None),
        (entry(5e5), DEFAULT, "frequency 1 is 0.0376.*, but rope_parameters give 0.1"),
        (entry(5e5), {"rope_type": "yarn", "rope_theta": 1e4}, None),  # not one formula
        (entry(factor=4.0), LINEAR, None),
        (entry(), LINEAR, "frequency 0 is 1, but rope_parameters give 0.25 .rope_type linear"),
        (entry(pairs=2), {**DEFAULT, "partial_rotary_factor": 0.5}, None),
        (entry(), {**DEFAULT, "partial_rotary_factor": 0.5}, "has 8 dimensions, but .* give 4"),
        (entry(), {"full_attention": DEFAULT, "sliding_attention": LINEAR}, None),
        (entry(), {"full_attention": LINEAR, "sliding_attention": DEFAULT}, "rope_type linear"),
        (entry(), {"main": LINEAR}, None),  # not a type of layer
        (entry(rotary=None), DEFAULT, None),
    ],
)
def test_frequencies_that_contradict_the_rope_parameters_are_refused(
    layer, rope, message, tmp_path
):
    records = layer_records([layer])
    if message is None:
        check_rotary(records, rope)
        return
    with pytest.raises(RotaryError, match=f"rotary of layer 0: .*{message}"):
        check_rotary(records, rope)
    write_manifest(tmp_path, DumpManifest(layers=[layer], rope_parameters=rope))
    with pytest.raises(ConfigError, match=rf"dump.json: layers: rotary of layer 0: .*{message}"):
        open_dump(make_dump(tmp_path, layers=1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"model": "b"}, "model is 'b' there and 'a' in"),
        ({"layers": [entry(5e5)], "rope_parameters": {**DEFAULT, "rope_theta": 5e5}}, "rope_theta"),
        ({"layers": [entry(5e5)]}, "rotary of layer 0: frequency 1"),
        ({"pre_rope": True}, "pre_rope is True there and False in"),
        ({"layers": []}, "has no entry for layer 0"),
        ({"layers": [entry(type="sliding_attention")]}, "type of layer 0 is 'sliding_attention'"),
        ({"layers": [entry(pairs=8)]}, "do not fit vectors of 8"),
    ],
)
def test_a_file_of_another_model_is_refused(change, message, tmp_path):
    """A file holds the name and the rope parameters of its model."""
    folder, path = make_dump(tmp_path / "dump", layers=1), tmp_path / "rotary.json"
    write_manifest(folder, DumpManifest(model="a", layers=[entry()], rope_parameters=DEFAULT))
    write_rotary_file(RotaryFile(str(path), "", layer_records([entry()]), False, "a", DEFAULT))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    dump = open_dump(folder)
    if message is None:
        found = with_rotary(dump, str(path)).rotary
        assert found.layers == layer_records([entry()])
        return
    with pytest.raises(ConfigError, match=message):
        with_rotary(dump, str(path))


def test_a_file_that_is_none_is_refused(tmp_path):
    dump, path = open_dump(make_dump(tmp_path / "dump", layers=1)), tmp_path / "rotary.json"
    with pytest.raises(ConfigError, match="cannot be read"):
        with_rotary(dump, str(path))
    for text, message in (("{}", "Field required"), ('{"format": "x"}', "expected 'rotary rec")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"format: .*{message}"):
            with_rotary(dump, str(path))
