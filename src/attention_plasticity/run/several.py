"""Several dumps in one command: the settings of each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from attention_plasticity.config import RunnerConfig
from qk_dump.hub.branches import dumps_on_branches
from qk_dump.hub.place import is_every_branch, is_hub_path, parse_place
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import resolved, user_path
from qk_toolkit.urls import is_url, require_usable, url_name, without_file_scheme


def is_multi_dump(dumps: Sequence[str]) -> bool:
    """Whether these are several dumps: more than one, or every branch of a dataset."""
    return len(dumps) > 1 or any(map(is_every_branch, dumps))


def configs_of(
    config: RunnerConfig, dumps: Sequence[str], note: Callable[[str], None] = lambda text: None
) -> list[RunnerConfig]:
    """One config per dump. Every run has a folder in `output_dir`, named after its dump.

    `hf://datasets/owner/name@*` stands for every branch with heads. `note` gets messages about it.
    """
    for name in ("dataset_local_root", "model_dir", "rotary"):
        if getattr(config, name) is not None:
            raise ConfigError(f"{name}: cannot be used together with several dumps; choose one")
    dumps = [one for dump in dumps for one in _with_branches(dump, note)]
    names = [_name(dump) for dump in dumps]
    for name, number in Counter(names).items():
        if number > 1:
            raise ConfigError(
                f"dumps: {number} of them have the name {name}, and their runs would have one "
                "folder; analyse them one by one, each with an output_dir"
            )
    base = (config.output_dir or "results").rstrip("/")
    return [
        config.model_copy(
            update={"dataset_local_root": dump, "dumps": None, "output_dir": f"{base}/{name}"}
        )
        for dump, name in zip(dumps, names, strict=True)
    ]


def _with_branches(dump: str, note: Callable[[str], None]) -> list[str]:
    return dumps_on_branches(dump, note) if is_every_branch(dump) else [dump]


def _name(dump: str) -> str:
    if is_hub_path(dump) and "@" in dump:
        place = parse_place(dump)
        return "-".join(filter(None, (place.revision, place.folder))).replace("/", "-")
    if is_url(without_file_scheme(dump)):
        return url_name(require_usable(dump))
    return resolved(user_path(without_file_scheme(dump))).name
