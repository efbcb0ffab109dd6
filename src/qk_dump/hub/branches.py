"""All dumps of a dataset on the Hub: every branch with heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from qk_dump.hub.client import hub_api, hub_errors, with_retries
from qk_dump.hub.files import commit_id, list_files
from qk_dump.hub.place import SCHEME, HubPlace, parse_place
from qk_dump.layout import ATTENDED, parse_head
from qk_toolkit.errors import ConfigError, HubError, in_short


def dumps_on_branches(path: str, note: Callable[[str], None] = lambda text: None) -> list[str]:
    """A path for every branch of the dataset that has heads, sorted by name.

    A branch without heads, such as a main branch with the card only, is noted and left out.
    """
    place = parse_place(path)
    found: list[HubPlace] = []
    without: list[str] = []
    api = hub_api()
    with hub_errors(place, "fetching"):
        for branch, commit in _branches(api, place):
            one = replace(place, revision=branch)
            if _has_heads(list_files(api, one, commit), place.folder):
                found.append(one)
            else:
                without.append(branch)
    if without:
        note(f"{place.repo}: left out, because they have no heads: {', '.join(without)}")
    if not found:
        raise ConfigError(f"{path}: no branch of the dataset has heads")
    return [f"{SCHEME}{one}" for one in found]


def _branches(api: Any, place: HubPlace) -> list[tuple[str, str]]:
    """Names and commits of all branches, sorted."""
    refs = with_retries(lambda: api.list_repo_refs(place.repo, repo_type="dataset"))
    for branch in refs.branches:
        if not isinstance(branch.name, str) or not branch.name:
            raise HubError(
                f"{place}: the Hub gives {in_short(branch.name)} as the name of a branch; the "
                "answer was not used. Check HF_ENDPOINT."
            )
    return sorted((one.name, commit_id(one.target_commit, place)) for one in refs.branches)


def _has_heads(files: Iterable[str], folder: str | None) -> bool:
    """Whether there are heads in the root or one folder below it, or in the given folder."""
    for path in files:
        parent, _, name = path.rpartition("/")
        model, _, head = parent.rpartition("/")
        in_root_or_model = "/" not in model and model != ATTENDED
        expected = in_root_or_model if folder is None else model == folder
        if expected and name.endswith(".parquet") and parse_head(head) is not None:
            return True
    return False
