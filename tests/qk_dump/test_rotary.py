"""The rotary record and the rotation of vectors."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.cohere.modeling_cohere import (
    apply_rotary_pos_emb as interleaved_rope,
)
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halves_rope

from qk_dump.rotary import RotaryError, RotaryRecord, rotate

FAR = 2**20
POSITIONS = st.integers(0, FAR)


@st.composite
def records(draw: st.DrawFn) -> RotaryRecord:
    pairs = draw(st.integers(1, 6))
    theta = draw(st.floats(10, 1e8))
    return RotaryRecord(
        tuple(theta ** (-m / pairs) for m in range(pairs)),
        draw(st.integers(0, 5)),
        draw(st.sampled_from(["halves", "interleaved"])),
        draw(st.floats(0.5, 2)),
    )


def some_vectors(record: RotaryRecord, n: int = 7, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(n, record.end + 3))  # (n, d)


def rotated_plainly(vectors: Any, positions: Any, targets: Any, record: RotaryRecord) -> Any:
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
def test_rotations_obey_their_laws(
    record: RotaryRecord, positions: list[int], target: int, seed: int
) -> None:
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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_a_rotation_is_exact_to_rounding_at_far_positions(pairing: Any, dtype: Any) -> None:
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
def test_a_rotation_from_zero_is_that_of_transformers(pairing: Any, apply: Any) -> None:
    record = RotaryRecord(tuple(1e4 ** (-m / 8) for m in range(8)), 0, pairing)
    vectors = torch.randn(1, 3, 40, 16, generator=torch.Generator().manual_seed(0))
    angles = torch.arange(40)[:, None] * torch.tensor(record.frequencies)  # (s, 8)
    both = angles.repeat_interleave(2, 1) if pairing == "interleaved" else angles.repeat(1, 2)
    expected, _ = apply(vectors, vectors, both.cos()[None], both.sin()[None])
    for head in range(3):
        found = rotate(vectors[0, head].numpy(), 0, np.arange(40), record)
        np.testing.assert_allclose(found, expected[0, head].numpy(), atol=1e-5)


def test_the_given_vectors_stay_as_they_are() -> None:
    vectors = np.ones((2, 4), np.float32)
    rotate(vectors, [0, 1], 5, RotaryRecord((1.0, 0.1)))
    assert (vectors == 1).all()


@settings(max_examples=30, deadline=None)
@given(records())
def test_a_record_survives_json(record: RotaryRecord) -> None:
    text = json.dumps(record.to_json(), allow_nan=False)
    assert RotaryRecord.from_json(json.loads(text)) == record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frequencies": None}, "expected a list"),
        ({"frequencies": []}, "1 to 2048"),
        ({"frequencies": [0.1] * 3000}, "1 to 2048"),
        ({"frequencies": [1.0, math.nan]}, "frequencies: expected numbers"),
        ({"frequencies": [1.0, math.inf]}, "frequencies: expected numbers"),
        ({"frequencies": [1.0, True]}, "frequencies: expected numbers"),
        ({"frequencies": [1.0, 10**400]}, "frequencies: expected numbers"),
        ({"frequencies": [1.0, "0.1"]}, "frequencies: expected numbers"),
        ({"dimensions": 3}, "expected 4"),
        ({"dimensions": 6}, "expected 4"),
        ({"start": -1}, "start"),
        ({"start": 1.5}, "start"),
        ({"start": 10**9}, "start"),
        ({"pairing": "pairs"}, "halves or interleaved"),
        ({"pairing": ["halves"]}, "halves or interleaved"),
        ({"scaling": 0}, "positive"),
        ({"scaling": math.nan}, "positive"),
    ],
)
def test_a_record_that_cannot_be_used_is_refused(change: dict[str, Any], message: str) -> None:
    content = {**RotaryRecord((1.0, 0.1)).to_json(), **change}
    with pytest.raises(RotaryError, match=message):
        RotaryRecord.from_json(content)


def test_vectors_that_are_too_narrow_are_refused() -> None:
    with pytest.raises(RotaryError, match="2 to 5 do not fit vectors of 4"):
        rotate(np.zeros((1, 4)), 0, 1, RotaryRecord((1.0, 0.1), 2))
    with pytest.raises(RotaryError, match="expected an object"):
        RotaryRecord.from_json([1.0])
    with pytest.raises(ValueError, match="two axes"):
        rotate(np.zeros(4), 0, 1, RotaryRecord((1.0, 0.1)))
