"""The heads of a dump, names of its files, and limits on numbers in files and settings.

Limits are checked before memory is allocated for a number.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from qk_toolkit.errors import ConfigError

Kind = Literal["q", "k"]

ATTENDED = "attended"  # folder with the keys that were drawn by attention
EXAMPLES_FILE = "examples.parquet"
TOKENS_FILE = "tokens.parquet"
CARD_FILE = "README.md"

MOST_LAYERS = 1000
MOST_HEADS = 4096  # per layer
MOST_HEADS_IN_ALL = 262_144  # layers times query heads per layer
MOST_DIMENSIONS = 4096  # of a vector; the analysis needs d × d matrices
MOST_POSITIONS = 2**31 - 1  # position is an int32
MOST_EXAMPLES = 2**31 - 1  # example_id is an int32
MOST_FOOTER_BYTES = 256 << 20  # of a Parquet file
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-30, 1e30  # scale and soft-cap of logits, which are float32

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


def require_multiple(num_q_heads: int | None, num_k_heads: int | None) -> None:
    """Raise a `ValueError` when each key head cannot have the same number of query heads."""
    if num_q_heads and num_k_heads and num_q_heads % num_k_heads:
        raise ValueError(
            f"num_q_heads: {num_q_heads} is not a multiple of num_k_heads {num_k_heads}; set both "
            "as in the model's config.json"
        )


def require_head_count(num_layers: int, num_q_heads: int) -> None:
    """Raise a `ValueError` for a model with more than `MOST_HEADS_IN_ALL` query heads."""
    if num_layers * num_q_heads > MOST_HEADS_IN_ALL:
        raise ValueError(
            f"{num_layers:,} layers of {num_q_heads:,} query heads are more than "
            f"{MOST_HEADS_IN_ALL:,} heads in all"
        )
