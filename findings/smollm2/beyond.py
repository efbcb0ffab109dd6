"""Plasticity beyond the trained context, by bins of queries: a table and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

import attention_plasticity as ap
from attention_plasticity.figures import save_figure
from attention_plasticity.figures.captions import Words
from attention_plasticity.figures.compose import Layout, compose
from attention_plasticity.figures.marks import Guide
from attention_plasticity.figures.shapes import Line, Lines, Spread
from attention_plasticity.figures.style import BLUE, TEXT, VERMILION, Axis, share_axis
from attention_plasticity.metrics import BIN_QUANTITY, GROUP_COLUMNS, HEAD, POOLED_BIN_QUANTITY
from attention_plasticity.tables.intervals import (
    bin_influences,
    groups_of,
    half_width,
    mean_of_bins,
)
from findings.tables import NONE, markdown

TRAINED = 8192
EDGES = (0, 2048, 4096, 8192, 12288, 16384)
LAST_TRAINED = (4096, 8192)
Parts = dict[tuple[int, int], pd.DataFrame]


def beyond_table(run: ap.Run, counts: pd.DataFrame) -> str:
    """Means over parts of the context, and their differences from the end of the trained part.

    `counts` has the count at exactly one position in every bin, as `counted_bins` returns it.
    """
    aligned, over = (_parts(positioned(run, name)) for name in (BIN_QUANTITY, POOLED_BIN_QUANTITY))
    groups = groups_of(run)
    rows = []
    for low, high in pairwise(EDGES):
        here, there = aligned[low, high], aligned[LAST_TRAINED]
        own = (low, high) == LAST_TRAINED
        lower = int((here["value"] < there["value"]).sum())
        counted = counts[counts["start"].between(low, high - 1)]["one_position"].mean()
        rows.append(
            [
                f"{low:,}–{high:,}",
                f"{here['value'].mean():.3f}",
                NONE if own else _change(here, there, groups),
                NONE if own else f"{lower} of {len(here)}",
                f"{counted:.3f}",
                f"{over[low, high]['value'].mean():.3f}",
                NONE if own else _change(over[low, high], over[LAST_TRAINED], groups),
            ]
        )
    minus = f"minus {LAST_TRAINED[0]:,}–{LAST_TRAINED[1]:,}"
    heading = ["query position", "RoPE-aligned", minus, "heads lower", "counted", "over a bin"]
    return markdown([*heading, minus], rows)


def positioned(run: ap.Run, quantity: str) -> pd.DataFrame:
    """One row per head and bin: the columns of `bin_influences`, and `q_position`."""
    errors = bin_influences(run, quantity)
    assert errors is not None
    names = {"q_bin": "q_bucket"}
    place = run.table("bins").rename(columns=names)[[*HEAD, "q_bucket", "q_position"]]
    return errors.merge(place.drop_duplicates([*HEAD, "q_bucket"]), on=[*HEAD, "q_bucket"])


def _parts(rows: pd.DataFrame) -> Parts:
    """Means of every head over each part of the context."""
    columns = ["value", *GROUP_COLUMNS]
    position = rows["q_position"]
    return {
        (low, high): rows[(position >= low) & (position < high)].groupby(HEAD)[columns].mean()
        for low, high in pairwise(EDGES)
    }


def _change(heads: pd.DataFrame, last: pd.DataFrame, groups: float) -> str:
    change = (heads - last).mean()  # influences of the groups of texts are subtracted as well
    error = np.linalg.norm(change[list(GROUP_COLUMNS)].to_numpy(np.float64))
    return f"{change['value']:+.3f} ± {half_width(error, groups):.3f}"


def draw_beyond(runs: Mapping[str, ap.Run], path: Path) -> None:
    """Draw the mean over heads of two runs, by position; the keys of `runs` are the labels."""
    lines: list[Line | Spread] = []
    for (label, run), colour in zip(runs.items(), (BLUE, VERMILION), strict=True):
        for quantity, words, dashes in (
            (BIN_QUANTITY, "RoPE-aligned", "-"),
            (POOLED_BIN_QUANTITY, "over a bin", ":"),
        ):
            rows = positioned(run, quantity)
            mean = mean_of_bins(rows, run.eligible_heads)
            x = rows.groupby("q_bucket")["q_position"].mean().to_numpy()
            y, half = (mean[name].to_numpy() for name in ("plasticity", "half_width"))
            if quantity == BIN_QUANTITY:
                levels = rows.groupby("q_bucket")["value"]
                low, high = (levels.quantile(share).to_numpy() for share in (0.25, 0.75))
                lines.append(Spread(x, low, high, "", 0.12, colour))
            name = f"{label}, {words}"
            lines.append(Line(x, y, half, name, colour, dashes, whiskers=True))
    panel = Lines(
        Axis("query position (tokens)", 0, 16384, scale="positions"),
        share_axis("plasticity", unit=True),
        lines,
        [Guide(TRAINED, "end of the trained context", vertical=True)],
    )
    notes = [
        "mean over 270 heads",
        "band: middle 50 % of heads, RoPE-aligned",
        "whiskers: 95 % interval over texts",
    ]
    texts = Words("Beyond the trained context: SmolLM2-135M", notes)
    figure = compose([panel], texts, width=TEXT, layout=Layout(height=2.4))
    save_figure(figure, path)
