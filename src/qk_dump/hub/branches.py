"""All dumps of a dataset on the Hub: every branch with heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qk_dump.hub.client import hub_api, hub_errors, repeated
from qk_dump.hub.files import branch_commits, list_files
from qk_dump.hub.heads import folders_with_heads
from qk_dump.hub.place import SCHEME, HubPlace, parse_place
from qk_toolkit.errors import ConfigError


def dumps_on_branches(path: str, note: Callable[[str], None] = lambda text: None) -> list[str]:
    """A path for every branch of the dataset that has heads, sorted by name.

    A branch without heads, such as a main branch with the card only, is noted and left out.
    """
    place = parse_place(path)
    with hub_errors(place, "fetching"):
        folders = repeated(lambda: _folders_of_branches(place))
    wanted = place.folder
    having = [name for name, found in folders.items() if (wanted in found if wanted else found)]
    without = [name for name in folders if name not in having]
    if without:
        note(f"{place.repo}: left out, because they have no heads: {', '.join(without)}")
    if not having:
        raise ConfigError(f"{path}: no branch of the dataset has heads")
    return [f"{SCHEME}{replace(place, revision=name)}" for name in having]


def _folders_of_branches(place: HubPlace) -> dict[str, list[str]]:
    api = hub_api()
    commits = branch_commits(api, place)
    return {
        name: folders_with_heads(list_files(api, place, commit)) for name, commit in commits.items()
    }
