"""Names of datasets and branches on the Hub."""

from __future__ import annotations

import re
from dataclasses import dataclass

from qk_toolkit.errors import ConfigError

SCHEME = "hf://datasets/"
_NAME = r"[\w.-]+"
_PLACE = re.compile(rf"({_NAME}/{_NAME})(?:@([^@]+?))?(?:/({_NAME}))?")


@dataclass(frozen=True)
class HubPlace:
    """A dataset on the Hub, one of its branches (or tags, or commits), and a folder in it."""

    repo: str
    revision: str = "main"
    folder: str | None = None

    def __str__(self) -> str:
        revision = self.revision.replace("/", "%2F")  # as `parse_place` wants it
        return f"{self.repo}@{revision}" + (f"/{self.folder}" if self.folder else "")


def is_hub_path(text: str) -> bool:
    """Whether a path is one of the Hub's, `hf://datasets/owner/name@branch`."""
    return text.startswith("hf://")


def parse_place(text: str) -> HubPlace:
    """Read `owner/name`, `owner/name@branch` or the same after `hf://datasets/`.

    Slashes of a branch's name are written `%2F`; what follows a plain one is a folder.
    """
    match = _PLACE.fullmatch(text.removeprefix(SCHEME).rstrip("/"))
    if match is None or "/" in (match[2] or "") or (is_hub_path(text) and SCHEME not in text):
        raise ConfigError(f"{text}: expected owner/name@branch, or {SCHEME}owner/name@branch")
    return HubPlace(match[1], (match[2] or "main").replace("%2F", "/"), match[3])
