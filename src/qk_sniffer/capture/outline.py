"""What the end of a capture needs to know, as far as it is known at the start: outline.json."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from qk_dump.manifest import DumpManifest, json_text
from qk_sniffer.rows.layer_tables import LayerTable
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import read_json, write_first, write_text

OUTLINE = "outline.json"


@dataclass(frozen=True)
class Outline:
    """The tables of a capture, its texts, and dump.json without what its texts decide."""

    chunk_size: int  # batches of a chunk; it stays the same when texts are added
    texts: int | None = None  # None if their number is not known
    tables: tuple[LayerTable, ...] = ()
    manifest: DumpManifest | None = None  # None if it depends on the lengths of the texts
    tokens: bool = False  # whether the texts of tokens are written

    def begin(self, place: Path) -> Self:
        """Write the outline, unless another process has; the outline with its size of chunks.

        A capture to which texts were added has another number of them.
        """
        write_first(place / OUTLINE, json_text(self._as_record()))
        first = self.read(place)
        mine = replace(self, chunk_size=first.chunk_size)
        if mine != first:
            write_text(place / OUTLINE, json_text(mine._as_record()))
        return mine

    def _as_record(self) -> dict[str, Any]:
        manifest = None if self.manifest is None else self.manifest.model_dump(exclude_none=True)
        tables = [table.as_record() for table in self.tables]
        return {**vars(self), "tables": tables, "manifest": manifest}

    @classmethod
    def read(cls, place: Path) -> Self:
        """The outline in `.capture/`."""
        file = place / OUTLINE
        try:
            record = read_json(file)
            size, manifest = record["chunk_size"], record["manifest"]
            if type(size) is not int or size < 1:
                raise ValueError(f"chunk_size: expected an integer of at least 1, got {size!r:.80}")
            tables = tuple(map(LayerTable.from_record, record["tables"]))
            facts = None if manifest is None else DumpManifest.model_validate(manifest)
            return cls(**{**record, "tables": tables, "manifest": facts})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{file}: cannot be read ({' '.join(str(error).split())[:200]}), so the capture "
                "cannot continue. Choose another output.data_root, or add --overwrite to discard "
                "what was captured"
            ) from error
