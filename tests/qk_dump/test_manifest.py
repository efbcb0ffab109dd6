"""`dump.json`."""

import json
import math
import os

import pytest

from qk_dump.manifest import (
    MANIFEST_NAME,
    DumpManifest,
    plan_difference,
    read_manifest,
    read_plan,
    write_manifest,
)
from qk_toolkit.errors import ConfigError


def written(folder, text):
    path = folder / MANIFEST_NAME
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(path):
    with pytest.raises(ConfigError) as caught:
        read_manifest(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_what_was_written_is_read_back(tmp_path):
    full = DumpManifest(
        model="HuggingFaceTB/SmolLM2-135M",
        num_layers=30,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters={"rope_theta": 10000.0, "scaling": None},
        attention_scale=0.125,
        bucket_type="uniform",
        layers=[{"layer": 0, "window": None}],
        pre_rope=False,
        capture={"model": {"name": "a", "revision": None}},
    )
    write_manifest(tmp_path, full)
    assert read_manifest(tmp_path / MANIFEST_NAME) == full


def test_unknown_fields_are_kept_on_both_ways(tmp_path):
    path = written(tmp_path, json.dumps({"num_layers": 2, "note": {"é": [1, None]}}))
    manifest = read_manifest(path)
    assert manifest is not None
    write_manifest(tmp_path, manifest)
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "format_version": 1,
        "num_layers": 2,
        "note": {"é": [1, None]},
    }


def test_what_is_no_regular_file_is_refused_unopened(tmp_path):
    os.mkfifo(tmp_path / MANIFEST_NAME)
    said = "is not a regular file"
    assert f"cannot be read: {said}" in refusal(tmp_path / MANIFEST_NAME)
    with pytest.raises(ConfigError, match=rf"dump.json: cannot be read \({said}\)"):
        read_plan(tmp_path / MANIFEST_NAME)


GARBLED = {
    "half": (b"{", "is not JSON"),
    "a list": (b"[]", "dict"),
    "too large": (b" " * (16 << 20) + b"{}", "is larger than 16,777,216 bytes"),
}


@pytest.mark.parametrize(("content", "said"), GARBLED.values(), ids=GARBLED)
def test_what_json_should_not_hold_is_refused(tmp_path, content, said):
    message = refusal(written(tmp_path, content))
    assert said in message
    assert "remove the file" in message


WRONG = {
    "num_layers": [0, 1_001],
    "num_q_heads": [4_097],
    "min_bucket_size": [2**31],
    "head_dim": [1.5],
    "layers": [{"0": {}}, [{}] * 1_001],
    "layer_types": ["full_attention", ["full_attention"] * 1_001],
    "rope_parameters": [[]],
    "bucket_type": ["quadratic"],
    "num_examples": [-1],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_value_is_refused_with_the_field_named(tmp_path, field):
    for value in WRONG[field]:
        message = refusal(written(tmp_path, json.dumps({field: value})))
        assert f"{field}: " in message
        assert "works without it" in message


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"num_q_heads": 9, "num_k_heads": 2}, "num_q_heads: 9 is not a multiple of num_k_heads 2"),
        ({"num_layers": 1000, "num_q_heads": 263}, "are more than 262,144 heads in all"),
    ],
)
def test_heads_that_no_model_has_are_refused(tmp_path, facts, told):
    assert told in refusal(written(tmp_path, json.dumps(facts)))


@pytest.mark.parametrize("value", [-1.0, 1e300, math.nan, True, [1]])
def test_a_scale_or_soft_cap_that_no_logit_allows_is_refused(tmp_path, value):
    """The message names the layer and the value."""
    for name in ("scale", "softcap"):
        layers = [{"layer": 2, "scale": 0.125, "softcap": 30}, {"layer": 3, name: value}]
        message = refusal(written(tmp_path, json.dumps({"layers": layers})))
        assert f"layers: {name} of layer 3: expected a number from 1e-30 to 1e+30, got" in message
        assert "works without it" in message
    assert "attention_scale: " in refusal(written(tmp_path, json.dumps({"attention_scale": value})))


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 2]}}, None),
        ({"a": float("nan")}, {"a": float("nan")}, None),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, None),
        ({"a": 1}, {"a": 1.0}, "a (1 then, 1.0 now)"),
        ({"a": {"b": {"c": "x"}}}, {"a": {"b": {"c": None}}}, 'a.b.c ("x" then, null now)'),
        ({}, {"a": "absent"}, 'a (absent then, "absent" now)'),
        ({"a": {}}, {"a": {"b": 1}}, "a.b (absent then, 1 now)"),
        ({"a": 1, "b": 2}, {"b": 3, "a": 4}, "b (2 then, 3 now)"),
    ],
)
def test_the_first_difference_of_two_plans_is_told(then, now, told):
    assert plan_difference(then, now) == told


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"rotary": 1}, "rotary of layer 7: expected an object"),
        ({"rotary": {"frequencies": [1.0, "x"]}}, "frequencies: expected finite numbers"),
        ({"rotary": {"frequencies": [1.0], "dimensions": 3}}, "dimensions: expected 2"),
        ({"rotary": {"frequencies": [1.0], "start": -1}}, "start: expected"),
        ({"rotary": {"frequencies": [1.0], "pairing": "pairs"}}, "halves or interleaved"),
        ({"rotary": {"frequencies": [1.0], "scaling": 0}}, "scaling: expected a positive"),
        ({"rotary": {"frequencies": [1.0] * 4}, "head_dim": 6}, "do not fit vectors of 6"),
        ({"window": -1}, "layers: window of layer 7: expected a positive number of tokens or null"),
    ],
)
def test_a_layer_that_cannot_be_used_is_refused(tmp_path, entry, said):
    layers = [{"layer": 6}, {"layer": 7, **entry}]
    assert said in refusal(written(tmp_path, json.dumps({"layers": layers})))
