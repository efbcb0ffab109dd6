"""YAML files that are meant to break the program are refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_plasticity import ConfigError, load_config

LAUGHS = "\n".join(
    [
        "a0: &a0 [lol]",
        *(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(12)),
        "seed: *a12",
    ]
)
HOSTILE = {
    "a list": "- a",
    "a number": "5",
    "nested lists": "seed: " + "[" * 5000 + "]" * 5000,
    "open lists": "[" * 100_000,
    "nested mappings": "seed: " + "{a: " * 5000,
    "a list in itself": "seed: &a [*a]",
    "billion laughs": LAUGHS,
    "a tag of Python": "seed: !!python/object/apply:os.system ['true']",
    "a timestamp": "seed: !!timestamp x",
    "30 digits": "seed: " + "9" * 30,
    "5,000 digits": "seed: " + "9" * 5000,
    "a NaN": "seed: .nan",
    "infinity": "max_rel_dist: .inf",
    "NUL": "seed: \0",
    "NUL in text": 'dataset_local_root: "a\\0b"',
    "tabs": "seed:\n\t3",
    "a list as key": "? [a]\n: b",
    "a large file": "# " + "x" * 2_000_000,
    "a mapping for text": "dataset_local_root: {a: 1}",
    "a section twice": "analysis: {seed: 1}\nseed: 2",
    "many indices": "layers: 0-99999999999",
    "odd indices": "layers: 3-1,,x",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(str(file))
    message = str(refused.value)
    assert message.startswith(str(file))
    assert "\n" not in message
    assert len(message) < 1000


@pytest.mark.parametrize("content", [b"dataset_local_root: \xe9", "seed: 3".encode("utf-16")])
def test_a_file_that_is_not_utf8_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"settings\.yaml"):
        load_config(str(file))
