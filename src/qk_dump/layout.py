"""Layout of a dump: `<root>/[<model_dir>/]l{LL}h{HH}{q|k}/*.parquet`, one folder per head.

Keys that were drawn by attention are in `attended/l{LL}h{HH}k/`, beside the heads. `models_in`
finds heads among folders, here, at a URL or on the Hub. Also: which files belong to a dump,
and which command wrote into a folder.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from qk_dump.heads import (
    ATTENDED,
    CARD_FILE,
    EXAMPLES_FILE,
    TOKENS_FILE,
    HeadId,
    parse_folder,
    parse_head,
    require_head,
)
from qk_dump.manifest import (
    MANIFEST_NAME,
    DumpManifest,
    plan_difference,
    read_manifest,
    read_plan,
)
from qk_dump.remote import DumpPath, Listing, RemotePath
from qk_toolkit.errors import ConfigError, DumpError
from qk_toolkit.files import resolved, user_path
from qk_toolkit.store import Store

if TYPE_CHECKING:
    from qk_dump.layers import LayerRecord, RotaryFile

UNFINISHED = ".capture"  # folder with the rows of an unfinished capture
PLAN = "plan.json"  # in it; the capture is unfinished as long as it is there
TAP = "tap"  # in the plan of what `Tap.save` writes
PULL = "pull"  # in the plan of what is fetched from the Hub
FILES_BESIDE_HEADS = (MANIFEST_NAME, EXAMPLES_FILE, TOKENS_FILE)

_OF_PLAN = (("model", "name"), ("dataset", "path"))
MOST_SHARDS = 10_000  # Parquet files of one head

FolderKind = Literal["study", "run", "dump"]

_FILES_OF_KIND: dict[FolderKind, tuple[str, ...]] = {
    "study": ("study.json", ".study.lock"),
    "run": ("run.json", "head_metrics.csv", ".heads"),
    "dump": (MANIFEST_NAME, UNFINISHED),
}
_KIND_WORDS: dict[FolderKind, str] = {
    "study": "a study",
    "run": "results of an analysis",
    "dump": "a dump",
}


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
        from qk_dump.side_files import read_tokens  # imports pyarrow

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
        now = models_in(_folders(path), path).get("", {})
        attended: dict[HeadId, DumpPath] = {h: path / f for h, f in now.items() if h.attended}
        return replace(self, path=path, folders=folders, attended=attended)


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
    path = base if model is None else model
    refuse_unfinished(path)
    heads = models_in(_folders(path), path).get("", {}) if path.is_dir() else {}
    if not heads and model is None:
        models = _models_below(base)
        if len(models) == 1:
            ((name, heads),) = models.items()
            path = base / name
            refuse_unfinished(path)
    if not heads:
        raise ConfigError(f"{path}: no heads found. {_where_heads_are(base)}")
    return _dump(path, heads)


def _dump(path: DumpPath, heads: dict[HeadId, str]) -> Dump:
    """The dump with these heads, each with its folder."""
    found: dict[HeadId, DumpPath] = {head: path / folder for head, folder in heads.items()}
    folders = {head: folder for head, folder in found.items() if not head.attended}
    attended = {head: folder for head, folder in found.items() if head.attended}
    return Dump(path, folders, read_manifest(path / MANIFEST_NAME), attended=attended)


def models_in(folders: Iterable[str], place: object) -> dict[str, dict[HeadId, str]]:
    """The heads of every model among the paths of folders; "" is the model of the root.

    Each head has its folder in that of the model. Hidden folders are drafts of killed processes.
    """
    found: dict[str, dict[HeadId, str]] = {}
    for path in sorted(folders):
        model, inner = "", path
        if parse_folder(path) is None:
            model, _, inner = path.partition("/")
        head = parse_folder(inner)
        if head is None or model == ATTENDED or model.startswith("."):
            continue
        require_head(head, f"{place}/{path}")
        heads = found.setdefault(model, {})
        if head in heads:
            raise ConfigError(
                f"{place}: {heads[head]} and {inner} both name layer {head.layer}, "
                f"head {head.head}. Keep one of them."
            )
        heads[head] = inner
    return {
        model: dict(sorted(heads.items()))
        for model, heads in found.items()
        if not all(head.attended for head in heads)
    }


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
    if PULL in plan:
        command = shlex.join(["attention-plasticity", "pull", str(plan[PULL]), str(folder)])
        raise ConfigError(
            f"{folder}: was not fetched to the end. Run the same command again with all its "
            f"settings, and it continues: {command}"
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


def _folders(path: DumpPath) -> list[str]:
    """The folders in a folder, and those in its folder `attended`."""
    names = _subfolders(path)
    drawn = _subfolders(path / ATTENDED) if ATTENDED in names else []
    return [*names, *(f"{ATTENDED}/{name}" for name in drawn)]


def _models_below(base: DumpPath) -> dict[str, dict[HeadId, str]]:
    """The subfolders with heads, and their heads."""
    names = [name for name in _subfolders(base) if (base / name).is_dir()]
    return models_in([f"{name}/{one}" for name in names for one in _folders(base / name)], base)


def _subfolders(path: DumpPath) -> list[str]:
    """Names of subfolders, from one listing and without a system call per entry."""
    if isinstance(path, RemotePath):
        return [entry.name for entry in path.iterdir() if entry.is_dir()]
    try:
        with os.scandir(path) as entries:
            # a broken link counts as a head: reading it fails later with a clear message
            return [entry.name for entry in entries if entry.is_symlink() or entry.is_dir()]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be listed: {error.strerror or error}") from error


def _where_heads_are(base: DumpPath) -> str:
    if "" in models_in(_folders(base), base):
        return f"The heads are in {base} itself: leave model_dir out."
    models = _models_below(base)
    if models:
        return f"Set model_dir to one of: {', '.join(models)}."
    kinds = {} if isinstance(base, RemotePath) else kinds_in(base)
    if "study" in kinds:
        return f"It is the folder of a study. Give one of its dumps, in {base / 'dumps'}."
    if "run" in kinds:
        return "It holds results of an analysis. Give the dump that was analysed."
    if (base / "config.json").is_file():
        return f"It is a model. Capture it first: attention-plasticity capture {base} TEXTS DUMP"
    return "A dump holds folders named l00h00q (queries) and l00h00k (keys) with Parquet files."


def is_dump_file(path: str) -> bool:
    """Whether the file with this path in a folder, with slashes, belongs to a dump."""
    folder, _, name = path.rpartition("/")
    if not folder:
        return name in FILES_BESIDE_HEADS
    return parse_folder(folder) is not None and name.endswith(".parquet")


def refuse_inside_dump(path: Path) -> None:
    """Raise if a file would be in the folder of a head, or would replace a file of a dump."""
    target = resolved(path)
    in_head = any(parse_head(part) for part in target.parts)
    own = target.name in (*FILES_BESIDE_HEADS, CARD_FILE) and _holds_dump(target.parent)
    if in_head or own or UNFINISHED in target.parts:
        raise ConfigError(f"{path}: is inside a dump; choose another path for results")


def _holds_dump(folder: Path) -> bool:
    try:
        return any(
            parse_head(entry.name) or entry.name == MANIFEST_NAME for entry in folder.iterdir()
        )
    except OSError:
        return False


def kinds_in(folder: Path) -> dict[FolderKind, str]:
    """The kinds of output in a folder, each with the name of one of its files."""
    found: dict[FolderKind, str] = {}
    for kind, names in _FILES_OF_KIND.items():
        for name in names:
            if (folder / name).exists():
                found.setdefault(kind, name)
    if "dump" not in found and folder.is_dir():
        heads = sorted(path.name for path in folder.glob("l*h*") if parse_head(path.name))
        found |= {"dump": heads[0]} if heads else {}
    return found


def refuse_other_output(folder: Path, own: FolderKind, setting: str) -> None:
    """Raise a `ConfigError` if the output folder of one command has the output of another.

    `own` is what the command writes.
    """
    for kind, name in kinds_in(folder).items():
        if kind != own:
            raise ConfigError(
                f"{setting}: {folder}: holds {_KIND_WORDS[kind]} ({name}); choose another folder"
            )
