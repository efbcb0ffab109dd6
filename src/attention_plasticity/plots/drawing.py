"""Draws a figure from its settings: reads the table, and calls the function of its kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.metrics import TableKind
from attention_plasticity.plots.attended import attended_figure
from attention_plasticity.plots.attention import attention_figure
from attention_plasticity.plots.bands import bands_figure
from attention_plasticity.plots.by_role import by_role_figure
from attention_plasticity.plots.captions import add_run
from attention_plasticity.plots.components import components_figure
from attention_plasticity.plots.drift import drift_figure
from attention_plasticity.plots.fidelity import fidelity_figure
from attention_plasticity.plots.frequencies import frequencies_figure
from attention_plasticity.plots.heatmap import heatmap_figure
from attention_plasticity.plots.kernel import kernel_figure
from attention_plasticity.plots.key_heads import key_heads_figure
from attention_plasticity.plots.map import map_figure
from attention_plasticity.plots.phase import phase_figure
from attention_plasticity.plots.plasticity import plasticity_figure
from attention_plasticity.plots.predictability import predictability_figure
from attention_plasticity.plots.profile import profile_figure
from attention_plasticity.plots.roles import roles_figure
from attention_plasticity.plots.settings import KINDS
from attention_plasticity.plots.shown import NONE_AT_ONE_POSITION
from attention_plasticity.tables.csv_tables import read_table
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.layer_types import (
    layer_numbers,
    layer_types,
    selected_layers,
    type_words,
)
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, main_plasticity
from qk_dump.buckets import BucketGeometry
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.files import user_path
from qk_toolkit.formatting import index_ranges
from qk_toolkit.settings import nearest, validated

FUNCTIONS: dict[str, Callable[..., Figure]] = {
    "plasticity": plasticity_figure,
    "heatmap": heatmap_figure,
    "components": components_figure,
    "map": map_figure,
    "profile": profile_figure,
    "phase": phase_figure,
    "predictability": predictability_figure,
    "attention": attention_figure,
    "attended": attended_figure,
    "bands": bands_figure,
    "kernel": kernel_figure,
    "frequencies": frequencies_figure,
    "roles": roles_figure,
    "by_role": by_role_figure,
    "key_heads": key_heads_figure,
    "drift": drift_figure,
    "fidelity": fidelity_figure,
}
_TABLE_OF: dict[str, TableKind] = {
    "bucket_csv": "bucket_plasticity",
    "component_csv": "component_weights",
    "metrics_csv": "head_metrics",
    "attention_csv": "attention",
    "band_csv": "bands",
    "kernel_csv": "kernel",
    "roles_csv": "roles",
    "key_head_csv": "key_heads",
    "fidelity_csv": "fidelity",
    "drift_csv": "drift",
}
NO_BANDS = "has no rotary bands; the rotary embedding of its layers is not known"
NO_KERNEL = "has no rotary kernel; it needs rotary bands and the texts of the queries"
NO_KEY_HEADS = "has no table of key heads; it needs the texts of the rows; analyze again"
_MISSING: dict[TableKind, str] = {
    "bins": NONE_AT_ONE_POSITION,
    "attention": (
        "has no attention by distance; it needs a dump with attention columns (capture.attention)"
    ),
    "bands": NO_BANDS,
    "kernel": NO_KERNEL,
    "key_heads": NO_KEY_HEADS,
    "fidelity": "has no table of fidelity; run attention-plasticity analyze with --fidelity",
    "drift": "has no table of drift; it needs the texts of queries and keys",
    "roles": "has no roles; they need a dump with attention columns (capture.attention)",
}
_PLACES = frozenset({"run", "output", *_TABLE_OF})  # where a command reads and writes
_OF_CELLS = ("plasticity", "profile", "heatmap")  # figures of the table of bins or of cells
_CHOICES = frozenset(
    {"layers", "layer_type", "bucket_type", "bucket_min_size", "model_name", "baselines"}
)


_LONGEST_HEADER = 1 << 16  # characters


@dataclass(frozen=True)
class _Source:
    """A table, and the run that it belongs to."""

    table: pd.DataFrame
    path: Path
    run: FinishedRun | None
    selection: str | None  # the chosen layers in words


def draw(settings: Any) -> Figure:
    """Draw the figure of the settings of a command."""
    return _draw(settings, _source(settings, _table_field(settings)))


def plot_run(run: FinishedRun, kind: str, options: Mapping[str, Any]) -> Figure:
    """Draw a figure of an opened run. The options are those of `plot KIND`."""
    if not isinstance(kind, str):
        raise ConfigError(f"kind: expected one of {', '.join(KINDS)}, got {in_short(kind)}")
    if kind not in KINDS:
        raise ConfigError(f"{kind!r}: unknown kind of figure{_hint(kind, KINDS)}")
    known = [name for name in KINDS[kind].model_fields if name not in _PLACES]
    for name in options:
        if name not in known:
            raise ConfigError(f"{name}: unknown option of {kind!r}{_hint(name, known)}")
    given = {**options, "run": run.place}
    if given.get("layers") is not None:
        given["layers"] = layer_numbers(given["layers"])
    settings: Any = validated(KINDS[kind], given)
    return _draw(settings, _of_run(run, _kind(run, _table_field(settings), settings), settings))


def with_layers(
    run: FinishedRun, layers: Iterable[int] | None, layer_type: str | None
) -> FinishedRun:
    """The run with the chosen layers, or as it is if none are chosen."""
    return run if layers is None and layer_type is None else run.select(layers, layer_type)


def _hint(name: str, known: Any) -> str:
    """The most similar name, or all names."""
    return nearest(name, known, otherwise=f"; there are {', '.join(known)}")


def _draw(settings: Any, source: _Source) -> Figure:
    """Error messages begin with the path of the table."""
    kind = next(name for name, model in KINDS.items() if type(settings) is model)
    run = source.run
    options = settings.model_dump(exclude=_PLACES | _CHOICES)
    if kind in _OF_CELLS:
        options.pop("plasticity")  # it has chosen the table
    if kind == "frequencies" and run is not None and options["limit"] is None:
        options["limit"] = run.info.get("bin_size")
    name = settings.model_name or (run.model_name if run else None)
    try:
        figure = FUNCTIONS[kind](
            source.table,
            model_name=name,
            selection=source.selection,
            **options,
            **_extra_inputs(kind, settings, run),
        )
    except ConfigError as error:
        message = str(error).replace("the table of", f"{source.path}, the table of", 1)
        raise ConfigError(message) from error
    if run is not None:
        add_run(figure, run)
    return figure


def _extra_inputs(kind: str, settings: Any, run: FinishedRun | None) -> dict[str, Any]:
    """Arguments of a figure in addition to its table."""
    if kind in ("plasticity", "profile"):
        return {
            "influences": run.influences if run else None,
            "geometry": _geometry(settings, run),
            "pair_sampling": run.pair_sampling if run else None,
            "at_starts": settings.has_buckets,
            "eligible_heads": run.eligible_heads if run else None,
            "baselines": run.baselines if run and settings.baselines else None,
        }
    if kind == "heatmap":
        types = run.layer_types if run and _has(run, "head_metrics") else None
        return {"geometry": _geometry(settings, run), "layer_types": types}
    if run is None:
        return {}
    if kind == "by_role":
        if not run.has("roles"):
            raise ConfigError(f"{run.place}: {_MISSING['roles']}")
        return {"influences": run.influences, "roles": run.table("roles")}
    if kind == "fidelity":
        return {"means": run.fidelity_means}
    if kind in ("map", "attended", "phase"):
        return {"influences": run.influences}
    if kind == "bands":
        context = run.context if _has(run, "head_metrics") else math.nan
        return {"context": None if math.isnan(context) else context}
    if kind in ("kernel", "frequencies"):
        metrics = run.head_metrics if _has(run, "head_metrics") else None
        return {"metrics": metrics, "influences": run.influences}
    return {}


def _table_field(settings: Any) -> str:
    return next(name for name in _TABLE_OF if hasattr(settings, name))


def _kind(run: FinishedRun, field: str, settings: Any) -> TableKind:
    """The table of a field of the settings: bins instead of cells, if the run has them."""
    kind = _TABLE_OF[field]
    if kind != "bucket_plasticity" or settings.plasticity == "bucket":
        return kind
    if settings.plasticity == "position":
        return "bins"
    if not run.has("bins") or getattr(settings, "has_buckets", False):
        return kind
    if not _has(run, "head_metrics"):
        return "bins"
    chosen = with_layers(run, settings.layers, settings.layer_type)
    return "bins" if main_plasticity(chosen.head_metrics) is AT_ONE_POSITION else kind


def _has(run: FinishedRun, kind: TableKind) -> bool:
    return run.path(kind).exists()


def _source(settings: Any, field: str) -> _Source:
    """The table of a command. A table without a run may be in the folder of its run."""
    if settings.run is not None:
        opened = FinishedRun.open(settings.run)
        return _of_run(opened, _kind(opened, field, settings), settings)
    path = user_path(getattr(settings, field))
    if path.is_dir():
        raise ConfigError(f"{field}: {path}: is a folder; give a table, or --run and the folder")
    kind = _kind_of_file(path, _TABLE_OF[field])
    try:
        run = FinishedRun.open(path.parent)
    except ConfigError:
        return _of_table(path, kind, settings)
    if not run.info or run.path(kind).name != path.name:
        return _of_table(path, kind, settings)
    return _of_run(run, kind, settings)


def _kind_of_file(path: Path, kind: TableKind) -> TableKind:
    """The table of bins, if cells are wanted and the file has the columns of bins."""
    if kind != "bucket_plasticity":
        return kind
    try:
        with path.open(encoding="utf-8") as lines:
            return "bins" if "q_bin" in lines.readline(_LONGEST_HEADER).split(",") else kind
    except (OSError, UnicodeDecodeError):
        return kind  # reading the table tells what is wrong


def _of_run(run: FinishedRun, kind: TableKind, settings: Any) -> _Source:
    if kind in _MISSING and not run.has(kind):
        raise ConfigError(f"{run.place}: {_MISSING[kind]}")
    run = with_layers(run, settings.layers, settings.layer_type)
    types = run.layer_types if run.layers is not None else {}
    return _Source(run.table(kind), run.path(kind), run, _selection(run.layers, types))


def _of_table(path: Path, kind: TableKind, settings: Any) -> _Source:
    table = read_table(path, kind)
    if settings.layers is None and settings.layer_type is None:
        return _Source(table, path, None, None)
    typed = {"layer_type", "sliding_window"} & set(table.columns)
    if settings.layer_type is not None and not typed:
        raise ConfigError(
            f"layer_type: {path} has no types of layers; choose layers by number with --layers, or "
            "give the folder of the run"
        )
    types = layer_types(table)
    layers = selected_layers(types, settings.layers, settings.layer_type)
    chosen = table[table["layer"].isin(layers)].reset_index(drop=True)
    named = {layer: types[layer] for layer in layers} if typed else {}
    return _Source(chosen, path, None, _selection(layers, named))


def _selection(layers: frozenset[int] | None, types: Mapping[int, str]) -> str | None:
    """`layers 0-3`, with their type if it is the same: `layers 5,11 (full attention)`."""
    if layers is None:
        return None
    named = f"layer{'s' * (len(layers) > 1)} {index_ranges(layers)}"
    kinds = {types[layer] for layer in layers & types.keys()}
    return f"{named} ({type_words(kinds.pop())})" if len(kinds) == 1 else named


def _geometry(settings: Any, run: FinishedRun | None) -> BucketGeometry | None:
    recorded = run.geometry if run else None
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
