"""The heads among the files of a branch, and which of them are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from qk_dump.heads import ATTENDED, HeadId, parse_folder, require_head
from qk_dump.hub.place import HubPlace
from qk_dump.manifest import DumpManifest
from qk_toolkit.errors import ConfigError


@dataclass(frozen=True)
class HeadChoice:
    """Heads to fetch: layers, and query heads together with their key heads; None means all."""

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    group: int | None = None  # query heads per key head; None: from dump.json
    for_analysis: bool = False  # also the first query head, if its rows decide the bins of a run

    def wants(self, head: HeadId, manifest: DumpManifest | None) -> bool:
        """Whether a head is to be fetched. All key heads of a layer are if the group is unknown."""
        if self.layers is not None and head.layer not in self.layers:
            return False
        if self.heads is None:
            return True
        if head.kind == "q":
            return head.head in self.heads
        group = self.group
        if not group and manifest and manifest.num_q_heads and manifest.num_k_heads:
            group = manifest.num_q_heads // manifest.num_k_heads
        return not group or head.head in {q_head // group for q_head in self.heads}


def folders_with_heads(files: Iterable[str]) -> list[str]:
    """The folders of models that have heads, sorted; "" for heads in the root."""
    found = set()
    for path in files:
        model, _, rest = path.partition("/")
        if (head := _head_of(path)) is not None and not head.attended:
            found.add("")
        elif model != ATTENDED and _head_of(rest) is not None:
            found.add(model)
    return sorted(found)


def with_folder(place: HubPlace, files: Iterable[str]) -> HubPlace:
    """The place with the folder of the only model, unless heads are in the root."""
    folders = folders_with_heads(files)
    if place.folder is not None:
        folder = str(PurePosixPath(place.folder))
        return replace(place, folder=None if folder == "." else folder)
    return replace(place, folder=folders[0] or None) if len(folders) == 1 else place


def find_heads(place: HubPlace, files: Iterable[str]) -> dict[str, HeadId]:
    """The Parquet files of the dump at a place, sorted, each with its head."""
    below = place.inside("")
    heads: dict[str, HeadId] = {}
    for path in sorted(files):
        head = _head_of(path.removeprefix(below)) if path.startswith(below) else None
        if head is not None:
            require_head(head, f"{place}: {path}")
            heads[path] = head
    if all(head.attended for head in heads.values()):
        raise ConfigError(f"{place}: no heads found. {_where_heads_are(files)}")
    return heads


def selected(
    heads: dict[str, HeadId],
    choice: HeadChoice,
    manifest: DumpManifest | None,
    place: HubPlace,
    *,
    has_examples: bool,
) -> list[str]:
    """The files of the wanted heads.

    An analysis of a dump without sampler or lengths of texts has bins from the first query head,
    the same ones for all layers.
    """
    wanted = {head for head in heads.values() if choice.wants(head, manifest)}
    if all(head.attended for head in wanted):
        layers = sorted({head.layer for head in heads.values()})
        raise ConfigError(
            f"{place}: none of the selected query heads is in the dump. "
            f"Its layers: {', '.join(map(str, layers))}."
        )
    described = has_examples and manifest is not None and manifest.sampler is not None
    if choice.for_analysis and not described:
        wanted.update(sorted(head for head in heads.values() if head.kind == "q")[:1])
    return [path for path, head in heads.items() if head in wanted]


def _head_of(path: str) -> HeadId | None:
    folder, _, name = path.rpartition("/")
    is_shard = name.endswith(".parquet") and not name.startswith(".")
    return parse_folder(folder) if is_shard else None


def _where_heads_are(files: Iterable[str]) -> str:
    folders = folders_with_heads(files)
    if "" in folders:
        return "The heads are in the root of the branch: leave model_dir out."
    if folders:
        return f"Set model_dir to one of: {', '.join(folders)}, or add it: owner/name@branch/model."
    return (
        "Name the branch of a model: owner/name@branch, or dataset_revision; "
        "the card on main lists them."
    )
