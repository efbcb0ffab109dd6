"""Finding the dump a config speaks of."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumps import make_dump
from qk_dump.errors import ConfigError
from qk_dump.hub import locate_dump


@pytest.mark.parametrize("model_dir", [None, "model"])
def test_a_dump_on_this_machine_is_opened(tmp_path: Path, model_dir: str | None) -> None:
    make_dump(tmp_path / (model_dir or ""), layers=1, q_heads=1, k_heads=1, n=3)

    dump = locate_dump(str(tmp_path), model_dir, dataset_name="a/b", dataset_revision=None)

    assert dump.path == tmp_path / (model_dir or "")
    assert dump.query_heads == [(0, 0)]


@pytest.mark.parametrize(
    ("revision", "command"),
    [
        (None, "hf download a/b --repo-type dataset --local-dir dump"),
        ("qwen3-8b", "hf download a/b --repo-type dataset --revision qwen3-8b --local-dir dump"),
    ],
)
def test_without_a_folder_the_command_to_get_one_is_told(
    revision: str | None, command: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        locate_dump(None, None, dataset_name="a/b", dataset_revision=revision)
    assert command in str(caught.value)
    assert "--dataset_local_root" in str(caught.value)
