"""Several dumps in one command: the settings of each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from attention_plasticity.config import RunnerConfig
from qk_dump.hub.place import is_hub_path
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import resolved, user_path


def configs_of(config: RunnerConfig, dumps: Sequence[str]) -> list[RunnerConfig]:
    """One config per dump. Every run has a folder in `output_dir`, named after its dump."""
    for name in ("dataset_local_root", "model_dir"):
        if getattr(config, name) is not None:
            raise ConfigError(f"{name}: cannot be used together with several dumps; choose one")
    if config.engine == "shards":
        raise ConfigError("engine: shards computes one dump; give one, or another engine")
    names = [_name(dump) for dump in dumps]
    for name, number in Counter(names).items():
        if number > 1:
            raise ConfigError(
                f"dumps: {number} of them have the name {name}, and their runs would have one "
                "folder; analyse them one by one, each with an output_dir"
            )
    base = Path(config.output_dir or "results")
    return [
        config.model_copy(
            update={"dataset_local_root": dump, "dumps": None, "output_dir": str(base / name)}
        )
        for dump, name in zip(dumps, names, strict=True)
    ]


def _name(dump: str) -> str:
    if is_hub_path(dump):
        return PurePosixPath(dump.rpartition("@")[2] or dump).name
    return resolved(user_path(dump)).name
