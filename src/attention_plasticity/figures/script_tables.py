"""Tables that the scripts of the original tool draw: of a run, or a file alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from attention_plasticity.figures.settings import ScriptSettings
from attention_plasticity.metrics import TableKind
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.layer_types import layer_types
from qk_dump.positions import BucketGeometry
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path

_LONGEST_HEADER = 1 << 16  # characters


@dataclass(frozen=True, repr=False)
class ScriptRun(FinishedRun):
    """A run, or one of its tables alone, with the buckets that are given."""

    alone: tuple[TableKind, Path] | None = None  # the only table, and its file
    buckets: BucketGeometry | None = None

    def has(self, kind: TableKind) -> bool:
        """Whether there is this table."""
        return super().has(kind) if self.alone is None else kind == self.alone[0]

    def path(self, kind: TableKind) -> Path:
        """The path of a table."""
        return super().path(kind) if self.alone is None else self.alone[1]

    @property
    def geometry(self) -> BucketGeometry | None:
        """First positions of the buckets; None if they are not known."""
        return self.buckets or super().geometry

    @property
    def model_name(self) -> str:
        """The name of the model; empty if there is only a table."""
        return super().model_name if self.alone is None else ""

    @cached_property
    def layer_types(self) -> dict[int, str]:
        """The type of every layer."""
        return layer_types(self.head_metrics if self.alone is None else self.table(self.alone[0]))


def opened(settings: ScriptSettings, kind: TableKind) -> ScriptRun:
    """The run or the table of the settings. A table in the folder of its run belongs to the run."""
    if settings.run is not None:
        run = ScriptRun.open(settings.run)
    else:
        given = settings.bucket_csv or settings.component_csv
        name = "bucket_csv" if settings.bucket_csv else "component_csv"
        path = user_path(str(given))
        if path.is_dir():
            raise ConfigError(f"{name}: {path}: is a folder; give a table, or --run and the folder")
        kind = _kind(path) if settings.bucket_csv else "component_weights"
        run = _of_file(path, kind)
    return replace(run, buckets=_geometry(settings, run))


def _of_file(path: Path, kind: TableKind) -> ScriptRun:
    alone = ScriptRun(path.parent, {}, alone=(kind, path))
    try:
        run = ScriptRun.open(path.parent)
    except ConfigError:
        return alone
    return run if run.info and run.path(kind).name == path.name else alone


def _kind(path: Path) -> TableKind:
    """Bins or buckets, by the columns of the file."""
    try:
        with path.open(encoding="utf-8") as lines:
            names = lines.readline(_LONGEST_HEADER).split(",")
    except (OSError, UnicodeDecodeError):
        return "bucket_plasticity"  # reading the table tells what is wrong
    return "bins" if "q_bin" in names else "bucket_plasticity"


def _geometry(settings: ScriptSettings, run: FinishedRun) -> BucketGeometry | None:
    recorded = run.geometry
    kind, size = settings.bucket_type, settings.bucket_min_size
    if kind is None and size is None:
        return recorded
    same_type = recorded is not None and kind in (None, recorded.type)
    size = size if size is not None else (recorded.min_size if recorded and same_type else None)
    kind = kind or (recorded.type if recorded else "uniform")
    if size is None:
        raise ConfigError(
            f"bucket_min_size: is required with bucket_type {kind}; the run does not record it"
        )
    return BucketGeometry(kind, size)
