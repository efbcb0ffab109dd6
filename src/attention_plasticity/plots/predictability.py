"""Variance of the queries explained by position, against plasticity."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_plasticity.plots.intervals import correction_note
from attention_plasticity.plots.style import (
    SEQUENTIAL,
    figure_style,
    footnote,
    headline,
    line_shades,
    new_figure,
    plasticity_axis,
)
from attention_plasticity.tables.csv_tables import require_columns
from attention_plasticity.tables.intervals import corrected
from attention_plasticity.tables.metric_words import METRIC_WORDS
from qk_toolkit.errors import ConfigError


def predictability_figure(
    metrics: pd.DataFrame,
    *,
    cmap: str = SEQUENTIAL,
    title: str | None = None,
    model_name: str | None = None,
) -> Figure:
    """Draw a point per head, coloured by layer, with the rank correlation."""
    column = "q_R2_total" if "q_R2_total" in metrics else "q_R2_pos"
    require_columns(metrics, [column], "the table of heads")
    note = correction_note(metrics, "ap_overall")
    metrics = metrics.assign(ap_overall=corrected(metrics, "ap_overall"))
    known = metrics.dropna(subset=[column, "ap_overall"])
    if known.empty:
        raise ConfigError("the table of heads: no head has both values; there is nothing to draw")
    with figure_style():
        figure, axes = new_figure()
        drawn = axes.scatter(
            known[column],
            known["ap_overall"],
            c=known["layer"],
            cmap=line_shades(cmap),
            s=16,
            linewidths=0,
            alpha=0.85,
        )
        plasticity_axis(axes)
        axes.set_xlabel(f"{METRIC_WORDS[column].label} (R²)")
        axes.set_xlim(left=min(0.0, float(known[column].min())))
        bar = figure.colorbar(drawn, ax=axes, label="layer", pad=0.02)
        bar.outline.set_visible(False)
        bar.locator = MaxNLocator(5, integer=True)
        bar.update_ticks()
        headline(axes, title, "Position against plasticity", model_name)
        correlation = _correlation(known[column], known["ap_overall"])
        footnote(figure, f"{len(known):,} heads", correlation, note)
    return figure


def _correlation(x: pd.Series[float], y: pd.Series[float]) -> str | None:
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return f"Spearman's ρ {x.corr(y, method='spearman'):.2f}"
