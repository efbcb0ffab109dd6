"""A finished run at a URL, fetched into the cache folder."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from attention_plasticity.metrics import TABLES
from attention_plasticity.tables.run_info import RUN_FILE
from qk_toolkit.cache import folder_of_url
from qk_toolkit.errors import ConfigError, StoreError
from qk_toolkit.store import DamagedFileError, Store
from qk_toolkit.sync import fetch_changed

_FILES = {RUN_FILE, *(table.file for table in TABLES.values())}


def fetched_run(url: str) -> Path:
    """Fetch run.json and the tables of a run, if they have changed. Returns the local folder."""
    folder = folder_of_url(url, "read")
    folder.mkdir(parents=True, exist_ok=True)
    store = Store(url)
    with FileLock(folder / ".lock"):
        found = {name: file for name, file in store.files().items() if name in _FILES}
        if not found:
            raise ConfigError(
                f"{url}: holds neither {RUN_FILE} nor tables; give the folder of an analysis"
            )
        try:
            fetch_changed(store, folder, found)
        except DamagedFileError as error:
            raise StoreError(f"{error}; run the analysis again") from error
    return folder
