"""Draws a figure from its settings: reads the table, and calls the function of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.plots.attended import attended_figure
from attention_plasticity.plots.attention import attention_figure
from attention_plasticity.plots.components import components_figure
from attention_plasticity.plots.distances import distances_figure
from attention_plasticity.plots.fifths import fifths_figure
from attention_plasticity.plots.head_map import head_map_figure
from attention_plasticity.plots.heatmap import heatmap_figure
from attention_plasticity.plots.plasticity import plasticity_figure
from attention_plasticity.plots.predictability import predictability_figure
from attention_plasticity.plots.settings import (
    AttendedPlot,
    AttentionPlot,
    ComponentsPlot,
    DistancesPlot,
    HeatmapPlot,
    MapPlot,
    PlasticityPlot,
    ProfilePlot,
)
from attention_plasticity.tables.csv_tables import TableKind, read_table
from attention_plasticity.tables.finished_run import FinishedRun
from qk_dump.buckets import BucketGeometry
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path

_TABLE_OF: dict[str, TableKind] = {
    "bucket_csv": "bucket_plasticity",
    "component_csv": "component_weights",
    "metrics_csv": "head_metrics",
    "distance_csv": "distances",
    "attention_csv": "attention",
}
_MISSING = {
    "distance_csv": (
        "has no plasticity by distance; run the analysis with --pair_sampling context"
    ),
    "attention_csv": (
        "has no attention by distance; it needs a dump with attention columns (capture.attention)"
    ),
}


def draw(settings: Any) -> Figure:
    """Draw the figure of the settings. Error messages begin with the path of the table."""
    field = next(name for name in _TABLE_OF if hasattr(settings, name))
    run, path = _source(settings, field)
    table = read_table(path, _TABLE_OF[field])
    name = settings.model_name or (run.model_name if run else None)
    options = settings.model_dump(
        exclude={"run", "output", "model_name", field, "bucket_type", "bucket_min_size"}
    )
    try:
        if isinstance(settings, PlasticityPlot | HeatmapPlot):
            return _draw_cells(settings, table, run, model_name=name, **options)
        if isinstance(settings, ComponentsPlot):
            return components_figure(table, model_name=name, **options)
        if isinstance(settings, MapPlot):
            return head_map_figure(table, model_name=name, **options)
        if isinstance(settings, ProfilePlot):
            influences = run.influences if run else None
            return fifths_figure(table, influences=influences, model_name=name, **options)
        if isinstance(settings, DistancesPlot):
            geometry = run.geometry if run else None
            return distances_figure(table, geometry=geometry, model_name=name, **options)
        if isinstance(settings, AttentionPlot):
            return attention_figure(table, model_name=name, **options)
        if isinstance(settings, AttendedPlot):
            return attended_figure(table, model_name=name, **options)
        return predictability_figure(table, model_name=name, **options)
    except ConfigError as error:
        raise ConfigError(str(error).replace("the table of", f"{path}, the table of", 1)) from error


def _draw_cells(
    settings: PlasticityPlot | HeatmapPlot,
    cells: pd.DataFrame,
    run: FinishedRun | None,
    **options: Any,
) -> Figure:
    geometry = _geometry(settings, run)
    if isinstance(settings, HeatmapPlot):
        return heatmap_figure(cells, geometry=geometry, **options)
    explicit = settings.bucket_type is not None or settings.bucket_min_size is not None
    influences = run.influences if run else None
    return plasticity_figure(
        cells, influences=influences, geometry=geometry, at_starts=explicit, **options
    )


def _source(settings: Any, field: str) -> tuple[FinishedRun | None, Path]:
    """The run and the path of a table. A table without a run may be in the folder of its run."""
    if settings.run is not None:
        run = FinishedRun.open(settings.run)
        missing = {"distance_csv": not run.has_distances, "attention_csv": not run.has_attention}
        if missing.get(field):
            raise ConfigError(f"{settings.run}: {_MISSING[field]}")
        return run, run.checked_path(_TABLE_OF[field])
    path = user_path(getattr(settings, field))
    if path.is_dir():
        raise ConfigError(f"{field}: {path}: is a folder; give a table, or --run and the folder")
    try:
        run = FinishedRun.open(path.parent)
    except ConfigError:
        return None, path
    kind = _TABLE_OF[field]
    if not run.info or run.path(kind).name != path.name:
        return None, path
    return run, run.checked_path(kind)


def _geometry(
    settings: PlasticityPlot | HeatmapPlot, run: FinishedRun | None
) -> BucketGeometry | None:
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
