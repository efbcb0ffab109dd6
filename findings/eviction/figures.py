"""KL and copied tokens against compression."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from attention_plasticity.figures import save_figure
from attention_plasticity.figures.style import BLUE, FAINT, INK, QUIET, VERMILION, figure_style
from findings.eviction.plan import (
    ADAKV,
    COPIES,
    FLAT,
    FULL,
    PLASTICITY,
    RANDOM_ORDER,
    REPORT,
    SNAPKV,
    WORDS,
)

if TYPE_CHECKING:
    from findings.eviction.tables import Study

_LINES = {
    FLAT: ("equal budgets", INK, "--", "s"),
    ADAKV: ("AdaKV", VERMILION, "-.", "^"),
    PLASTICITY: ("plasticity at one position", BLUE, "-", "o"),
}
_KL = "KL (nats per token)"


def draw_budgets(study: Study, folder: Path) -> Path:
    """One scorer: KL, and the share of copied tokens that are predicted right."""
    with figure_style():
        figure = Figure(figsize=(7.0, 2.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw(left, study, SNAPKV, REPORT, "kl")
        left.set(yscale="log", ylabel=_KL, title="next tokens of a book")
        _draw(right, study, SNAPKV, COPIES, "right")
        full = study.of(COPIES, study.plan.middle, study.plan.scorers[0], 0.0, FULL, field="right")
        if not np.isnan(full).any():
            right.axhline(full.mean(), color=QUIET, linewidth=0.8, linestyle=":")
            place, how = right.get_yaxis_transform(), {"va": "bottom", "ha": "right"}
            right.text(1.0, full.mean(), "nothing pruned", transform=place, fontsize=8, **how)
        right.set(
            ylabel="copied tokens predicted right", title="copying random tokens", ylim=(0, None)
        )
        _finish(figure, left, (left, right))
    path = folder / "compression-budgets.png"
    save_figure(figure, path)
    return path


def draw_scorers(study: Study, folder: Path) -> Path:
    """KL of every scorer."""
    scorers = study.plan.scorers
    with figure_style():
        figure = Figure(figsize=(2.1 * len(scorers) + 0.5, 2.9), layout="constrained")
        panels = figure.subplots(1, len(scorers), sharey=True, squeeze=False)[0]
        for axes, scorer in zip(panels, scorers, strict=True):
            _draw(axes, study, scorer, REPORT, "kl")
            axes.set(yscale="log", title=WORDS[scorer])
        panels[0].set_ylabel(_KL)
        _finish(figure, panels[0], panels)
    path = folder / "compression-scorers.png"
    save_figure(figure, path)
    return path


def _draw(axes: Any, study: Study, scorer: str, texts: str, field: str) -> None:
    """Four lines: random orders with their range, and the three allocations."""
    compressions, middle = study.plan.compressions, study.plan.middle
    x = 100 * np.array(compressions)
    drawn = np.array(
        [study.draws(RANDOM_ORDER, texts, middle, scorer, one, field=field) for one in compressions]
    )  # (compressions, draws)
    low, mean, high = drawn.min(axis=1), drawn.mean(axis=1), drawn.max(axis=1)
    axes.fill_between(x, low, high, color=FAINT, alpha=0.5, linewidth=0)
    axes.plot(x, mean, color=QUIET, linewidth=1, linestyle=":", label="random orders, with range")
    for name, (label, colour, style, marker) in _LINES.items():
        found = [study.of(texts, middle, scorer, one, name, field=field) for one in compressions]
        y = [float(one.mean()) for one in found]
        axes.plot(x, y, color=colour, linestyle=style, marker=marker, markersize=4, label=label)
    axes.set_xticks(x)
    axes.set_xlabel("keys pruned (%)")


def _finish(figure: Figure, first: Any, panels: Sequence[Any]) -> None:
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
