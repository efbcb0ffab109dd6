"""The folder of a run: where its tables, run.json and records are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attention_plasticity.config import TABLE_PATHS, RunnerConfig
from attention_plasticity.metrics import IDS, TABLES, TableKind
from attention_plasticity.run.records import FOLDER
from attention_plasticity.tables.run_info import RUN_FILE
from qk_dump.heads import parse_head
from qk_dump.layout import refuse_inside_dump, refuse_other_output
from qk_toolkit.cache import folder_of_url
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import open_regular, require_writable, resolved, user_path

_REMEDY = "Choose another output_dir."
_BEGIN = ",".join(IDS).encode()  # of every table that a copy may replace
_LONGEST_NAME = "x" * 80  # at least as long as the draft of a record


@dataclass(frozen=True)
class RunFolder:
    """Paths of the files of a run."""

    folder: Path
    url: str | None = None  # where the files are sent, if the folder is a copy
    copies: Mapping[str, Path] = field(default_factory=dict)  # of tables, by field of the config

    @classmethod
    def of(cls, config: RunnerConfig, dump_name: str) -> RunFolder:
        """The folder of the config, that of its first table, or `results/<name of the dump>`."""
        given = {name: getattr(config, name) for name in TABLE_PATHS}
        tables = {name: user_path(path) for name, path in given.items() if path is not None}
        url = config.output_url
        if url is not None:
            folder = folder_of_url(url, "runs")
        elif config.output_dir is not None:
            folder = user_path(config.output_dir)
        elif tables:
            folder = next(iter(tables.values())).parent
        else:
            folder = Path("results") / dump_name
        place = cls(folder, url)
        own = {name: resolved(place.table(TABLE_PATHS[name])) for name in tables}
        copies = {name: path for name, path in tables.items() if resolved(path) != own[name]}
        return cls(folder, url, copies)

    @property
    def place(self) -> str:
        """The folder or the URL of the run, as the user gave it."""
        return self.url or str(self.folder)

    @property
    def run(self) -> Path:
        """run.json, which is written last."""
        return self.folder / RUN_FILE

    def table(self, kind: TableKind) -> Path:
        """The file of a table."""
        return self.folder / TABLES[kind].file

    def shown(self, path: Path) -> str:
        """The place of a file of the run, as the user sees it."""
        if self.url is None:
            return str(path)
        return f"{self.url}/{path.relative_to(self.folder).as_posix()}"

    def require_usable(self) -> None:
        """Raise a `ConfigError` if the run cannot be written here. Creates the folder."""
        if self.url is not None and any(parse_head(part) for part in self.url.split("/")):
            raise ConfigError(f"{self.url}: is inside a dump; choose another URL for results")
        refuse_inside_dump(self.run)
        refuse_other_output(self.folder, "run", "output_dir")
        if (self.folder / FOLDER).is_symlink():
            raise ConfigError(
                f"{self.folder / FOLDER}: is a symbolic link, not a folder. Remove it, or choose "
                "another output_dir."
            )
        if not (self.folder / FOLDER).exists():
            for path in (self.run, *map(self.table, TABLES)):
                if path.exists():
                    raise ConfigError(
                        f"{path}: exists, and the records of its heads are not in {self.place}. "
                        "Choose another output_dir, or move the file."
                    )
        for path in (self.run, *map(self.table, TABLES)):
            require_writable(path, _REMEDY)
        require_writable(self.folder / FOLDER / _LONGEST_NAME, _REMEDY)
        self._require_usable_copies()

    def _require_usable_copies(self) -> None:
        """Raise a `ConfigError` if a copy of a table would replace a file of another kind."""
        taken = {resolved(path) for path in (self.run, *map(self.table, TABLES))}
        for name, path in self.copies.items():
            refuse_inside_dump(path)
            if resolved(path) in taken:
                raise ConfigError(
                    f"{name}: {path}: is another file of the run; choose another path"
                )
            taken.add(resolved(path))
            require_writable(path, "Choose another path.", f"{name}: ")
            if path.exists() and not _is_table(path):
                raise ConfigError(
                    f"{name}: {path}: exists, and is not a table of an analysis; choose another "
                    "path, or move the file"
                )


def _is_table(path: Path) -> bool:
    """Whether a file begins like a table with one row per head, or per part of a head."""
    with open_regular(path) as file:
        return file.read(len(_BEGIN)) == _BEGIN
