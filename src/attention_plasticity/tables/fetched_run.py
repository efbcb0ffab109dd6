"""A finished run at a URL, fetched into the cache folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from attention_plasticity.metrics import TABLES
from attention_plasticity.tables.run_info import RUN_FILE
from qk_toolkit.errors import ConfigError, StoreError
from qk_toolkit.mirror import Mirror, mirror_folder
from qk_toolkit.store import DamagedFileError

_FILES = {RUN_FILE, *(table.file for table in TABLES.values())}


def fetched_run(url: str) -> Path:
    """Fetch run.json and the tables of a run, if they have changed. Returns the local folder."""
    folder = mirror_folder(url, "read")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"), _damage_reported():
        mirror = Mirror(url, folder, last=RUN_FILE)
        mirror.pull_exactly(lambda name: name in _FILES)
        if not mirror.listed.keys() & _FILES:
            raise ConfigError(
                f"{url}: holds neither {RUN_FILE} nor tables; give the output_dir of an analysis"
            )
    return folder


@contextmanager
def _damage_reported() -> Iterator[None]:
    try:
        yield
    except DamagedFileError as error:
        raise StoreError(f"{error}; run the analysis again") from error
