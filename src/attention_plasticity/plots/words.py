"""Texts around a figure: title, line at the bottom and caption. All figure functions take them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attention_plasticity.plots.captions import Caption, set_caption
from attention_plasticity.plots.style import figure_text, footnote, headline, panel_headline
from attention_plasticity.tables.main_plasticity import PlasticityColumns
from attention_plasticity.tables.names import clean
from qk_toolkit.formatting import count

_LONGEST_FOOTNOTE = 600  # characters
_FOOTNOTE_LINES = 2  # in the usual height of a figure; it grows with further lines
_FOOTNOTE_LINE = 0.13  # inches


class TextOptions(TypedDict, total=False):
    """Options of every figure function. Empty text leaves a title or footnote out."""

    title: str | None  # default: what is drawn, and the name of the model
    footnote: str | None  # default: numbers of heads, intervals
    model_name: str | None
    selection: str | None  # the layers in the table, such as `layers 0-3`; default: all


@dataclass(frozen=True)
class Words:
    """The texts that a figure function was given."""

    title: str | None = None
    footnote: str | None = None
    model_name: str | None = None
    selection: str | None = None

    def heads(self, number: int, total: int | None = None) -> str:
        """`12 heads`, or `12 heads of layers 0-3`. With fewer than the total: `9 of 12 heads`."""
        heads = count(number, "head")
        if total is not None and number < total:
            heads = f"{number:,} of {count(total, 'head')}"
        return f"{heads} of {self.selection}" if self.selection else heads

    def caption(
        self,
        number: int,
        shows: str,
        *details: str | None,
        plasticity: PlasticityColumns | None = None,
        noun: str = "query head",
    ) -> Caption:
        """A caption of a figure with this number of heads.

        `plasticity` is what the figure shows, `noun` names a head.
        """
        heads = count(number, noun)
        heads += f" of {clean(self.model_name)}" if self.model_name else ""
        heads += f", {self.selection}" if self.selection else ""
        known = tuple(sentence for sentence in details if sentence)
        return Caption(shows, (heads,), known, plasticity=plasticity)

    def write(
        self,
        figure: Figure,
        axes: Axes | None,
        default: str,
        notes: Iterable[str | None],
        caption: Caption,
        legend_rows: int = 0,
    ) -> None:
        """Write title and footnote, and keep the caption. Without axes, the title is above all."""
        if axes is None:
            panel_headline(figure, self.title, default, self.model_name)
        else:
            headline(axes, self.title, default, self.model_name, legend_rows)
        if self.footnote is None:
            lines = footnote(figure, *notes)
        else:
            lines = footnote(figure, figure_text(self.footnote, _LONGEST_FOOTNOTE))
        more = max(0, lines - _FOOTNOTE_LINES)
        figure.set_figheight(figure.get_figheight() + more * _FOOTNOTE_LINE)
        set_caption(figure, caption)
