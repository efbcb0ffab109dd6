"""A finished run as figures, comparisons, the page and the library read it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pandas as pd

from attention_plasticity.metrics import (
    LEFT_OUT,
    ORIGINAL_COLUMNS,
    ORIGINAL_TABLES,
    TABLES,
    TableKind,
)
from attention_plasticity.tables.baselines import baselines_of
from attention_plasticity.tables.csv_tables import read_table, require_values
from attention_plasticity.tables.fetched_run import fetched_run
from attention_plasticity.tables.head_means import eligible_heads
from attention_plasticity.tables.layer_types import (
    Layers,
    index_numbers,
    layer_types,
    selected_layers,
)
from attention_plasticity.tables.missing import heads_of
from attention_plasticity.tables.names import clean
from attention_plasticity.tables.run_info import RUN_FILE, read_run_info, sha256_of
from qk_dump.layout import kinds_in
from qk_dump.positions import BucketGeometry, geometry_of
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import resolved, user_path
from qk_toolkit.formatting import count, index_ranges
from qk_toolkit.settings import nearest
from qk_toolkit.urls import is_remote


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """The folder of a finished run: its tables as DataFrames, and run.json as `info`."""

    folder: Path
    info: dict[str, Any]
    layers: frozenset[int] | None = None  # of the tables; None: all
    url: str | None = None  # where the run is, if the folder is a copy
    chosen: bool = False  # whether layers or heads were chosen by their numbers
    heads: frozenset[int] | None = None  # of the tables; None: all
    _tables: dict[TableKind, pd.DataFrame] = field(default_factory=dict, init=False, compare=False)

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
                f"attention-plasticity analyze DUMP {path}"
            )
        file = path / RUN_FILE
        try:
            info = read_run_info(file)
        except FileNotFoundError as error:
            if not any((path / table.file).is_file() for table in TABLES.values()):
                raise ConfigError(f"{path}: {_why_no_run(path)}") from error
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
        """The selected layers and heads, such as `layers 0-3`; None for the whole run."""
        parts = {"layer": self.layers, "head": self.heads}
        known = [
            f"{name}{'s' * (len(numbers) > 1)} {index_ranges(numbers)}"
            for name, numbers in parts.items()
            if numbers is not None
        ]
        return ", ".join(known) or None

    def select(
        self,
        layers: Layers | None = None,
        layer_type: str | None = None,
        heads: Layers | None = None,
    ) -> Self:
        """The same run with some heads only: `layers="0-3,8"`, one type of layers, `heads="0"`.

        `heads` are numbers in a layer: of key heads in their tables, else of query heads.
        """
        if layers is None and layer_type is None and heads is None:
            return self
        numbers = self.heads if heads is None else frozenset(index_numbers(heads, "heads"))
        if heads is not None and self.has("head_metrics"):
            known = set(self.head_metrics["q_head"].tolist())
            if missing := set(numbers or ()) - known:
                raise ConfigError(
                    f"heads: {index_ranges(missing)} given; the table has heads "
                    f"{index_ranges(known)}"
                )
        of_layers = self.layers
        if layers is not None or layer_type is not None:
            of_layers = selected_layers(self.layer_types, layers, layer_type)
        chosen = self.chosen or layers is not None or heads is not None
        return replace(self, layers=of_layers, heads=numbers, chosen=chosen)

    @cached_property
    def eligible_heads(self) -> int | None:
        """Number of query heads from which the heads were sampled at random; None if not at random.

        Layers that are selected by their type are a random sample of the heads of this type. Layers
        that are selected by their numbers are fixed.
        """
        found = eligible_heads(self.dump, all_heads=self._all_heads)
        if found is None or self.chosen:
            return None
        return found.total if self.layers is None else found.of_types(self.layer_types.values())

    @property
    def _all_heads(self) -> bool:
        """Whether all captured heads were analysed, or failed."""
        left = (self.info.get("heads") or {}).get("not_analysed", 0)
        layers, captured = self.layout.get("num_layers"), self.dump.get("num_layers")
        return not left and (layers is None or captured is None or layers >= captured)

    @cached_property
    def context(self) -> float:
        """Tokens of the longest text; else up to the last captured query. NaN if not known.

        The last token of a text may not be in the sample of queries.
        """
        longest = self.info.get("longest_text")
        if longest:
            return float(longest)
        whole = replace(self, layers=None, heads=None) if self.selection else self
        metrics = whole.head_metrics
        known = "q_position_max" in metrics
        return float(metrics["q_position_max"].max()) + 1.0 if known else math.nan

    @cached_property
    def layer_types(self) -> dict[int, str]:
        """The type of every layer of the run, such as `full_attention`."""
        return layer_types(self.head_metrics)

    @property
    def head_metrics(self) -> pd.DataFrame:
        """One row per query head."""
        return self.table("head_metrics")

    @property
    def bucket_plasticity(self) -> pd.DataFrame:
        """One row per query head, query bucket and key bucket."""
        return self.table("bucket_plasticity")

    @property
    def component_weights(self) -> pd.DataFrame:
        """One row per query head and dimension."""
        return self.table("component_weights")

    @cached_property
    def influences(self) -> pd.DataFrame | None:
        """Influences of the groups of texts, per head and quantity; None if they are not known."""
        if not self.has("influences") or self.table("influences").empty:
            return None
        return self.table("influences")

    def has(self, kind: TableKind) -> bool:
        """Whether the run has a table: `bins`, `roles` and so on, the names in `metrics.TABLES`."""
        tables = self.info.get("tables")
        return self.path(kind).exists() if tables is None else kind in tables

    def table(self, kind: TableKind) -> pd.DataFrame:
        """A table of the run, with the selected layers. It is read once.

        Columns of the table of heads that the analysis left out are NaN.
        """
        if kind not in self._tables:
            table = read_table(self._checked_path(kind), kind)
            if kind == "head_metrics" and not self.has_original:
                table = table.reindex(columns=TABLES[kind].names)
            self._tables[kind] = self._selected(table)
        return self._tables[kind]

    def _selected(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of the selected layers and heads."""
        head = "q_head" if "q_head" in table else "k_head"
        for name, numbers in (("layer", self.layers), (head, self.heads)):
            if numbers is not None:
                table = table[table[name].isin(numbers)].reset_index(drop=True)
        return table

    def path(self, kind: TableKind) -> Path:
        """The path of a table."""
        if kind not in TABLES:
            raise ConfigError(f"{kind!r}: unknown table{nearest(kind, TABLES)}")
        if self.info.get("tables") == {}:
            raise ConfigError(f"{self.place}: no head was analysed, so there are no tables")
        return self.folder / TABLES[kind].file

    @property
    def has_original(self) -> bool:
        """Whether the run has the columns and tables of the original definition."""
        return self.settings.get("original_columns") is not False

    def require_values(self, kind: TableKind, column: str) -> None:
        """Raise a `ConfigError` if no head has a value of a column."""
        if column in ORIGINAL_COLUMNS and kind == "head_metrics" and not self.has_original:
            raise ConfigError(f"{self.place}: has no {column}, because {LEFT_OUT}")
        require_values(self.table(kind), column, self.path(kind))

    def _checked_path(self, kind: TableKind) -> Path:
        """The path of a table, after a check that the file did not change since the run."""
        if kind in ORIGINAL_TABLES and not self.has_original:
            raise ConfigError(f"{self.place}: has no {TABLES[kind].file}, because {LEFT_OUT}")
        path, digest = self.path(kind), (self.info.get("sha256") or {}).get(kind)
        if digest is not None and sha256_of(path) != digest:
            shown = path if self.url is None else f"{self.url}/{path.name}"
            raise ToolkitError(
                f"{shown}: is missing, or was changed after the run; run the analysis again"
            )
        return path

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
        for layer, q_head in heads_of(where):
            chosen = self.layers is None or layer in self.layers
            if chosen and (self.heads is None or q_head in self.heads):
                yield layer, q_head

    @cached_property
    def baselines(self) -> dict[str, list[Self]]:
        """Small runs of the same heads with `random weights` and with `shuffled tokens`: all draws.

        `study --baselines` makes them. Those with another capture or other settings of the analysis
        than this run are left out.
        """
        found: dict[str, list[Self]] = {}
        for one in baselines_of(self.folder, self.info):
            if one.fits:
                own = replace(self, folder=one.folder, info=one.info)
                found.setdefault(one.words, []).append(own)
        return found

    @property
    def _input(self) -> dict[str, Any]:
        return self.info.get("input") or {}

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


def _why_no_run(folder: Path) -> str:
    """What a folder without run.json and tables is."""
    heads, kinds = sum(1 for _ in folder.glob(".heads/*/l*.record")), kinds_in(folder)
    if heads:
        return (
            f"the analysis is not finished: {count(heads, 'key head')} recorded so far, and no "
            "tables; run the same command again to continue"
        )
    if "study" in kinds:
        return f"is the folder of a study; give one of the runs in {folder}/runs"
    if "dump" in kinds:
        return f"is a dump; analyse it first: attention-plasticity analyze {folder} RUN"
    inside = sorted(file.parent for file in folder.glob(f"*/{RUN_FILE}"))
    such = f", such as {inside[0]}" if inside else ""
    return f"holds neither {RUN_FILE} nor tables; give the folder of an analysis{such}"


AnyRun = FinishedRun | str | os.PathLike[str]


def opened_runs(
    runs: Sequence[AnyRun], labels: Sequence[str] | None
) -> tuple[list[FinishedRun], list[str] | None]:
    """The runs, opened where they are folders, and their labels, or None.

    Raises a `ConfigError` for a single run or a text in place of a list.
    """
    if isinstance(runs, FinishedRun | str | os.PathLike):
        raise ConfigError(f"runs: expected a list of runs, got {runs!r}; put it in a list")
    if isinstance(labels, str):
        raise ConfigError(f"labels: expected a list of texts, one for each run, got {labels!r}")
    opened = [run if isinstance(run, FinishedRun) else FinishedRun.open(run) for run in runs]
    return opened, None if labels is None else list(labels)
