"""Finished heads, kept in the run's folder as they finish, so that a killed run loses none.

`<output_dir>/.heads/` holds `settings.json` (what decides the numbers) and a JSON file per head,
each written in one step and carrying a digest of the settings it was computed under. Every file
begins with a hash of the rest; one that does not fit counts as damaged. A later run takes the heads
over when its settings are the same and no recorded head's input was touched; it computes damaged
ones again. Floats are written so that they read back bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from attention_plasticity import __version__
from attention_plasticity.config import ANALYSIS_FIELDS, RunnerConfig
from attention_plasticity.results import HeadResult
from attention_plasticity.run.fingerprints import InputFiles
from attention_plasticity.run.plan import HeadLayout, format_heads
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import DRAFT_PATTERN, MOST_JSON_BYTES, read_bounded, write_text
from qk_toolkit.formatting import index_ranges

FOLDER = ".heads"
NUMERIC_LIBRARIES = ("numpy", "scipy", "pyarrow")

Metrics = dict[str, Any]

_RECORD_NAME = re.compile(r"l(\d{2,})h(\d{2,})\.json")


@dataclass(frozen=True)
class Earlier:
    """What an earlier run left: its finished heads, or why they cannot be taken over."""

    metrics: dict[tuple[int, int], Metrics]
    conflict: str | None = None
    damaged: list[tuple[int, int]] = field(default_factory=list)  # to be computed again

    @property
    def notes(self) -> list[str]:
        """What a person should know about the earlier run's records."""
        if not self.damaged:
            return []
        count = len(self.damaged)
        whose = f"{count} heads" if count > 1 else "1 head"
        them = "these heads are" if count > 1 else "this head is"
        return [
            f"the records of {whose} ({format_heads(self.damaged)}) are damaged; "
            f"{them} computed again"
        ]


class Records:
    """The finished heads of one run folder, locked against a second run."""

    def __init__(self, output_dir: Path, settings: dict[str, Any]) -> None:
        self._output_dir = output_dir
        self._folder = output_dir / FOLDER
        self._lock = FileLock(output_dir / ".lock")
        self._settings = settings
        self._digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()

    def lock(self) -> None:
        """Take the folder for this process; the lock goes with the process, however it ends."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise ConfigError(
                f"{self._output_dir}: another run is writing here. "
                "Wait for it, or choose another output_dir."
            ) from error

    def release(self) -> None:
        """Let another run use the folder."""
        self._lock.release()

    def earlier(self, inputs: InputFiles) -> Earlier:
        """Heads finished earlier under the same settings and from the same files; reads only."""
        settings = _read_sealed(self._folder / "settings.json")
        if settings is not None and settings != self._settings:
            return Earlier({}, self._conflict(_differences(settings, self._settings)))
        metrics: dict[tuple[int, int], Metrics] = {}
        touched, damaged, foreign = [], [], []
        for head, path in self._files():
            record = _read_sealed(path)
            if record is None or (record["layer"], record["q_head"]) != head:
                damaged.append(head)
            elif record["settings"] != self._digest:
                foreign.append(head)
            elif record["input"] != inputs.look_at(*head, record["k_head"]):
                touched.append(head)
            else:
                metrics[head] = record["metrics"]
        if foreign and settings is None:
            what = "its settings, which are not known: settings.json is damaged or missing"
            return Earlier({}, self._conflict(what))
        if touched:
            what = f"the input files of {len(touched)} heads ({format_heads(touched)})"
            return Earlier({}, self._conflict(what))
        return Earlier(metrics, damaged=damaged)

    def _files(self) -> Iterator[tuple[tuple[int, int], Path]]:
        """(layer, q_head) and file of every record, by its name."""
        for path in sorted(self._folder.glob("l*h*.json")):
            name = _RECORD_NAME.fullmatch(path.name)
            if name is not None:
                yield (int(name[1]), int(name[2])), path

    def begin(self, *, anew: bool) -> None:
        """Make the folder ready, for a new run if there is nothing to continue."""
        if anew and self._folder.exists():
            # out of sight in one step: a half-deleted folder must not be taken for a run's
            trash = self._folder.with_name(f"{FOLDER}-discarded")
            shutil.rmtree(trash, ignore_errors=True)
            self._folder.rename(trash)
            shutil.rmtree(trash)
        for place in (self._output_dir, self._folder):
            for draft in place.glob(DRAFT_PATTERN):
                draft.unlink()  # left by a run that was killed while writing
        write_text(self._folder / "settings.json", _sealed(self._settings))

    def add(self, result: HeadResult, inputs: InputFiles) -> None:
        """Record a finished head, with the state of the files it was computed from."""
        head = result.layer, result.q_head, result.k_head
        record = {"settings": self._digest, "input": inputs.look_at(*head), **asdict(result)}
        write_text(self._path(result.layer, result.q_head), _sealed(record))

    def drop(self, layer: int, q_head: int) -> None:
        """Forget a head."""
        self._path(layer, q_head).unlink()

    def load(self, layer: int, q_head: int) -> HeadResult:
        """A recorded head, whole."""
        path = self._path(layer, q_head)
        record = _read_sealed(path)
        if record is None:
            raise ToolkitError(f"{path}: changed during the run; run the same command again")
        del record["settings"], record["input"]
        return HeadResult(**record)

    def _path(self, layer: int, q_head: int) -> Path:
        return self._folder / f"l{layer:02d}h{q_head:02d}.json"

    def _conflict(self, what: str) -> str:
        return (
            f"{self._output_dir}: holds results of an earlier run that differs in {what}. "
            "Choose another output_dir, or add --overwrite to start anew."
        )


def run_settings(config: RunnerConfig, layout: HeadLayout) -> dict[str, Any]:
    """Everything beside the input that decides the numbers of a run."""
    return {
        "version": __version__,
        **{name: version(name) for name in NUMERIC_LIBRARIES},
        "num_layers": layout.num_layers,
        "num_q_heads": layout.num_q_heads,
        "num_k_heads": layout.num_k_heads,
        **{name: getattr(config, name) for name in (*ANALYSIS_FIELDS, "layers", "heads")},
    }


def _differences(earlier: dict[str, Any], now: dict[str, Any]) -> str:
    names = [name for name in {**earlier, **now} if earlier.get(name) != now.get(name)]
    return ", ".join(
        f"{name} ({_shown(earlier.get(name))} then, {_shown(now.get(name))} now)" for name in names
    )


def _shown(value: object) -> str:
    """A setting as a person would write it; only selections can be without a value."""
    if isinstance(value, list):
        return index_ranges(value)
    return "all" if value is None else str(value)


def _sealed(content: dict[str, Any]) -> str:
    """JSON in two lines: the hash of the content first, then the content."""
    body = json.dumps(content)
    return f"{_seal(body)}\n{body[1:]}\n"


def _read_sealed(path: Path) -> dict[str, Any] | None:
    """The content of a sealed file; None when there is none or its hash does not fit."""
    try:
        content_then = read_bounded(path, MOST_JSON_BYTES).decode("utf-8")
        seal, _, rest = content_then.partition("\n")
    except (FileNotFoundError, ValueError):
        return None
    body = "{" + rest.removesuffix("\n")
    if not rest.endswith("\n") or seal != _seal(body):
        return None
    content: dict[str, Any] = json.loads(body)
    return content


def _seal(body: str) -> str:
    return f'{{"sha256": "{hashlib.sha256(body.encode()).hexdigest()}",'
