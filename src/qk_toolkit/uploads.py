"""Files for a URL: they are sent when all of them are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path
from qk_toolkit.store import Store
from qk_toolkit.urls import is_remote


@dataclass(frozen=True)
class OutputFolder:
    """The local folder to write to. The files of a URL are sent from there."""

    folder: Path
    url: str | None = None

    def shown(self, path: Path) -> str:
        """The place of a file, as the user sees it."""
        if self.url is None:
            return str(path)
        return f"{self.url}/{path.relative_to(self.folder).as_posix()}"


@contextmanager
def output_folder(place: str) -> Iterator[OutputFolder]:
    """Yield a folder for the files of `place`. At the end, the files of a URL are sent."""
    if not is_remote(place):
        yield OutputFolder(user_path(place))
        return
    refuse_hub(place)
    store = Store(place)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        yield OutputFolder(folder, store.url)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        names = {path.relative_to(folder).as_posix(): path for path in files}
        store.each(lambda name: store.upload(names[name], name), names)


@contextmanager
def output_file(place: str) -> Iterator[tuple[Path, OutputFolder]]:
    """Yield a path for one file and files beside it, and their folder."""
    if not is_remote(place):
        path = user_path(place)
        yield path, OutputFolder(path.parent)
        return
    parent, _, name = place.rpartition("/")
    with output_folder(parent) as output:
        yield output.folder / name, output


def refuse_hub(url: str) -> None:
    """Raise a `ConfigError` for a URL of the Hub, where every file would be a commit."""
    if url.startswith("hf://"):
        raise ConfigError(
            f"{url}: files cannot be written to the Hub in this way; use a folder, or a URL such "
            "as s3://bucket/folder"
        )
