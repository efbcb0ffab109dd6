"""Figures of runs: a registry of entries over five shapes, and how they are saved.

Names are imported at first use, so that `--help` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qk_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from attention_plasticity.figures.captions import caption_of
    from attention_plasticity.figures.registry import FIGURES
    from attention_plasticity.figures.saving import save_all, save_figure

_MODULES = {
    "attention_plasticity.figures.captions": ("caption_of",),
    "attention_plasticity.figures.registry": ("FIGURES",),
    "attention_plasticity.figures.saving": ("save_all", "save_figure"),
}

__all__ = ["FIGURES", "caption_of", "save_all", "save_figure"]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
