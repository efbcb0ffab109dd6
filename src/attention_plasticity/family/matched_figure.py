"""Maps of the differences of the same heads in two models, with marks on heads that changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_plasticity.comparison.runs import short_names
from attention_plasticity.family.matched import RATE, Pair
from attention_plasticity.family.panels import WIDE, finish, models_caption, panels
from attention_plasticity.plots.shown import column_label
from attention_plasticity.plots.style import INK, SIGNED, figure_style, figure_text
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

MOST_MAPS = 6
_SIDE_BAR = 5.0  # inches of a figure with the colour bar at its side
_HEIGHT = 2.6  # inches of a map
_BAR_HEIGHT = 0.8
_LONGEST_NAME = 17  # characters
_NOTHING = "#ececec"
_DOT: Any = {
    **{"linestyle": "", "marker": "o", "markersize": 3.2, "color": INK},
    **{"markeredgecolor": "white", "markeredgewidth": 0.5},  # visible on dark cells
}


def matched_figure(
    table: pd.DataFrame, pairs: Sequence[Pair], metric: str, *, width: float = WIDE
) -> Figure:
    """Draw one map per pair, for one metric of `matched_heads`; at most six pairs."""
    own = table[table["metric"] == metric]
    known = [
        (pair, rows)
        for pair in pairs
        if len(rows := own[(own["run"] == pair.run.label) & (own["minus"] == pair.minus.label)])
    ]
    if not known:
        raise ConfigError("matched heads: no two models have the same heads with values")
    shown = known[:MOST_MAPS]
    reach = max(float(rows["difference"].abs().max()) for _, rows in shown) or 1.0
    with figure_style():
        figure, places = panels(len(shown), width, _HEIGHT)
        for axes, (pair, rows) in zip(places, shown, strict=True):
            layers, heads = (rows[name].to_numpy(np.int64) for name in ("layer", "q_head"))
            grid = np.full((layers.max() + 1, heads.max() + 1), np.nan)  # (layers, heads)
            grid[layers, heads] = rows["difference"]
            axes.set_facecolor(_NOTHING)
            image = axes.imshow(
                grid,
                aspect="auto",
                interpolation="none",
                cmap=SIGNED,
                vmin=-reach,
                vmax=reach,
                origin="lower",
            )
            changed = rows["changed"].to_numpy(bool)
            axes.plot(heads[changed], layers[changed], **_DOT)
            axes.set_xlabel("query head")
            axes.set_ylabel("layer")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(6, integer=True))
            names = short_names([pair.run.label, pair.minus.label], _LONGEST_NAME)
            label = figure_text(" minus ".join(names))
            tested = int(rows["p_value"].notna().sum())
            axes.set_title(
                f"{label}\n{changed.sum():,} of {tested:,} heads changed",
                fontweight="normal",
                fontsize=8,
            )
        side: Any = "right"
        if width < _SIDE_BAR:  # there is no room beside a narrow map
            side = "bottom"
            figure.set_figheight(figure.get_figheight() + _BAR_HEIGHT)
        bar = figure.colorbar(image, ax=places, pad=0.02, fraction=0.05, location=side)
        bar.set_label(f"difference of\n{column_label(metric)}")
        bar.outline.set_visible(False)
        notes = [f"dots: heads that changed, false discovery rate {RATE:.0%}".replace("%", " %")]
        if further := len(known) - len(shown):
            notes.append(f"{count(further, 'further pair')} in the table matched_heads")
        runs = list(
            {run.label: run for pair, _ in shown for run in (pair.run, pair.minus)}.values()
        )
        caption = models_caption(_what(metric), runs, [_how([pair for pair, _ in shown])])
        return finish(figure, "Differences of the same heads", notes, [], caption)


def _what(metric: str) -> str:
    return (
        f"Difference of {column_label(metric)} of the same head in two models, one map per pair. "
        "Dots: heads that changed. Light grey: no value in one of the models."
    )


def _how(pairs: Sequence[Pair]) -> str:
    same = [pair.name for pair in pairs if pair.paired]
    other = [pair.name for pair in pairs if not pair.paired]
    how = (
        "A head changed if a two-sided test of no difference (Student's t over groups of texts) is "
        f"significant at a false discovery rate of {100 * RATE:.0f} % by Benjamini and Hochberg, "
        "corrected for the number of heads of the map."
    )
    if same:
        how += f" On the same texts, compared text by text: {', '.join(same)}."
    if other:
        how += f" On other texts, as independent samples: {', '.join(other)}."
    return how
