"""A folder that takes the files of a commit: staged, compared with their hashes, then named.

`.capture/` has the files until all of them are there; its plan says what is fetched. So readers
refuse an unfinished folder, and the same command continues after a crash.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qk_dump.hub.commit import CachedCommit, OnBytes
from qk_dump.hub.place import HubPlace
from qk_dump.layout import PLAN, PULL, UNFINISHED, refuse_unfinished
from qk_dump.manifest import json_text, read_plan
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import remove_folder, user_path, write_text

_STAGED = "files"


class FolderOfCommit:
    """A folder that is empty, or has files of a commit and nothing else."""

    def __init__(self, text: str) -> None:
        self.path = user_path(text)
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(
                f"{text}: is no folder of this machine. Give one that is new or empty."
            )
        self._unfinished = self.path / UNFINISHED

    def fill(
        self,
        copy: CachedCommit,
        place: HubPlace,
        paths: Sequence[str],
        workers: int,
        on_bytes: OnBytes,
    ) -> Path:
        """Fetch the files that are not here. Returns the folder.

        The files of `place`, a folder of the commit or all of it, come directly into this folder.
        """
        self._refuse_other_data(copy, place)
        targets = {path: self.path / path.removeprefix(place.inside("")) for path in paths}
        missing = [path for path in paths if not targets[path].exists()]
        if missing:
            write_text(self._unfinished / PLAN, json_text({PULL: str(place)}))
        staged = replace(copy, folder=self._unfinished / _STAGED)
        for path in missing:
            if copy.is_here(path) and not staged.is_here(path):
                staged.local(path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(copy.local(path), staged.local(path))
        staged.remove_wrong(missing, workers)
        staged.fetch(missing, workers, on_bytes)
        for path in missing:
            targets[path].parent.mkdir(parents=True, exist_ok=True)
            staged.local(path).replace(targets[path])
        remove_folder(self._unfinished)
        return self.path

    def _refuse_other_data(self, copy: CachedCommit, place: HubPlace) -> None:
        plan = read_plan(self._unfinished / PLAN)
        if plan is not None and plan.get(PULL) != str(place):
            refuse_unfinished(self.path)
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            if name.startswith(".") or not path.is_file():
                continue
            file = copy.files.get(place.inside(name))
            if file is None or not file.is_same(path):
                raise ConfigError(
                    f"{self.path}: holds other data: {name} is not that of {place}, commit "
                    f"{copy.commit[:12]}. Give another folder."
                )
