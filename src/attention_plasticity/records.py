"""Finished heads, kept in the run's folder as they finish, so that a killed run loses none.

`<output_dir>/.heads/` holds `settings.json` (what decides the numbers) and a JSON file per head,
each written in one step. A later run with the same settings takes over the heads whose input files
are unchanged. Floats are written so that they read back bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from attention_plasticity import __version__
from attention_plasticity.config import ANALYSIS_FIELDS, RunnerConfig
from attention_plasticity.plan import HeadLayout, format_heads
from attention_plasticity.results import HeadResult
from qk_dump.errors import ConfigError
from qk_dump.files import write_text
from qk_dump.layout import Dump, HeadId

FOLDER = ".heads"


class Records:
    """The finished heads of one run folder, locked against a second run."""

    def __init__(self, output_dir: Path) -> None:
        self.folder = output_dir / FOLDER
        self._lock = FileLock(output_dir / ".lock")
        self._prints: dict[str, str] = {}

    def lock(self) -> None:
        """Take the folder for this process; the lock goes with the process, however it ends."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise ConfigError(
                f"{self.folder.parent}: another run is writing here. "
                "Wait for it, or choose another output_dir."
            ) from error

    def release(self) -> None:
        """Let another run use the folder."""
        self._lock.release()

    def resume(
        self, dump: Dump, config: RunnerConfig, layout: HeadLayout, *, overwrite: bool
    ) -> dict[tuple[int, int], HeadResult]:
        """Heads finished earlier under the same settings and input, or a refusal that says why not.

        With `overwrite`, an earlier run that does not fit is thrown away instead; one that does is
        continued all the same, so that the command can be repeated after a crash.
        """
        settings = _settings(config, layout)
        path = self.folder / "settings.json"
        earlier = _read_json(path)
        if earlier is not None and earlier != settings:
            if not overwrite:
                raise ConfigError(self._refusal(_differences(earlier, settings)))
            shutil.rmtree(self.folder)
        done, changed = self._load(dump, layout)
        if changed:
            if not overwrite:
                raise ConfigError(
                    self._refusal(f"input files of {len(changed)} heads ({format_heads(changed)})")
                )
            shutil.rmtree(self.folder)
            done = {}
        write_text(path, json.dumps(settings, indent=1) + "\n")
        return done

    def add(self, result: HeadResult, dump: Dump) -> None:
        """Record a finished head, with the fingerprint of what it was computed from."""
        content = {
            "input": self._input_of(dump, result.layer, result.q_head, result.k_head),
            "layer": result.layer,
            "q_head": result.q_head,
            "k_head": result.k_head,
            "metrics": result.metrics,
            "buckets": result.buckets,
            "components": result.components,
        }
        path = self.folder / f"l{result.layer:02d}h{result.q_head:02d}.json"
        write_text(path, json.dumps(content))

    def fingerprint(self, dump: Dump, heads: Sequence[HeadId]) -> str:
        """One hash over the files of many heads."""
        digest = hashlib.sha256()
        for head in heads:
            digest.update(f"{head.folder} {self._of_head(dump, head)}\n".encode())
        return digest.hexdigest()

    def _load(
        self, dump: Dump, layout: HeadLayout
    ) -> tuple[dict[tuple[int, int], HeadResult], list[tuple[int, int]]]:
        done: dict[tuple[int, int], HeadResult] = {}
        changed: list[tuple[int, int]] = []
        for path in sorted(self.folder.glob("l*h*.json")):
            content = _read_json(path)
            if content is None:
                continue
            recorded_input = content.pop("input")
            result = HeadResult(**content)
            head = (result.layer, result.q_head)
            k_head = layout.key_head_of(result.q_head)
            if recorded_input == self._input_of(dump, *head, k_head):
                done[head] = result
            else:
                changed.append(head)
        return done, changed

    def _input_of(self, dump: Dump, layer: int, q_head: int, k_head: int) -> str:
        parts = (HeadId(layer, q_head, "q"), HeadId(layer, k_head, "k"))
        return " ".join(self._of_head(dump, part) for part in parts)

    def _of_head(self, dump: Dump, head: HeadId) -> str:
        if head.folder not in self._prints:
            files = dump.files(head) if head in dump.folders else ()
            lines = "\n".join(f"{path.name} {_file_fingerprint(path)}" for path in files)
            self._prints[head.folder] = hashlib.sha256(lines.encode()).hexdigest()[:16]
        return self._prints[head.folder]

    def _refusal(self, what: str) -> str:
        return (
            f"{self.folder.parent}: holds results of an earlier run that differs in {what}. "
            "Choose another output_dir, or add --overwrite to start anew."
        )


def _settings(config: RunnerConfig, layout: HeadLayout) -> dict[str, Any]:
    values = {name: getattr(config, name) for name in (*ANALYSIS_FIELDS, "layers", "heads")}
    return {
        "version": __version__,
        "num_layers": layout.num_layers,
        "num_q_heads": layout.num_q_heads,
        "num_k_heads": layout.num_k_heads,
        **values,
    }


def _differences(earlier: dict[str, Any], now: dict[str, Any]) -> str:
    names = [name for name in {**earlier, **now} if earlier.get(name) != now.get(name)]
    return ", ".join(f"{name} ({earlier.get(name)} then, {now.get(name)} now)" for name in names)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return content if isinstance(content, dict) else None


def _file_fingerprint(path: Path) -> str:
    """Size and hash of the Parquet footer, which lists every column chunk with its statistics."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(-min(size, 8), os.SEEK_END)
            footer_size = int.from_bytes(file.read(4), "little")
            file.seek(-min(size, footer_size + 8), os.SEEK_END)
            footer = file.read()
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return f"{size} {hashlib.sha256(footer).hexdigest()[:16]}"
