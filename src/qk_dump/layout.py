"""Layout of a dump: `<root>/[<model_dir>/]l{LL}h{HH}{q|k}/*.parquet`, one folder per head.

Keys that were drawn by attention are in `attended/l{LL}h{HH}k/`, beside the heads.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from qk_dump.folder_kinds import PLAN, TAP, UNFINISHED, kinds_in
from qk_dump.heads import ATTENDED, HeadId, parse_head, require_head
from qk_dump.manifest import (
    MANIFEST_NAME,
    DumpManifest,
    plan_difference,
    read_manifest,
    read_plan,
)
from qk_dump.remote import DumpPath, Listing, RemotePath
from qk_toolkit.errors import ConfigError, DumpError
from qk_toolkit.files import user_path
from qk_toolkit.store import Store

if TYPE_CHECKING:
    from qk_dump.layers import LayerRecord, RotaryFile

_OF_PLAN = (("model", "name"), ("dataset", "path"))
MOST_SHARDS = 10_000  # Parquet files of one head


@dataclass(frozen=True, repr=False)
class Dump:
    """A dump in a folder or at a URL: its place, its heads and its optional `dump.json`."""

    path: DumpPath
    folders: dict[HeadId, DumpPath]
    manifest: DumpManifest | None = None
    origin: dict[str, Any] | None = None  # its place on the Hub, if it was fetched
    rotary: RotaryFile | None = None  # rotary records that come before those of `dump.json`
    attended: dict[HeadId, DumpPath] = field(default_factory=dict)  # keys drawn by attention
    repeated: Dump | None = None  # of the same model, over random tokens that come twice

    def __repr__(self) -> str:
        model = self.manifest.model if self.manifest else None
        heads = f"{len(self.query_heads):,} query heads, {len(self.key_heads):,} key heads"
        return f"<Dump {str(self.path)!r}: {f'{model}, ' if model else ''}{heads}>"

    @property
    def name(self) -> str:
        """The name of the folder, the last part of the URL, or the branch on the Hub."""
        if isinstance(self.path, RemotePath):
            return self.path.name
        if self.origin is None:
            return self.path.resolve().name or "dump"
        return str(self.origin.get("model_dir") or self.origin["revision"]).replace("/", "-")

    @property
    def capture_id(self) -> str | None:
        """The id of the capture; None if dump.json does not have it."""
        return self.manifest.capture_id if self.manifest else None

    def layer(self, number: int) -> LayerRecord | None:
        """What dump.json has about a layer; None if it does not list it."""
        return self.manifest.layer(number) if self.manifest else None

    def recorded_rows(self, head: HeadId) -> int | None:
        """The number of rows of a head in dump.json; None if it does not have it."""
        rows = self.manifest.rows if self.manifest else None
        return None if rows is None else rows.get(head.folder, 0)

    @property
    def lost_heads(self) -> list[str]:
        """Folders of heads with rows in dump.json that are not there: lost, or not fetched."""
        rows = (self.manifest.rows if self.manifest else None) or {}
        found = {head.folder for head in self.all_folders}
        return sorted(folder for folder, number in rows.items() if number and folder not in found)

    @cached_property
    def query_heads(self) -> list[tuple[int, int]]:
        """(layer, head) of every captured query head, sorted."""
        return sorted((head.layer, head.head) for head in self.folders if head.kind == "q")

    @cached_property
    def key_heads(self) -> list[tuple[int, int]]:
        """(layer, head) of every captured key head, sorted."""
        return sorted((head.layer, head.head) for head in self.folders if head.kind == "k")

    @cached_property
    def token_texts(self) -> dict[int, str] | None:
        """The text of every token id, read once; None if the dump does not have it."""
        from qk_dump.tokens import read_tokens  # imports pyarrow

        return read_tokens(self.path, self.capture_id)

    @property
    def all_folders(self) -> dict[HeadId, DumpPath]:
        """The folders of all heads, then those of the keys drawn by attention."""
        return {**self.folders, **self.attended}

    def files(self, head: HeadId) -> tuple[DumpPath, ...]:
        """The Parquet shards of the head in name order; empty if the dump has none."""
        folder = (self.attended if head.attended else self.folders).get(head)
        return () if folder is None else parquet_files(folder)

    def require_files(self, head: HeadId) -> tuple[DumpPath, ...]:
        """The Parquet shards of the head, at least one. Raises a `DumpError` without any."""
        folder = (self.attended if head.attended else self.folders).get(head)
        if folder is None:
            kind = "key" if head.kind == "k" else "query"
            raise DumpError(f"{self.path / head.folder}: the {kind} head is not in the dump")
        files = self.files(head)
        if not files:
            raise DumpError(
                f"{folder}: holds no Parquet file. Copy, capture or download the head again."
            )
        return files

    def listed_again(self) -> Dump:
        """The dump with the present state of its files. Folders on disk are not listed before."""
        if not isinstance(self.path, RemotePath):
            return self
        path = self.path.listed_again()
        folders: dict[HeadId, DumpPath] = {h: path / f.name for h, f in self.folders.items()}
        return replace(self, path=path, folders=folders, attended=_attended_heads(path))


@overload
def parquet_files(folder: Path) -> tuple[Path, ...]: ...


@overload
def parquet_files(folder: DumpPath) -> tuple[DumpPath, ...]: ...


def parquet_files(folder: DumpPath) -> tuple[DumpPath, ...]:
    """Parquet files of a folder in name order, without hidden (unfinished) files."""
    try:
        entries: list[DumpPath] = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise DumpError(f"{folder}: cannot be read ({error.strerror or error})") from error
    found = tuple(
        path for path in entries if path.suffix == ".parquet" and not path.name.startswith(".")
    )
    if len(found) > MOST_SHARDS:
        raise DumpError(
            f"{folder}: holds {len(found):,} Parquet files; a head may have at most "
            f"{MOST_SHARDS:,}. Join them into fewer."
        )
    return found


def open_folder(root: str | os.PathLike[str], model_dir: str | None = None) -> Dump:
    """Find the heads in the folder `root`, or in `root/model_dir`.

    Without `model_dir`, heads are searched in the root, then in its only subfolder with heads.
    With several such subfolders (models), `model_dir` is required.
    """
    base = user_path(root)
    _require_folder(base)
    return _open(base, user_path(base / model_dir) if model_dir else None)


def open_url(url: str, model_dir: str | None = None) -> Dump:
    """Find the heads at a URL of fsspec, in the same way. One listing finds all files."""
    listing = Listing(Store(url))
    base = RemotePath(listing)
    if not listing.files:
        raise ConfigError(
            f"{base}: holds no files. Give the URL of the folder of a dump, the one that holds "
            "l00h00q, l00h00k, …"
        )
    return _open(base, base / model_dir if model_dir else None)


def _open(base: DumpPath, model: DumpPath | None) -> Dump:
    if model is not None:
        path = model
        refuse_unfinished(path)
        folders = _find_heads(path) if path.is_dir() else {}
        if not folders:
            raise ConfigError(f"{path}: no heads found. {_where_heads_are(base)}")
    else:
        refuse_unfinished(base)
        inside = _subfolders(base)
        path, folders = base, _heads_among(inside, base)
        if not folders:
            models = _models_among(inside)
            if len(models) != 1:
                raise ConfigError(f"{base}: no heads found. {_where_heads_are(base)}")
            ((path, folders),) = models.items()
            refuse_unfinished(path)
    manifest = read_manifest(path / MANIFEST_NAME)
    return Dump(path, folders, manifest, attended=_attended_heads(path))


def refuse_unfinished(folder: DumpPath) -> None:
    """Raise a `ConfigError` if a capture in the folder has not written the whole dump.

    Its plan is there until then. A plan beside the dump.json of the same capture is a leftover of a
    process that was killed at the very end.
    """
    place = folder / UNFINISHED / PLAN
    if not place.is_file():
        return
    plan = read_plan(place) or {}
    manifest = read_manifest(folder / MANIFEST_NAME)
    if manifest is not None and plan_difference(manifest.capture, plan) is None:
        return
    if TAP in plan:
        raise ConfigError(
            f"{folder}: was not saved to the end by a tap. Save it again, and remove this folder."
        )
    model, texts = ((plan.get(part) or {}).get(name) for part, name in _OF_PLAN)
    words = [str(model or "MODEL"), str(texts or "TEXTS"), str(folder)]
    raise ConfigError(
        f"{folder}: its capture is not finished. Run the same command again with all its settings, "
        f"and it continues: attention-plasticity capture {shlex.join(words)}"
    )


def _require_folder(base: Path) -> None:
    try:
        mode = base.stat().st_mode
    except FileNotFoundError:
        problem = "does not exist"
    except OSError as error:
        problem = f"cannot be opened: {error.strerror}"
    else:
        if stat.S_ISDIR(mode):
            return
        problem = "is a file, not a folder"
    raise ConfigError(
        f"{base}: {problem}. Give the folder of a dump, the one that holds l00h00q, l00h00k, …"
    )


def _attended_heads(path: DumpPath) -> dict[HeadId, DumpPath]:
    """The folders in `attended/`, if there is one."""
    home = path / ATTENDED
    found = _find_heads(home) if home.is_dir() else {}
    return {
        head._replace(attended=True): folder for head, folder in found.items() if head.kind == "k"
    }


def _find_heads(path: DumpPath) -> dict[HeadId, DumpPath]:
    return _heads_among(_subfolders(path), path)


def _heads_among(subfolders: Iterable[DumpPath], path: DumpPath) -> dict[HeadId, DumpPath]:
    found: dict[HeadId, DumpPath] = {}
    for entry in subfolders:
        head = parse_head(entry.name)
        if head is None:
            continue
        require_head(head, entry)
        if head in found:
            raise ConfigError(
                f"{path}: {found[head].name} and {entry.name} both name layer {head.layer}, "
                f"head {head.head}. Keep one of them."
            )
        found[head] = entry
    return dict(sorted(found.items()))


def _subfolders(path: DumpPath) -> list[DumpPath]:
    """Subfolders in name order, from one listing and without a system call per entry."""
    if isinstance(path, RemotePath):
        return [entry for entry in path.iterdir() if entry.is_dir()]
    try:
        with os.scandir(path) as entries:
            # a broken link counts as a head: reading it fails later with a clear message
            names = [entry.name for entry in entries if entry.is_symlink() or entry.is_dir()]
        return [path / name for name in sorted(names)]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be listed: {error.strerror or error}") from error


def _models_among(subfolders: Iterable[DumpPath]) -> dict[DumpPath, dict[HeadId, DumpPath]]:
    """The subfolders with heads, and their heads. Hidden ones are drafts of killed processes."""
    models = [
        folder
        for folder in subfolders
        if folder.is_dir() and folder.name != ATTENDED and not folder.name.startswith(".")
    ]
    found = {folder: _find_heads(folder) for folder in models}
    return {folder: heads for folder, heads in found.items() if heads}


def _where_heads_are(base: DumpPath) -> str:
    inside = _subfolders(base)
    if _heads_among(inside, base):
        return f"The heads are in {base} itself: leave model_dir out."
    models = [folder.name for folder in _models_among(inside)]
    if models:
        return f"Set model_dir to one of: {', '.join(models)}."
    kinds = {} if isinstance(base, RemotePath) else kinds_in(base)
    if "study" in kinds:
        return f"It is the folder of a study. Give one of its dumps, in {base / 'dumps'}."
    if "run" in kinds:
        return "It holds results of an analysis. Give the dump that was analysed."
    if (base / "config.json").is_file():
        return (
            "It is a model. Capture it first: attention-plasticity capture "
            f"--model.name {base} --dataset.path TEXTS --output.data_root DUMP"
        )
    return "A dump holds folders named l00h00q (queries) and l00h00k (keys) with Parquet files."
