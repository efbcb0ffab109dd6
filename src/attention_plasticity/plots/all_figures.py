"""All figures of a run."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from attention_plasticity.plots.attended import has_attended
from attention_plasticity.plots.drawing import plot_run, with_layers
from attention_plasticity.plots.key_heads import STATIC_ERROR
from attention_plasticity.plots.map import DROP
from attention_plasticity.plots.phase import has_phase
from attention_plasticity.plots.saving import require_target, save_figure
from attention_plasticity.roles import UNSURE
from attention_plasticity.tables.finished_run import FinishedRun

FIGURES: dict[str, tuple[str, dict[str, Any]]] = {
    "plasticity": ("plasticity", {"color_by_layer": True}),
    "heatmap": ("heatmap", {}),
    "components": ("components", {}),
    "map-plasticity": ("map", {}),
    "map-drop": ("map", {"metric": DROP}),  # only with plasticity at one position
    "profile": ("profile", {}),
    "phase": ("phase", {}),  # only with plasticity at one position
    "predictability": ("predictability", {}),
    "attention": ("attention", {}),  # this one and the following: only with attention columns
    "map-sink-mass": ("map", {"metric": "attn_sink_mass"}),
    "map-far-mass": ("map", {"metric": "attn_far_mass"}),
    "attended": ("attended", {}),
    "bands": ("bands", {}),  # this one and the following: only with a known rotary embedding
    "kernel": ("kernel", {}),
    "frequencies": ("frequencies", {}),
    "roles": ("roles", {}),
    "by-role": ("by_role", {}),  # only with plasticity at one position, too
    "key-heads": ("key_heads", {}),
    "fidelity": ("fidelity", {}),  # only with --fidelity
    "drift": ("drift", {}),
}

_NEEDS_ATTENTION = "needs a dump with attention columns: capture.attention"
_NEEDS_ONE_POSITION = (
    "needs plasticity at one position: attention-plasticity add-rotary, and analyze again"
)
_NEEDS_RECORDS = (
    "needs the rotary embedding and the texts: attention-plasticity add-rotary, and analyze again"
)
_NEEDS_TEXTS = "needs the texts of queries and keys: analyze again"
_NEEDS_FIDELITY = "needs attention-plasticity analyze … --fidelity"
_ALL_UNSURE = "the roles of all heads are unsure"


def save_all(
    run: FinishedRun | str | os.PathLike[str],
    folder: Path,
    kind: str = "png",
    only: Collection[str] | None = None,
    **options: Any,
) -> Iterator[Path]:
    """Draw all figures of a run and yield the path of each finished file.

    `only` has the names of the figures that are wanted; None: all. `options` are options that every
    kind of figure takes, such as `layers` and `title`.
    """
    opened = run if isinstance(run, FinishedRun) else FinishedRun.open(run)
    chosen = with_layers(opened, options.pop("layers", None), options.pop("layer_type", None))
    names = [name for name in figures_of(chosen) if only is None or name in only]
    paths = {name: folder / f"{name}.{kind}" for name in names}
    for path in paths.values():
        require_target(path)
    for name, path in paths.items():
        figure, own = FIGURES[name]
        save_figure(plot_run(chosen, figure, {**own, **options}), path)
        yield path


def figures_of(run: FinishedRun) -> list[str]:
    """The names of the figures that the tables of a run allow."""
    missing = left_out(run)
    return [name for name in FIGURES if name not in missing]


def left_out(run: FinishedRun) -> dict[str, str]:
    """The figures that the tables of a run do not allow, each with the reason."""
    reasons: dict[str, str] = {}
    if not run.has("attention"):
        reasons["attention"] = _NEEDS_ATTENTION
    if not has_attended(run.head_metrics):
        reasons["attended"] = _NEEDS_ATTENTION
    if not has_phase(run.head_metrics):
        reasons |= dict.fromkeys(("map-drop", "phase", "by-role"), _NEEDS_ONE_POSITION)
        if run.has("attention"):
            reasons["attended"] = _NEEDS_ONE_POSITION
    if not run.has("roles"):
        reasons["roles"] = reasons["by-role"] = _NEEDS_ATTENTION
    elif not (run.table("roles")["role"] != UNSURE).any():
        reasons["by-role"] = _ALL_UNSURE
    if not (run.has("key_heads") and run.table("key_heads")[STATIC_ERROR].notna().any()):
        reasons["key-heads"] = _NEEDS_TEXTS
    if not run.has("fidelity"):
        reasons["fidelity"] = _NEEDS_FIDELITY
    if not (run.has("bands") and run.table("bands")["variance_share"].notna().any()):
        reasons["bands"] = reasons["frequencies"] = _NEEDS_RECORDS
    elif "phase" in reasons or run.info.get("bin_size") is None:
        reasons["frequencies"] = _NEEDS_ONE_POSITION
    if not (run.has("kernel") and run.table("kernel")["kernel"].notna().any()):
        reasons["kernel"] = _NEEDS_RECORDS
    if not run.has("drift"):
        reasons["drift"] = _NEEDS_TEXTS
    for name, (_, options) in FIGURES.items():
        metric = options.get("metric", "")
        if metric.startswith("attn_") and not _known(run, metric):
            reasons[name] = _NEEDS_ATTENTION
    return {name: reasons[name] for name in FIGURES if name in reasons}


def left_out_lines(run: FinishedRun) -> list[str]:
    """What `plot all` says about figures that it does not draw: one line for each reason."""
    reasons = left_out(run)
    return [
        f"not drawn: {', '.join(name for name in reasons if reasons[name] == reason)} ({reason})"
        for reason in dict.fromkeys(reasons.values())
    ]


def _known(run: FinishedRun, metric: str) -> bool:
    return metric in run.head_metrics and bool(run.head_metrics[metric].notna().any())
