"""Labels of models, and the names of their folders."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence

from qk_dump.heads import parse_head

_LONGEST = 60  # characters of the name of a folder
_WITHOUT_NAME = "model"  # for labels without a letter or digit of ASCII
_DIGITS = 8  # of a hash


def default_label(place: str) -> str:
    """The last part of a path, a URL or a name on the Hub; of `owner/name@branch` the branch."""
    return place.rstrip("/").rsplit("/", 1)[-1].rpartition("@")[2]


def folder_names(labels: Sequence[str]) -> list[str]:
    """A name for the folder of every label: lower case, ASCII letters, digits, `.`, `_` and `-`.

    Names are different. If two labels give the same name, the later one ends with a hash of its
    label, which does not depend on the other labels.
    """
    found: list[str] = []
    for label in labels:
        name = _folder_name(label)
        found.append(f"{name}-{_hash(label)}" if name in found else name)
    return found


def _folder_name(label: str) -> str:
    plain = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"([^a-z0-9._]|\.\.)+", "-", plain).strip("-._") or _WITHOUT_NAME
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - _DIGITS - 1].strip('-._')}-{_hash(label)}"
    # results are refused inside a folder that has the name of a head
    return f"{_WITHOUT_NAME}-{name}" if parse_head(name) else name


def _hash(label: str) -> str:
    return hashlib.sha256(label.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGITS]
