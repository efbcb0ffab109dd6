"""All figures of a run, with default settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attention_plasticity.plots.drawing import draw
from attention_plasticity.plots.saving import require_target, save_figure
from attention_plasticity.plots.settings import KINDS
from attention_plasticity.tables.finished_run import FinishedRun

FIGURES: dict[str, tuple[str, dict[str, Any]]] = {
    "plasticity": ("plasticity", {"color_by_layer": True}),
    "heatmap": ("heatmap", {}),
    "components": ("components", {}),
    "map-plasticity": ("map", {"metric": "ap_overall"}),
    "map-drop": ("map", {"metric": "ap_drop"}),
    "profile": ("profile", {}),
    "predictability": ("predictability", {}),
    "distances": ("distances", {}),  # only of runs with context pairs
}


def save_all(run: Path, folder: Path, kind: str = "png") -> Iterator[Path]:
    """Draw all figures and yield the path of each finished file."""
    figures = dict(FIGURES)
    if not FinishedRun.open(run).has_distances:
        del figures["distances"]
    paths = {name: folder / f"{name}.{kind}" for name in figures}
    for path in paths.values():
        require_target(path)
    for name, (figure, options) in figures.items():
        path = paths[name]
        settings = KINDS[figure](run=str(run), output=str(path), **options)
        save_figure(draw(settings), path)
        yield path
