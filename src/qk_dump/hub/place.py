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
    """A dataset on the Hub, a branch (or tag, or commit), and optionally a folder in it."""

    repo: str
    revision: str = "main"
    folder: str | None = None

    def __str__(self) -> str:
        revision = self.revision.replace("/", "%2F")  # `parse_place` reads this form
        return f"{self.repo}@{revision}" + (f"/{self.folder}" if self.folder else "")

    def inside(self, name: str) -> str:
        """The path of a file in the branch."""
        return f"{self.folder}/{name}" if self.folder else name


def is_hub_path(text: str) -> bool:
    """Whether a path is on the Hub: `hf://datasets/owner/name@branch`."""
    return text.startswith("hf://")


def parse_place(text: str) -> HubPlace:
    """Read `owner/name`, `owner/name@branch` or the same after `hf://datasets/`.

    A slash in a branch name is written `%2F`. A folder may follow after a plain slash.
    """
    match = _PLACE.fullmatch(text.removeprefix(SCHEME).rstrip("/"))
    if match is not None and match[2] == "*":
        raise ConfigError(f"{text}: name one branch; study DUMP DUMP analyses several dumps")
    if match is None or "/" in (match[2] or "") or (is_hub_path(text) and SCHEME not in text):
        raise ConfigError(f"{text}: expected owner/name@branch, or {SCHEME}owner/name@branch")
    return HubPlace(match[1], (match[2] or "main").replace("%2F", "/"), match[3])
