"""Names of dumps on the Hub."""

from __future__ import annotations

import pytest

from qk_dump.hub.place import HubPlace, is_hub_path, parse_place
from qk_toolkit.errors import ConfigError

TINY = HubPlace("me/qk", "tiny")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("me/qk", HubPlace("me/qk")),
        ("me/qk@tiny/", TINY),
        ("hf://datasets/me/qk@tiny", TINY),
        ("hf://datasets/me/qk@tiny/model", HubPlace("me/qk", "tiny", "model")),
        ("me/qk/model", HubPlace("me/qk", "main", "model")),
        ("me/qk@team%2Fbig/model", HubPlace("me/qk", "team/big", "model")),
        ("my-org/qk.v1_2@v1.0-a_b", HubPlace("my-org/qk.v1_2", "v1.0-a_b")),
    ],
)
def test_names_of_dumps(text: str, place: HubPlace) -> None:
    assert parse_place(text) == place
    assert parse_place(str(place)) == place
    assert is_hub_path(text) == text.startswith("hf://")


@pytest.mark.parametrize(
    "text",
    ["", "qk", "me/", "/qk", "me/qk@", "me/q k", "me/qk@a@b", "me/qk@a/b/c", "hf://me/qk",
     "hf://models/me/qk", "hf://datasets/qk", "https://huggingface.co/datasets/me/qk"],
)  # fmt: skip
def test_what_names_no_dump(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected owner/name@branch, or hf://[^\n]*$"):
        parse_place(text)
