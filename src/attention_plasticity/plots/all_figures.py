"""All figures of a run, with default settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attention_plasticity.plots.attended import has_attended
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
    "attention": ("attention", {}),  # this one and the following: only with attention columns
    "map-sink-mass": ("map", {"metric": "attn_sink_mass"}),
    "map-distant-mass": ("map", {"metric": "attn_distant_mass"}),
    "attended": ("attended", {}),
}


def save_all(run: Path, folder: Path, kind: str = "png") -> Iterator[Path]:
    """Draw all figures and yield the path of each finished file."""
    figures = {name: FIGURES[name] for name in figures_of(FinishedRun.open(run))}
    paths = {name: folder / f"{name}.{kind}" for name in figures}
    for path in paths.values():
        require_target(path)
    for name, (figure, options) in figures.items():
        path = paths[name]
        settings = KINDS[figure](run=str(run), output=str(path), **options)
        save_figure(draw(settings), path)
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
    for name, (figure, options) in FIGURES.items():
        metric = options.get("metric", "ap_overall")
        if figure == "map" and metric.startswith("attn_") and not _known(run, metric):
            missing.add(name)
    return [name for name in FIGURES if name not in missing]


def _known(run: FinishedRun, metric: str) -> bool:
    return metric in run.head_metrics and bool(run.head_metrics[metric].notna().any())
