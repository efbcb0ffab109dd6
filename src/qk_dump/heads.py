"""The heads of a dump and the names of their folders."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from qk_dump.limits import MOST_HEADS, MOST_LAYERS
from qk_toolkit.errors import ConfigError

Kind = Literal["q", "k"]

ATTENDED = "attended"  # folder with the keys that were drawn by attention

_HEAD_FOLDER = re.compile(r"l(\d{2,})h(\d{2,})([qk])", re.ASCII)


class HeadId(NamedTuple):
    """One captured head: queries (`q`) or keys (`k`) of a layer.

    With `attended` it stands for the keys of the head that were drawn by attention.
    """

    layer: int
    head: int
    kind: Kind
    attended: bool = False

    @property
    def name(self) -> str:
        """Layer, head and kind: `l00h07q`."""
        return f"l{self.layer:02d}h{self.head:02d}{self.kind}"

    @property
    def folder(self) -> str:
        """The folder in the dump: `l00h07q`, or `attended/l00h07k`."""
        return f"{ATTENDED}/{self.name}" if self.attended else self.name

    @property
    def config_name(self) -> str:
        """The name of the config in the dataset card: `l00h07q`, or `attended-l00h07k`."""
        return f"{ATTENDED}-{self.name}" if self.attended else self.name


def parse_head(folder: str) -> HeadId | None:
    """The head of a folder name, or None for any other folder."""
    match = _HEAD_FOLDER.fullmatch(folder)
    if match is None:
        return None
    return HeadId(int(match[1]), int(match[2]), "q" if match[3] == "q" else "k")


def parse_folder(path: str) -> HeadId | None:
    """The head of a folder inside a dump, `l00h07q` or `attended/l00h07k`; None for others."""
    outer, slash, name = path.rpartition("/")
    head = parse_head(name)
    if head is None or not slash:
        return head
    return head._replace(attended=True) if outer == ATTENDED and head.kind == "k" else None


def require_head(head: HeadId, folder: object) -> None:
    """Refuse a layer or head number beyond the limits; `folder` is for the message."""
    if head.layer >= MOST_LAYERS or head.head >= MOST_HEADS:
        raise ConfigError(
            f"{folder}: is the folder of layer {head.layer}, head {head.head}; a dump has at most "
            f"{MOST_LAYERS:,} layers and {MOST_HEADS:,} heads in a layer. Rename or remove it."
        )
