"""A finished run at a URL, fetched into the cache folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from attention_plasticity.run.outputs import RUN_FILE
from attention_plasticity.run.run_info import read_run_info
from attention_plasticity.tables.csv_tables import FILE_NAMES
from qk_toolkit.errors import ConfigError, StoreError
from qk_toolkit.mirror import Mirror, mirror_folder
from qk_toolkit.store import DamagedFileError


def fetched_run(url: str) -> Path:
    """Fetch run.json and the tables of a run, if they have changed. Returns the local folder."""
    folder = mirror_folder(url, "read")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"), _damage_reported():
        mirror = Mirror(url, folder, last=RUN_FILE)
        mirror.pull_exactly(lambda name: name == RUN_FILE)
        tables = set(FILE_NAMES.values())
        if (folder / RUN_FILE).exists():
            tables = set(read_run_info(folder / RUN_FILE).get("tables", {}).values())
        mirror.pull(lambda name: name == RUN_FILE or name in tables)
        if not mirror.listed.keys() & {RUN_FILE, *tables}:
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
