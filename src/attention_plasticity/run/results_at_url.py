"""Results at a URL: a run works in a local folder, and its files are sent while it works.

Heads that are recorded at the URL are fetched first, so that a run continues on another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from threading import Thread

from filelock import FileLock

from attention_plasticity.metrics import TABLES
from attention_plasticity.run.outputs import PREVIOUS, RUN_FILE, OutputPaths, sha256_of
from attention_plasticity.run.records import FOLDER, head_of_record, is_intact
from attention_plasticity.run.run_info import read_run_info
from qk_dump.hub.place import is_hub_path, parse_place
from qk_dump.hub.push import open_branch, push_files
from qk_toolkit.errors import ConfigError, HubError, StoreError
from qk_toolkit.mirror import Mirror, mirror_folder
from qk_toolkit.store import DamagedFileError
from qk_toolkit.uploads import Uploads
from qk_toolkit.watcher import Watcher

Head = tuple[int, int]


class Destination:
    """Where the files of a run go after they are written. Nothing is to be done for a folder."""

    def begin(self) -> None:
        """The run has written its first files. Raises if files cannot be sent."""

    def finish(self) -> None:
        """All files are written."""

    @property
    def recorded(self) -> int | None:
        """Number of heads that are recorded at the URL, by any shard; None for a folder."""
        return None

    @property
    def threads(self) -> list[Thread]:
        """Threads that still send files of the folder, which stays locked for them."""
        return []


class _AtUrl(Destination):
    def __init__(self, mirror: Mirror, uploads: Uploads) -> None:
        self._mirror = mirror
        self._uploads = uploads

    def begin(self) -> None:
        self._uploads.begin()

    def finish(self) -> None:
        self._uploads.finish()
        self._mirror.clear()

    @property
    def recorded(self) -> int:
        return sum(head_of_record(name) is not None for name in self._mirror.listed)

    @property
    def threads(self) -> list[Thread]:
        return self._uploads.threads


class _OnTheHub(Destination):
    """A branch of a dataset, which gets the tables in one commit at the end of the run.

    Records are not sent, because every upload is a commit. They stay in the local folder.
    """

    def __init__(self, paths: OutputPaths) -> None:
        self._paths = paths
        self._place = parse_place(paths.place)

    def begin(self) -> None:
        open_branch(self._place)

    def finish(self) -> None:
        files = {path.name: path for path in self._paths.all if path.exists()}
        usual = {table.file for table in TABLES.values()}
        try:
            push_files(files, self._place, usual.__contains__)
        except HubError as error:
            raise HubError(f"{error}; all files are kept in {self._paths.folder}") from error


@contextmanager
def destination(
    paths: OutputPaths, watcher: Watcher, only: Collection[Head] | None = None
) -> Iterator[Destination]:
    """Fetch what is recorded at the URL, and send new files during the block.

    `only` limits this to the heads of a shard. The folder of the run is locked by the caller.
    """
    if paths.url is None:
        yield Destination()
        return
    if is_hub_path(paths.url):
        yield _OnTheHub(paths)
        return
    mirror = results_mirror(paths.url, paths.folder, watcher.note)
    fetch_results(mirror, paths, only)
    uploads = Uploads(mirror, watcher.note)
    try:
        yield _AtUrl(mirror, uploads)
    finally:
        uploads.stop()


def results_mirror(
    url: str, folder: Path, note: Callable[[str], None] = lambda text: None
) -> Mirror:
    """The mirror of the folder of a run."""
    return Mirror(url, folder, last=RUN_FILE, hidden=(FOLDER,), note=note)


def fetch_results(mirror: Mirror, paths: OutputPaths, only: Collection[Head] | None = None) -> None:
    """Fetch records and tables of an earlier run at the URL.

    Files that are damaged at the URL are noted. The run makes them again.
    """
    digests = _table_hashes(paths)

    def is_damaged(name: str) -> bool:
        path = paths.folder / name
        if name.startswith(f"{FOLDER}/"):
            return not is_intact(path)
        return name in digests and sha256_of(path) != digests[name]

    mirror.pull(_wanted(paths, only), is_damaged=is_damaged, repairs=True)
    for name in mirror.listed:
        first = PurePosixPath(name).parts[0]
        if first.startswith(f"{PREVIOUS}-"):  # so that this name is not used again
            (mirror.folder / first).mkdir(parents=True, exist_ok=True)


def fetch_records(url: str) -> Path:
    """Fetch the records of the shards at a URL. Returns the local folder."""
    folder = mirror_folder(url, "records")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        try:
            results_mirror(url, folder).pull_exactly(lambda name: name.startswith(f"{FOLDER}/"))
        except DamagedFileError as error:
            raise StoreError(f"{error}; run the analysis or the shard again") from error
    return folder


def _wanted(paths: OutputPaths, only: Collection[Head] | None) -> Callable[[str], bool]:
    own = {path.name for path in (*paths.all, paths.log)}

    def wanted(name: str) -> bool:
        if name.startswith(f"{FOLDER}/"):
            head = head_of_record(name)
            return head is None or only is None or head in only
        return only is None and "/" not in name and (name in own or name.endswith(".csv"))

    return wanted


def _table_hashes(paths: OutputPaths) -> dict[str, str]:
    """The hashes that run.json gives for tables, by name; empty if it cannot be read."""
    try:
        run = read_run_info(paths.run)
    except (FileNotFoundError, ConfigError):
        return {}
    names, hashes = run.get("tables", {}), run.get("sha256", {})
    return {names[kind]: digest for kind, digest in hashes.items() if kind in names}
