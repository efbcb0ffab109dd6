"""Key heads that were measured, in a folder beside the results, so that a command can continue.

`<output_dir>/.fidelity/` has `settings.json` and a file per key head. Each is written in one step
and begins with a hash of its content.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from attention_plasticity.run.fingerprints import InputFiles
from attention_plasticity.run.plan import Group
from attention_plasticity.run.records import read_sealed, sealed
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import cannot_write, write_text

FOLDER = ".fidelity"


class FidelityRecords:
    """Measured key heads of one dump, with one choice of settings."""

    def __init__(self, output_dir: Path, settings: dict[str, Any], inputs: InputFiles) -> None:
        self._output_dir = output_dir
        self._folder = output_dir / FOLDER
        self._settings = settings
        self._inputs = inputs

    def begin(self, *, overwrite: bool) -> None:
        """Prepare the folder. Raises a `ConfigError` if it has key heads of other settings."""
        path = self._folder / "settings.json"
        if self._folder.is_symlink():
            raise ConfigError(f"{self._folder}: is a symbolic link; choose another output_dir")
        earlier = read_sealed(path)
        if overwrite:
            try:
                if self._folder.exists():
                    shutil.rmtree(self._folder)
            except OSError as error:
                raise cannot_write(self._folder, error) from error
        elif earlier is not None and earlier != self._settings:
            names = [name for name in self._settings if earlier.get(name) != self._settings[name]]
            raise ConfigError(
                f"{self._output_dir}: has key heads that were measured with another "
                f"{', '.join(names) or 'version'}. Choose another output_dir, or set overwrite to "
                "measure all key heads again"
            )
        write_text(path, sealed(self._settings))

    def load(self, group: Group) -> dict[str, Any] | None:
        """The numbers of a key head; None if it was not measured, or from other files."""
        record = read_sealed(self._path(group))
        if record is None or record["q_heads"] != list(group.q_heads):
            return None
        return record["content"] if record["input"] == self._input(group) else None

    def add(self, group: Group, content: dict[str, Any]) -> None:
        """Record the numbers of a key head."""
        record = {"q_heads": list(group.q_heads), "input": self._input(group), "content": content}
        write_text(self._path(group), sealed(record))

    def drop(self, group: Group) -> None:
        """Delete the record of a key head."""
        self._path(group).unlink(missing_ok=True)

    def _input(self, group: Group) -> list[str]:
        return [
            self._inputs.record_state(group.layer, q_head, group.k_head) for q_head in group.q_heads
        ]

    def _path(self, group: Group) -> Path:
        return self._folder / f"l{group.layer:02d}h{group.k_head:02d}.json"
