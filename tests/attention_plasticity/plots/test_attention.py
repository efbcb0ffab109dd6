"""Figures of attention: the masses of the table, and plasticity against attended plasticity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from scipy.stats import t

from attention_plasticity.plots import attended_figure, attention_figure
from attention_runs import BINS, ERRORS, GROUPS, MASSES, attention_table, with_attention
from qk_toolkit.errors import ConfigError
from run_tables import aligned_metrics, cells_table, metrics_table

REACHED = sum(first <= 704 for first in BINS)  # the last query bucket has mean position 704
FACTOR = t.ppf(0.975, GROUPS - 1)


@pytest.fixture
def table() -> pd.DataFrame:
    return attention_table(np.random.default_rng(3), cells_table())


def plain_mean(rows: pd.DataFrame, columns: list[str]) -> np.ndarray:
    """Mean over tokens, bucket by bucket."""
    total = np.zeros(len(columns))
    for row in rows.to_dict("records"):
        total += row["n_tokens"] * np.array([row[name] for name in columns])
    return total / rows["n_tokens"].sum()


def head(table: pd.DataFrame, layer: int, number: int) -> pd.DataFrame:
    return table[(table["layer"] == layer) & (table["q_head"] == number)]


def bars(figure: Figure) -> np.ndarray:
    return np.array([bar.get_height() for bar in figure.axes[0].patches])  # type: ignore[attr-defined]


def segments(figure: Figure) -> np.ndarray:
    """(lines, 2 ends, xy) of the vertical lines on the bars."""
    (lines,) = [one for one in figure.axes[0].collections if isinstance(one, LineCollection)]
    return np.array(lines.get_segments())


def note(figure: Figure) -> str:
    return figure._supxlabel.get_text()  # type: ignore[attr-defined]


def test_a_head_has_the_mean_over_its_queries_with_intervals(table: pd.DataFrame) -> None:
    figure = attention_figure(table, layer=1, head=2, model_name="tiny")
    rows = head(table, 1, 2)
    mean = plain_mean(rows, MASSES)[:REACHED]
    np.testing.assert_allclose(bars(figure), mean)
    assert mean.sum() == pytest.approx(1.0)  # the other bins have no attention
    half = FACTOR * plain_mean(rows, ERRORS)[:REACHED]
    ends = segments(figure)[:, :, 1]  # (bins, 2)
    np.testing.assert_allclose(ends, np.stack([mean - half, mean + half], axis=1))
    axes = figure.axes[0]
    assert axes.get_title(loc="left") == "Attention by distance, layer 1, head 2\ntiny"
    shown = [tick.get_text() for tick in axes.get_xticklabels()]
    assert shown == [str(first) for first in BINS[:REACHED]]
    assert "95 % interval over texts (upper bound)" in note(figure)
    sinks = plain_mean(rows, ["sink_mass"])[0]
    assert f"first four tokens: {sinks:.2f} of the attention, in all bins" in note(figure)


def test_the_mean_over_heads_has_the_spread_over_heads(table: pd.DataFrame) -> None:
    table.loc[(table["layer"] == 2) & (table["q_bucket"] == 5), MASSES] = np.nan  # not known
    figure = attention_figure(table)
    heads = [plain_mean(rows.dropna(), MASSES) for _, rows in table.groupby(["layer", "q_head"])]
    np.testing.assert_allclose(bars(figure)[:REACHED], np.mean(heads, axis=0)[:REACHED])
    low, high = np.quantile(heads, (0.1, 0.9), axis=0)[:, :REACHED]
    boxes = [one for one in figure.axes[0].patches if isinstance(one, Rectangle)][REACHED:]
    np.testing.assert_allclose([box.get_y() for box in boxes], low)
    np.testing.assert_allclose([box.get_y() + box.get_height() for box in boxes], high)
    assert not figure.axes[0].collections  # no whiskers
    assert note(figure).startswith("mean over 12 heads  ·  first four tokens: 0.")
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == ["mean over heads", "middle 80 % of heads (no error bar)"]


@pytest.mark.parametrize("one", [True, False])
def test_lines_of_early_middle_and_late_queries(table: pd.DataFrame, one: bool) -> None:
    chosen: dict[str, Any] = {"layer": 0, "head": 3} if one else {}
    figure = attention_figure(table, by_position=True, **chosen)
    rows = head(table, 0, 3) if one else table
    for line, part in zip(figure.axes[0].lines, ((1, 2), (3, 4), (5,)), strict=True):
        here = rows[rows["q_bucket"].isin(part)]
        heads = [plain_mean(of, MASSES) for _, of in here.groupby(["layer", "q_head"])]
        np.testing.assert_allclose(line.get_ydata(), np.mean(heads, axis=0)[:REACHED])
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == ["early: 192–320", "middle: 448–576", "late: 704"]
    assert len(figure.axes[0].collections) == (3 if one else 0)  # bands
    assert ("bands: 95 % interval" in note(figure)) == one


def test_tables_without_errors_positions_or_several_buckets_are_drawn(table: pd.DataFrame) -> None:
    bare = table.drop(columns="q_position").assign(**dict.fromkeys(ERRORS, np.nan))
    figure = attention_figure(bare, layer=0, head=0)
    assert note(figure).split("  ·  ")[2:] == []  # no whiskers
    for buckets, legend in ((2, ["early: bucket 1", "late: bucket 2"]), (1, ["middle: bucket 1"])):
        figure = attention_figure(bare[bare["q_bucket"] <= buckets], by_position=True)
        assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == legend
        figure.draw_without_rendering()


@pytest.mark.parametrize("errors", [True, False])
def test_attended_plasticity_is_a_point_per_head(table: pd.DataFrame, errors: bool) -> None:
    metrics = aligned_metrics(metrics_table()).assign(n_text_groups=GROUPS)
    metrics = with_attention(np.random.default_rng(1), metrics, table, errors)
    metrics.loc[4, "ap_attended"] = np.nan  # the attention of this head is not known
    metrics.loc[7, ["ap_aligned", "ap_attended"]] = 0.9, 0.2
    figure = attended_figure(metrics)
    known = metrics.drop(index=4)
    axes = figure.axes[0]
    (points,) = [one for one in axes.collections if isinstance(one, PathCollection)]
    places = known[["ap_aligned", "ap_attended"]].to_numpy()
    np.testing.assert_allclose(points.get_offsets(), places)
    np.testing.assert_allclose(points.get_array(), known["layer"])
    rho = pd.Series(places[:, 0]).corr(pd.Series(places[:, 1]), method="spearman")
    assert f"Spearman's ρ {rho:.2f}".replace("-", "−") in note(figure)
    assert "L1 H3" in [text.get_text() for text in axes.texts]  # row 7
    assert note(figure).startswith("11 of 12 heads")
    intervals = [one for one in axes.collections if isinstance(one, LineCollection)]
    assert ("lines: 95 % intervals" in note(figure)) == errors == bool(intervals)
    if errors:
        ends = np.array(intervals[1].get_segments())[:, :, 1]  # (heads, 2) of attended plasticity
        np.testing.assert_allclose(np.ptp(ends, axis=1), 2 * FACTOR * 0.02)


def test_attended_plasticity_of_many_heads_and_of_one(table: pd.DataFrame) -> None:
    metrics = aligned_metrics(metrics_table()).assign(n_text_groups=GROUPS)
    metrics = with_attention(np.random.default_rng(1), metrics, table, errors=True)
    many = attended_figure(pd.concat([metrics] * 40, ignore_index=True))
    half = f"± {FACTOR * 0.02:.3f} (median)"
    assert f"attended plasticity of one head: {half}" in note(many)
    one = attended_figure(metrics.head(1))
    one.draw_without_rendering()
    assert "Spearman" not in note(one)


def test_what_cannot_be_drawn_is_refused(table: pd.DataFrame) -> None:
    with pytest.raises(ConfigError, match="has no rows of layer 1, head 9"):
        attention_figure(table, layer=1, head=9)
    with pytest.raises(ConfigError, match="give layer and head together"):
        attention_figure(table, layer=1)
    with pytest.raises(ConfigError, match="has no masses"):
        attention_figure(table.assign(**dict.fromkeys(MASSES, np.nan)))
    aligned = aligned_metrics(metrics_table())
    for metrics in (aligned, aligned.assign(ap_attended=np.nan)):
        with pytest.raises(ConfigError, match=r"dump with attention columns \(capture\.attention"):
            attended_figure(metrics)
    apart = aligned.assign(ap_attended=0.5, ap_aligned=np.nan)
    with pytest.raises(ConfigError, match="no head has both values"):
        attended_figure(apart)
