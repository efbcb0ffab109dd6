"""The files that a push publishes: a dump, and the tables of its analysis.

All are checked before the first byte is sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qk_dump.card import ANALYSIS_FOLDER, card
from qk_dump.head_counts import check_head
from qk_dump.heads import EXAMPLES_FILE, TOKENS_FILE
from qk_dump.hub.files import RemoteFile
from qk_dump.layout import FILES_BESIDE_HEADS, Dump
from qk_dump.manifest import MANIFEST_NAME, DumpManifest
from qk_dump.parquet import opened_parquet, require_capture
from qk_dump.remote import local
from qk_toolkit.errors import ConfigError, DumpError
from qk_toolkit.files import read_json, require_regular
from qk_toolkit.formatting import count

_RUN_FILE, _PAGE = "run.json", "report.html"
_MOST_RUN_BYTES = 64 << 20
_TABLE = re.compile(r"\w[\w-]*\.csv", re.ASCII)


def dump_files(dump: Dump) -> dict[str, LocalFile]:
    """The files of the dump without its card, by path on the branch; heads are in its root.

    Raises an error for a file that cannot be read.
    """
    home = local(dump.path)
    files: dict[str, LocalFile] = {}
    _require_all_heads(dump)
    for head in dump.all_folders:
        for path in check_head(dump, head):
            files[f"{head.folder}/{path.name}"] = LocalFile(local(path))
    for name in FILES_BESIDE_HEADS:
        if os.path.lexists(home / name):
            files[name] = LocalFile(home / name)
    for name in (EXAMPLES_FILE, TOKENS_FILE):
        if name in files:
            with opened_parquet(home / name) as parquet:
                require_capture(parquet.record, dump.capture_id, home / name)
    return files


def _require_all_heads(dump: Dump) -> None:
    """Raise a `DumpError` if heads of dump.json are missing."""
    if lost := dump.lost_heads:
        raise DumpError(
            f"{dump.path}: {count(len(lost), 'head')} of {MANIFEST_NAME} "
            f"{'is' if len(lost) == 1 else 'are'} missing, the first: {lost[0]}. Copy the whole "
            "dump, or capture it again"
        )


def card_file(dump: Dump, files: Mapping[str, LocalFile], analysis: bool) -> LocalFile:
    """The card of the branch for these files. `analysis`: the branch has tables of an analysis."""
    manifest = dump.manifest or DumpManifest()
    has_examples, has_tokens = EXAMPLES_FILE in files, TOKENS_FILE in files
    text = card(manifest, list(dump.all_folders), has_examples, has_tokens, analysis)
    return LocalFile(text.encode("utf-8"))


def analysis_files(run: Path, dump: Dump) -> dict[str, LocalFile]:
    """The tables, `run.json` and, if there is one, the page of the analysis in the folder `run`.

    Raises an error for a folder without a finished analysis, and for the analysis of another dump.
    """
    info = _run_info(run, dump)
    tables = info.get("tables")
    names = list(tables.values()) if isinstance(tables, dict) else []
    if not names or not all(isinstance(name, str) and _TABLE.fullmatch(name) for name in names):
        raise ConfigError(
            f"{run / _RUN_FILE}: tables: expected names of CSV files; nothing was sent"
        )
    page = [_PAGE] if (run / _PAGE).exists() else []
    return {
        f"{ANALYSIS_FOLDER}/{name}": LocalFile(run / name) for name in (*names, _RUN_FILE, *page)
    }


def is_of_analysis(path: str) -> bool:
    """Whether a file of a branch belongs to the analysis of its dump."""
    return path.startswith(f"{ANALYSIS_FOLDER}/")


def _run_info(run: Path, dump: Dump) -> dict[str, Any]:
    """The content of `run.json`, of an analysis of `dump`."""
    path = run / _RUN_FILE
    try:
        info = read_json(path, most_bytes=_MOST_RUN_BYTES)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{run}: holds no {_RUN_FILE}; name the output folder of a finished analysis"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); nothing was sent") from error
    layout = info.get("head_layout") if isinstance(info, dict) else None
    if not isinstance(layout, dict):
        raise ConfigError(f"{path}: is not the file of an analysis; nothing was sent")
    for name in ("num_layers", "num_q_heads", "num_k_heads"):
        value = getattr(dump.manifest, name, None)
        if value is not None and layout.get(name) != value:
            raise ConfigError(
                f"{path}: is the analysis of another dump ({name} {layout.get(name)}, the dump has "
                f"{value}); nothing was sent"
            )
    return dict(info)


class LocalFile:
    """A file to publish, on disk or in memory."""

    def __init__(self, content: Path | bytes) -> None:
        if isinstance(content, Path):
            require_regular(content)
        self.content = content
        self.size = len(content) if isinstance(content, bytes) else content.stat().st_size

    def as_addition(self, path: str) -> Any:
        """The file as an operation of the client's commits."""
        from huggingface_hub import CommitOperationAdd

        if isinstance(self.content, Path):
            require_regular(self.content)  # the client's error for a missing file names no reason
        return CommitOperationAdd(path, self.content)

    def same_as(self, remote: RemoteFile | None) -> bool:
        """Whether a file of the branch has the same content."""
        return remote is not None and remote.size == self.size and remote.is_same(self.content)
