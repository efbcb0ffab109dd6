"""A finished run as figures, comparisons, the page and the library read it.

A finished run at a URL, fetched into the cache folder. Runs and their labels as a caller of the
library gives them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pandas as pd
from filelock import FileLock

from attention_plasticity.metrics import FIDELITY, TableKind
from attention_plasticity.run.head_means import eligible_heads
from attention_plasticity.run.missing import heads_of
from attention_plasticity.run.outputs import FIDELITY_INFO, RUN_FILE, sha256_of
from attention_plasticity.run.run_info import read_run_info
from attention_plasticity.tables.baselines import baselines_of
from attention_plasticity.tables.csv_tables import FILE_NAMES, AnyTable, read_table
from attention_plasticity.tables.fidelity import Means, read_facts, recorded_means, table_means
from attention_plasticity.tables.layer_types import Layers, layer_types, selected_layers
from attention_plasticity.tables.names import clean
from qk_dump.buckets import BucketGeometry, geometry_of
from qk_toolkit.errors import ConfigError, StoreError, ToolkitError
from qk_toolkit.files import resolved, user_path
from qk_toolkit.formatting import count, index_ranges
from qk_toolkit.mirror import Mirror, mirror_folder
from qk_toolkit.store import DamagedFileError
from qk_toolkit.urls import is_remote


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """The folder of a finished run: its tables as DataFrames, and run.json as `info`."""

    folder: Path
    info: dict[str, Any]
    layers: frozenset[int] | None = None  # of the tables; None: all
    url: str | None = None  # where the run is, if the folder is a copy
    chosen: bool = False  # whether layers were chosen by their numbers

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open the folder of a run, or its URL. `info` is empty if there are only tables.

        The tables of a URL are fetched into the cache folder, if they have changed.
        """
        if is_remote(folder):
            url = str(folder).rstrip("/")
            return replace(cls.open(fetched_run(url)), url=url)
        path = user_path(folder)
        if not path.is_dir():
            if path.exists():
                raise ConfigError(
                    f"{path}: is a file, not the folder of a run; give the output_dir of an "
                    "analysis"
                )
            raise ConfigError(
                f"{path}: does not exist; give the output_dir of an analysis, or run it first: "
                f"attention-plasticity analyze --dataset_local_root DUMP --output_dir {path}"
            )
        file = path / RUN_FILE
        try:
            info = read_run_info(file)
        except FileNotFoundError as error:
            if not any((path / name).is_file() for name in FILE_NAMES.values()):
                raise ConfigError(
                    f"{path}: holds neither {RUN_FILE} nor tables; give the output_dir of an "
                    "analysis"
                ) from error
            info = {}
        return cls(path, info)

    @property
    def place(self) -> str:
        """The folder or the URL of the run, for messages."""
        return self.url or str(self.folder)

    def __repr__(self) -> str:
        heads = (self.info.get("heads") or {}).get("analysed")
        parts = [self.model_name]
        if self.selection is not None:
            parts.append(self.selection)
        elif isinstance(heads, int):
            parts.append(count(heads, "head"))
        return f"<{type(self).__name__} {self.place!r}: {', '.join(parts)}>"

    @property
    def selection(self) -> str | None:
        """The selected layers, such as `layers 0-3`; None for the whole run."""
        return None if self.layers is None else f"layers {index_ranges(self.layers)}"

    def select(self, layers: Layers | None = None, layer_type: str | None = None) -> Self:
        """The same run with the heads of some layers only: `layers="0-3,8"`, or one type."""
        if layers is None and layer_type is None:
            return self
        return replace(
            self,
            layers=selected_layers(self.layer_types, layers, layer_type),
            chosen=self.chosen or layers is not None,
        )

    @cached_property
    def eligible_heads(self) -> int | None:
        """Number of query heads from which the heads were sampled at random; None if not at random.

        Layers that are selected by their type are a random sample of the heads of this type. Layers
        that are selected by their numbers are fixed.
        """
        found = eligible_heads(self.dump, self.settings)
        if found is None or self.chosen:
            return None
        return found.total if self.layers is None else found.of_types(self.layer_types.values())

    @cached_property
    def context(self) -> float:
        """Tokens of the longest text; else up to the last captured query. NaN if not known.

        The last token of a text may not be in the sample of queries.
        """
        longest = self.info.get("longest_text")
        if longest:
            return float(longest)
        whole = self if self.layers is None else replace(self, layers=None)
        metrics = whole.head_metrics
        known = "q_position_max" in metrics
        return float(metrics["q_position_max"].max()) + 1.0 if known else math.nan

    @cached_property
    def layer_types(self) -> dict[int, str]:
        """The type of every layer of the run, such as `full_attention`."""
        if self.fidelity is not None and not self.path("head_metrics").exists():
            return layer_types(self.fidelity)  # a folder with this table alone
        return layer_types(self.head_metrics)

    @cached_property
    def head_metrics(self) -> pd.DataFrame:
        """One row per query head."""
        return self._table("head_metrics")

    @cached_property
    def bucket_plasticity(self) -> pd.DataFrame:
        """One row per query head, query bucket and key bucket."""
        return self._table("bucket_plasticity")

    @property
    def has_bins(self) -> bool:
        """Whether the run has the table of bins: plasticity at one position."""
        return self._has("bins")

    @cached_property
    def bins(self) -> pd.DataFrame:
        """One row per query head, bin of queries and bin of keys: plasticity at one position."""
        return self._table("bins")

    @cached_property
    def component_weights(self) -> pd.DataFrame:
        """One row per query head and dimension."""
        return self._table("component_weights")

    @cached_property
    def influences(self) -> pd.DataFrame | None:
        """Influences of the groups of texts, per head and quantity; None if they are not known."""
        if not self._has("influences"):
            return None
        table = self._table("influences")
        return None if table.empty else table

    @property
    def has_attention(self) -> bool:
        """Whether the run has the table of attention."""
        return self._has("attention")

    @cached_property
    def attention(self) -> pd.DataFrame:
        """Means of attention per query head and query bucket, of a dump with these columns."""
        return self._table("attention")

    @property
    def has_roles(self) -> bool:
        """Whether the run has the table of roles."""
        return self._has("roles")

    @cached_property
    def roles(self) -> pd.DataFrame:
        """What each query head does: its role and scores, of a dump with attention columns."""
        return self._table("roles")

    @property
    def has_words(self) -> bool:
        """Whether the run has the table of words."""
        return self._has("words")

    @cached_property
    def words(self) -> pd.DataFrame:
        """Queries of each head with the word that they attend to most, of a dump with tokens."""
        return self._table("words")

    @property
    def has_bands(self) -> bool:
        """Whether the run has the table of rotary bands."""
        return self._has("bands")

    @property
    def has_kernel(self) -> bool:
        """Whether the run has the table of the rotary kernel; it needs the texts of queries."""
        return self._has("kernel")

    @cached_property
    def bands(self) -> pd.DataFrame:
        """One row per query head and rotary frequency."""
        return self._table("bands")

    @cached_property
    def kernel(self) -> pd.DataFrame:
        """Mean logit and rotary kernel per query head and bin of distances."""
        return self._table("kernel")

    @property
    def has_key_heads(self) -> bool:
        """Whether the run has the table of key heads."""
        return self._has("key_heads")

    @cached_property
    def key_heads(self) -> pd.DataFrame:
        """One row per key head: plasticity and static error of the queries of its group."""
        return self._table("key_heads")

    @property
    def has_drift(self) -> bool:
        """Whether the run has the table of drift."""
        return self._has("drift")

    @cached_property
    def drift(self) -> pd.DataFrame:
        """One row per query head: how its queries and keys drift with position."""
        return self._table("drift")

    @cached_property
    def fidelity(self) -> pd.DataFrame | None:
        """How well scores without a query rank keys, per key head and score; None if unknown.

        The verb `fidelity` puts this table beside those of the analysis.
        """
        if not self.path("fidelity").exists():
            return None
        return self._table("fidelity")

    @cached_property
    def fidelity_means(self) -> Means:
        """Means of `fidelity` over key heads; without errors for a selection of layers."""
        if self.fidelity is None:
            return {}
        means = recorded_means(self.folder) if self.layers is None else None
        return table_means(self.fidelity) if means is None else means

    @cached_property
    def failures(self) -> pd.DataFrame:
        """Heads that could not be analysed, each with the reason."""
        columns = ["layer", "q_head", "k_head", "reason"]
        return pd.DataFrame(self.info.get("failures") or [], columns=columns)

    @cached_property
    def missing(self) -> pd.DataFrame:
        """Values of `head_metrics` that are NaN, each with the reason.

        Columns: `layer, q_head, column, reason`. Empty if there is no run.json.
        """
        rows = self.missing_values("head_metrics")
        table = pd.DataFrame(rows, columns=["layer", "q_head", "column", "reason"])
        return table.sort_values(["layer", "q_head"], kind="stable", ignore_index=True)

    def missing_values(self, kind: TableKind) -> list[tuple[int, int, str, str]]:
        """Layer, head, column and reason of the values of a table that are NaN.

        The head is a key head in the table of key heads, and else a query head.
        """
        return [
            (layer, head, column, record["reason"])
            for record in self.info.get("missing") or []
            if record["table"] == kind
            for layer, head in self._heads_of(record["where"])
            for column in record["columns"]
        ]

    def _heads_of(self, where: dict[str, str]) -> Iterator[tuple[int, int]]:
        try:
            for layer, q_head in heads_of(where):
                if self.layers is None or layer in self.layers:
                    yield layer, q_head
        except ValueError as error:
            raise ConfigError(
                f"{self.place}: {RUN_FILE}: missing: where: {error}. The file was edited or "
                "damaged; run the analysis again"
            ) from error

    def _has(self, kind: TableKind) -> bool:
        tables = self.info.get("tables")
        return self.path(kind).exists() if tables is None else kind in tables

    def _table(self, kind: AnyTable) -> pd.DataFrame:
        table = read_table(self.checked_path(kind), kind)
        if self.layers is None:
            return table
        return table[table["layer"].isin(self.layers)].reset_index(drop=True)

    @cached_property
    def baselines(self) -> dict[str, Self]:
        """Small runs of the same heads with `random weights` and with `shuffled tokens`.

        The verb `baseline` makes them. Those with another capture or other settings of the analysis
        than this run are left out.
        """
        return {
            one.words: replace(self, folder=one.folder, info=one.info)
            for one in baselines_of(self.folder, self.info)
            if one.fits
        }

    @cached_property
    def _input(self) -> dict[str, Any]:
        """The dump of the run; that of fidelity.json in a folder which has only its table."""
        info = self.info or read_facts(self.folder) or {}
        return info.get("input") or {}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the analysis; empty if they are not recorded."""
        return self.info.get("config") or {}

    @property
    def texts(self) -> dict[str, Any]:
        """Number and digest of the texts; empty if they are not recorded."""
        return self._input.get("texts") or {}

    @property
    def layout(self) -> dict[str, Any]:
        """Numbers of layers, query heads and key heads; empty if they are not known."""
        found = self.info.get("head_layout") or self.dump
        names = ("num_layers", "num_q_heads", "num_k_heads")
        return {name: found[name] for name in names if found.get(name)}

    @property
    def dump(self) -> dict[str, Any]:
        """The manifest of the dump that was analysed."""
        return self._input.get("dump") or {}

    @property
    def pair_sampling(self) -> str | None:
        """How the key pairs of the run were drawn; None if the run does not record it."""
        value = self.settings.get("pair_sampling")
        return value if isinstance(value, str) else None

    @property
    def geometry(self) -> BucketGeometry | None:
        """First positions of the buckets, None when the dump does not record them."""
        return geometry_of(self.dump.get("bucket_type"), self.dump.get("min_bucket_size"))

    @property
    def warnings(self) -> list[str]:
        """Warnings of the run about its sample."""
        return [record["text"] for record in self.info.get("warnings") or []]

    @property
    def model_name(self) -> str:
        """The model's name without its owner, or the folder's."""
        model = clean(self.dump.get("model") or "").rstrip("/")
        return model.rsplit("/", 1)[-1].strip() or clean(resolved(self.folder).name)

    def path(self, kind: AnyTable) -> Path:
        """The path of a table."""
        tables = self.info.get("tables")
        if tables == {}:
            raise ConfigError(f"{self.place}: no head was analysed, so there are no tables")
        return self.folder / (tables or FILE_NAMES).get(kind, FILE_NAMES[kind])

    def checked_path(self, kind: AnyTable) -> Path:
        """The path of a table, after a check that the file did not change since the run."""
        path, digest = self.path(kind), (self.info.get("sha256") or {}).get(kind)
        if kind == "fidelity":
            digest = (read_facts(self.folder) or {}).get("sha256")
        if digest is not None and sha256_of(path) != digest:
            shown = path if self.url is None else f"{self.url}/{path.name}"
            raise ToolkitError(
                f"{shown}: is missing, or was changed after the run; run "
                f"{'fidelity' if kind == 'fidelity' else 'the analysis'} again"
            )
        return path


def labels_of(runs: Sequence[FinishedRun], given: Sequence[str] | None = None) -> list[str]:
    """A name for each run: as given, or its model, with the folder for runs of one model."""
    if given is None:
        models = [
            run.model_name if run.selection is None else f"{run.model_name} ({run.selection})"
            for run in runs
        ]
        named = [
            model if models.count(model) == 1 else f"{model} ({clean(resolved(run.folder).name)})"
            for model, run in zip(models, runs, strict=True)
        ]
        return [
            name if named.count(name) == 1 else f"{name} {named[: place + 1].count(name)}"
            for place, name in enumerate(named)
        ]
    labels = [clean(label) for label in given]
    if len(labels) != len(runs):
        raise ConfigError(f"labels: {len(labels)} given for {len(runs)} runs; give one for each")
    if not all(labels) or len(set(labels)) < len(labels):
        raise ConfigError(f"labels: must be different and not empty, got {', '.join(labels)}")
    return labels


def fetched_run(url: str) -> Path:
    """Fetch run.json and the tables of a run, if they have changed. Returns the local folder."""
    folder = mirror_folder(url, "read")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"), _damage_reported():
        mirror = Mirror(url, folder, last=RUN_FILE)
        mirror.pull_exactly(lambda name: name == RUN_FILE)
        tables = set(FILE_NAMES.values())
        if (folder / RUN_FILE).exists():
            tables = set(read_run_info(folder / RUN_FILE).get("tables", {}).values())
        tables |= {FIDELITY.file, FIDELITY_INFO}
        mirror.pull(lambda name: name == RUN_FILE or name in tables)
        if not mirror.listed.keys() & {RUN_FILE, *tables}:
            raise ConfigError(
                f"{url}: holds neither {RUN_FILE} nor tables; give the output_dir of an analysis"
            )
    return folder


@contextmanager
def _damage_reported() -> Iterator[None]:
    try:
        yield
    except DamagedFileError as error:
        raise StoreError(f"{error}; run the analysis again") from error


AnyRun = FinishedRun | str | os.PathLike[str]


def opened_runs(
    runs: Sequence[AnyRun], labels: Sequence[str] | None
) -> tuple[list[FinishedRun], list[str] | None]:
    """The runs, opened where they are folders, and their labels, or None.

    Raises a `ConfigError` for a single run or a text in place of a list, for items of other types,
    and for folders that hold no run.
    """
    return [_opened(run) for run in _listed(runs)], None if labels is None else _texts(labels)


def _listed(runs: Any) -> list[Any]:
    if isinstance(runs, FinishedRun | str | os.PathLike):
        raise ConfigError(f"runs: expected a list of runs, got {runs!r}; put it in a list")
    if not isinstance(runs, Iterable):
        raise ConfigError(f"runs: expected a list of runs, got {runs!r}")
    return list(runs)


def _opened(run: Any) -> FinishedRun:
    if isinstance(run, FinishedRun):
        return run
    if not isinstance(run, str | os.PathLike):
        raise ConfigError(f"runs: expected runs or folders of runs, got {run!r}")
    return FinishedRun.open(run)


def _texts(labels: Any) -> list[str]:
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise ConfigError(f"labels: expected a list of texts, one for each run, got {labels!r}")
    listed = list(labels)
    for label in listed:
        if not isinstance(label, str):
            raise ConfigError(f"labels: {label!r}: expected a text, such as {str(label)!r}")
    return listed
