"""Settings from flags and YAML: where a value comes from."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from flat_settings import FlatSettings, from_flags, from_yaml, saved, yaml_error
from qk_toolkit.settings import parse_indices, settings_from, validated


def test_a_flag_overrides_yaml_and_yaml_overrides_the_default(tmp_path: Path) -> None:
    path = saved(tmp_path, "batch_size: 3\nrate: 0.25\n")
    found = from_flags("--batch_size", "4", yaml_path=path)
    assert found == FlatSettings(batch_size=4, rate=0.25)


def test_a_yaml_value_of_every_type(tmp_path: Path) -> None:
    text = (
        "{batch_size: 3, rate: 0.25, pre_rope: true, dtype: float, model: x, cache_dir: y, "
        "layers: 0-2}"
    )
    assert from_yaml(tmp_path, text) == FlatSettings(
        batch_size=3,
        rate=0.25,
        pre_rope=True,
        dtype="float",
        model="x",
        cache_dir="y",
        layers=[0, 1, 2],
    )


def test_empty_yaml_and_null_give_the_defaults(tmp_path: Path) -> None:
    for text in ("", "# nothing yet\n", "{}", "---\n", "cache_dir: null\nlayers: ~\nbuffer:\n"):
        assert from_yaml(tmp_path, text) == FlatSettings()


def test_fields_may_be_in_a_section_or_flat(tmp_path: Path) -> None:
    for text, size in (("run:\n  batch_size: 5\n", 5), ("batch_size: 5\n", 5), ("run:\n", 2)):
        assert from_yaml(tmp_path, text, section="run").batch_size == size
    message = yaml_error(tmp_path, "run:\n  bach_size: 5\n", section="run")
    assert message == "bach_size: unknown field; did you mean batch_size?"
    for text in ("run: 3\n", "run: [batch_size]\n"):
        assert "expected 'name: value' lines" in yaml_error(tmp_path, text, section="run")
    text = "run:\n  rate: 0.1\nmodel: x\nbuffer: 3\n"
    message = yaml_error(tmp_path, text, section="run")
    assert message == "run: must hold all fields; move these into it: model, buffer"


def test_settings_can_come_from_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("batch_size: 7",))
    writer.start()
    assert settings_from(FlatSettings, yaml_path=path).batch_size == 7
    writer.join()


# indices


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("8,0-3", [0, 1, 2, 3, 8]),
        ("0", [0]),
        ("4-4", [4]),
        ("1, 2 ,3", [1, 2, 3]),
        ("3,1-3", [1, 2, 3]),
        (5, [5]),
        ([2, 1, 2], [1, 2]),
        ([], []),
    ],
)
def test_indices_are_sorted_without_duplicates(given: object, expected: list[int]) -> None:
    assert parse_indices(given) == expected
    assert validated(FlatSettings, {"layers": given}).layers == expected
