"""Figures of a run: functions from a table to a matplotlib Figure.

Names are imported at first use, so that `--help` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qk_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from attention_plasticity.comparison.figures import (
        profiles_figure,
        scores_figure,
        trajectory_figure,
    )
    from attention_plasticity.plots.attended import attended_figure
    from attention_plasticity.plots.attention import attention_figure
    from attention_plasticity.plots.bands import bands_figure
    from attention_plasticity.plots.by_role import by_role_figure
    from attention_plasticity.plots.captions import caption_of
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
    from attention_plasticity.plots.saving import save_figure

_MODULES = {
    "attention_plasticity.comparison.figures": (
        "profiles_figure",
        "scores_figure",
        "trajectory_figure",
    ),
    "attention_plasticity.plots.attended": ("attended_figure",),
    "attention_plasticity.plots.attention": ("attention_figure",),
    "attention_plasticity.plots.bands": ("bands_figure",),
    "attention_plasticity.plots.by_role": ("by_role_figure",),
    "attention_plasticity.plots.captions": ("caption_of",),
    "attention_plasticity.plots.components": ("components_figure",),
    "attention_plasticity.plots.drift": ("drift_figure",),
    "attention_plasticity.plots.fidelity": ("fidelity_figure",),
    "attention_plasticity.plots.frequencies": ("frequencies_figure",),
    "attention_plasticity.plots.kernel": ("kernel_figure",),
    "attention_plasticity.plots.key_heads": ("key_heads_figure",),
    "attention_plasticity.plots.profile": ("profile_figure",),
    "attention_plasticity.plots.map": ("map_figure",),
    "attention_plasticity.plots.heatmap": ("heatmap_figure",),
    "attention_plasticity.plots.phase": ("phase_figure",),
    "attention_plasticity.plots.plasticity": ("plasticity_figure",),
    "attention_plasticity.plots.predictability": ("predictability_figure",),
    "attention_plasticity.plots.roles": ("roles_figure",),
    "attention_plasticity.plots.saving": ("save_figure",),
}

__all__ = [
    "attended_figure",
    "attention_figure",
    "bands_figure",
    "by_role_figure",
    "caption_of",
    "components_figure",
    "drift_figure",
    "fidelity_figure",
    "frequencies_figure",
    "heatmap_figure",
    "kernel_figure",
    "key_heads_figure",
    "map_figure",
    "phase_figure",
    "plasticity_figure",
    "predictability_figure",
    "profile_figure",
    "profiles_figure",
    "roles_figure",
    "save_figure",
    "scores_figure",
    "trajectory_figure",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
