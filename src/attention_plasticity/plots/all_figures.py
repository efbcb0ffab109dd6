"""All figures of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attention_plasticity.plots.attended import has_attended
from attention_plasticity.plots.drawing import plot_run, with_layers
from attention_plasticity.plots.map import DROP
from attention_plasticity.plots.phase import has_phase
from attention_plasticity.plots.saving import require_target, save_figure
from attention_plasticity.tables.finished_run import FinishedRun

FIGURES: dict[str, tuple[str, dict[str, Any]]] = {
    "plasticity": ("plasticity", {"color_by_layer": True}),
    "heatmap": ("heatmap", {}),
    "components": ("components", {}),
    "map-plasticity": ("map", {}),
    "map-drop": ("map", {"metric": DROP}),
    "profile": ("profile", {}),
    "phase": ("phase", {}),  # only with plasticity at one position
    "predictability": ("predictability", {}),
    "distances": ("distances", {}),  # only of runs with context pairs
    "attention": ("attention", {}),  # this one and the following: only with attention columns
    "map-sink-mass": ("map", {"metric": "attn_sink_mass"}),
    "map-far-mass": ("map", {"metric": "attn_far_mass"}),
    "map-distant-mass": ("map", {"metric": "attn_distant_mass"}),  # if there is no far mass
    "attended": ("attended", {}),
}


def save_all(
    run: FinishedRun | str | os.PathLike[str],
    folder: Path,
    kind: str = "png",
    **options: Any,
) -> Iterator[Path]:
    """Draw all figures of a run and yield the path of each finished file.

    `options` are options that every kind of figure takes, such as `layers` and `title`.
    """
    opened = run if isinstance(run, FinishedRun) else FinishedRun.open(run)
    chosen = with_layers(opened, options.pop("layers", None), options.pop("layer_type", None))
    paths = {name: folder / f"{name}.{kind}" for name in figures_of(chosen)}
    for path in paths.values():
        require_target(path)
    for name, path in paths.items():
        figure, own = FIGURES[name]
        save_figure(plot_run(chosen, figure, {**own, **options}), path)
        yield path


def figures_of(run: FinishedRun) -> list[str]:
    """The names of the figures that the tables of a run allow."""
    missing = set()
    if not run.has_distances:
        missing.add("distances")
    if not run.has_attention:
        missing.add("attention")
    if run.pair_sampling == "attended" or not has_attended(run.head_metrics):
        missing.add("attended")  # with attended pairs both axes would be equal
    if not has_phase(run.head_metrics):
        missing.add("phase")
    for name, (_, options) in FIGURES.items():
        metric = options.get("metric", "")
        if metric.startswith("attn_") and not _known(run, metric):
            missing.add(name)
    if "map-far-mass" not in missing:
        missing.add("map-distant-mass")
    return [name for name in FIGURES if name not in missing]


def _known(run: FinishedRun, metric: str) -> bool:
    return metric in run.head_metrics and bool(run.head_metrics[metric].notna().any())
