"""Figures of a run: table in, matplotlib Figure out; showing and saving are the caller's.

Names are imported when first used, so that the command's help stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attention_plasticity.plots.comparison import (
        profiles_figure,
        scores_figure,
        trajectory_figure,
    )
    from attention_plasticity.plots.components import components_figure
    from attention_plasticity.plots.fifths import fifths_figure
    from attention_plasticity.plots.head_map import head_map_figure
    from attention_plasticity.plots.heatmap import heatmap_figure
    from attention_plasticity.plots.plasticity import plasticity_figure
    from attention_plasticity.plots.predictability import predictability_figure
    from attention_plasticity.plots.saving import save_figure

_HOME = {
    "components_figure": "components",
    "fifths_figure": "fifths",
    "head_map_figure": "head_map",
    "heatmap_figure": "heatmap",
    "plasticity_figure": "plasticity",
    "predictability_figure": "predictability",
    "profiles_figure": "comparison",
    "save_figure": "saving",
    "scores_figure": "comparison",
    "trajectory_figure": "comparison",
}

__all__ = [
    "components_figure",
    "fifths_figure",
    "head_map_figure",
    "heatmap_figure",
    "plasticity_figure",
    "predictability_figure",
    "profiles_figure",
    "save_figure",
    "scores_figure",
    "trajectory_figure",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
