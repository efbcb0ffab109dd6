"""Figures of the evidence on compression."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from attention_plasticity.plots import save_figure
from attention_plasticity.plots.style import BLUE, FAINT, INK, figure_style
from compression_conditions import BEST_STATIC, PER_QUERY, RANDOM, SHARED, UNIFORM, Floats
from compression_statistics import text_interval
from compression_words import percent, words

_NOT_SCORES = (SHARED, BEST_STATIC, PER_QUERY)


def draw_scores(shares: Mapping[float, Mapping[str, Floats]], path: Path) -> None:
    """KL of every score minus that of random keys, with rankings that need queries below them."""
    first = next(iter(shares.values()))
    scores = sorted(
        (name for name in first if name != RANDOM),
        key=lambda name: (name in _NOT_SCORES, float(first[name].mean())),
    )
    places = np.arange(len(scores), dtype=np.float64)
    places[-len(_NOT_SCORES) :] += 0.6  # a gap before what is no score
    with figure_style():
        figure = Figure(figsize=(3.4 + 1.7 * len(shares), 4.2), layout="constrained")
        panels = figure.subplots(1, len(shares), sharey=True, squeeze=False)[0]
        for axes, (share, values) in zip(panels, shares.items(), strict=True):
            found = [text_interval(values[name] - values[RANDOM]) for name in scores]
            means = [one.value for one in found]
            half = [(one.high - one.low) / 2 for one in found]
            axes.axvline(0.0, color=INK, linewidth=0.8, linestyle=":")
            axes.errorbar(
                means, places, xerr=half, fmt="o", markersize=4, color=BLUE, elinewidth=1, capsize=2
            )
            axes.set_title(f"{percent(share)} of keys kept")
            axes.set_xlabel("KL minus random keys")
        panels[0].set_yticks(places, [words(name) for name in scores])
        panels[0].invert_yaxis()
        figure.supxlabel(
            "nats per token; left of the dotted line: better than random keys; "
            "whiskers: 95 % interval over texts, paired",
            fontsize=8,
            x=0.02,
            ha="left",
        )
    save_figure(figure, path)


def draw_budgets(shares: Mapping[float, tuple[Floats, Mapping[str, float]]], path: Path) -> None:
    """KL of every order of budgets beside the histogram of random orders."""
    with figure_style():
        figure = Figure(figsize=(3.0 + 1.9 * len(shares), 4.0), layout="constrained")
        panels = figure.subplots(
            2, len(shares), sharex="col", sharey="row", squeeze=False, height_ratios=(1, 1.8)
        )
        for (histogram, dots), (share, (random, orders)) in zip(
            panels.T, shares.items(), strict=True
        ):
            histogram.hist(random, bins=20, color=FAINT)
            histogram.set_title(f"{percent(share)} of keys kept")
            names = list(orders)
            places = np.arange(len(names))
            dots.axvspan(random.min(), random.max(), color=FAINT, alpha=0.35, linewidth=0)
            dots.axvline(random.mean(), color=INK, linewidth=0.8, linestyle=":")
            colours = [INK if name == UNIFORM else BLUE for name in names]
            dots.scatter([orders[name] for name in names], places, c=colours, s=22, zorder=3)
            dots.set_yticks(places, [words(name) for name in names])
            dots.set_xlabel("KL, nats per token")
        panels[1, 0].invert_yaxis()
        panels[0, 0].set_ylabel("random orders")
        figure.supxlabel(
            "grey: range of the random orders; dotted: their mean", fontsize=8, x=0.02, ha="left"
        )
    save_figure(figure, path)
