"""Names of folders from labels of any kind."""

from __future__ import annotations

from pathlib import PurePosixPath

from hypothesis import given, settings
from hypothesis import strategies as st

from qk_dump.heads import parse_head
from qk_study.labels import folder_names


def test_names_of_usual_labels() -> None:
    labels = ["SmolLM2 135M", "owner/name@step-1", "Qwen3-0.6B", "ünï_code"]
    assert folder_names(labels) == ["smollm2-135m", "owner-name-step-1", "qwen3-0.6b", "uni_code"]


def test_hostile_labels_stay_inside_the_folder() -> None:
    labels = ["../x", "/etc/passwd", "..", ".hidden", "a/../../b", "模型", "l00h00q", "-rf"]
    names = folder_names(labels)
    assert names[:5] == ["x", "etc-passwd", "model", "hidden", "a-b"]
    assert names[5].startswith("model-")  # another label without a name
    assert names[6:] == ["model-l00h00q", "rf"]


def test_labels_with_one_name_have_different_folders() -> None:
    names = folder_names(["A b", "a-b", "a B"])
    assert names[0] == "a-b"
    assert len(set(names)) == 3
    assert folder_names(["other", "A b", "a-b"])[2] == names[1]  # by its label alone


@settings(max_examples=25)
@given(st.lists(st.text(max_size=200), unique=True, max_size=8))
def test_names_are_different_and_plain(labels: list[str]) -> None:
    names = folder_names(labels)
    assert len(set(names)) == len(labels)
    for name in names:
        assert PurePosixPath(name).name == name
        assert name.isascii()
        assert not name.startswith((".", "-"))
        assert parse_head(name) is None
        assert len(name) < 100
