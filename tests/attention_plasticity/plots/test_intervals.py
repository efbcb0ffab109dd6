"""Bands, whiskers and marks of confidence intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from scipy.stats import false_discovery_control, t

from attention_plasticity.comparison.runs import COMPARED
from attention_plasticity.comparison.scores import correlations
from attention_plasticity.metrics import ALIGNED_DROP, BIN_QUANTITY, GROUP_COLUMNS
from attention_plasticity.plots import (
    caption_of,
    heatmap_figure,
    map_figure,
    plasticity_figure,
    profile_figure,
    scores_figure,
    trajectory_figure,
)
from attention_plasticity.plots.drawing import draw
from attention_plasticity.plots.settings import PlasticityPlot, ProfilePlot
from attention_plasticity.tables.bin_cells import bin_cells
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from attention_plasticity.tables.profiles import HEAD, head_profiles
from run_tables import (
    add_bins,
    add_errors,
    aligned_metrics,
    bins_table,
    cells_table,
    metrics_table,
    write_run,
)

GROUPS = 12  # of 16; the other influences are 0
BINS = bins_table()
PROFILES = head_profiles(bin_cells(BINS))
METRICS = aligned_metrics(metrics_table()).assign(n_text_groups=GROUPS)


def bin_influences(seed: int = 0) -> pd.DataFrame:
    """Random influences of every bin of queries."""
    shares = np.random.default_rng(seed).normal(0, 0.01, (len(PROFILES), len(GROUP_COLUMNS)))
    shares[:, GROUPS:] = 0.0
    groups = pd.DataFrame(shares, columns=list(GROUP_COLUMNS))
    rows = PROFILES[[*HEAD, "q_bucket"]].rename(columns={"q_bucket": "bin"})
    rows = rows.assign(quantity=BIN_QUANTITY, value=PROFILES["plasticity"], n_groups=GROUPS)
    return rows.join(groups)


def width(shares: np.ndarray) -> float:
    """Half width of the interval of a mean over heads, from (heads, 16) influences."""
    return float(t.ppf(0.975, GROUPS - 1) * np.sqrt((shares.mean(axis=0) ** 2).sum()))


def note(figure: Figure) -> str:
    return " ".join(figure._supxlabel.get_text().split())  # type: ignore[attr-defined]


def caption(figure: Figure) -> str:
    return caption_of(figure) or ""


def bands(figure: Figure) -> list[Any]:
    return [item for item in figure.axes[0].collections if isinstance(item, PolyCollection)]


def edges(band: Any, x: float) -> tuple[float, float]:
    """Lower and upper edge of a band."""
    points = np.concatenate([path.vertices for path in band.get_paths()])
    heights = points[points[:, 0] == x, 1]
    return float(heights.min()), float(heights.max())


def whisker_ends(axes: Any, direction: int = 1) -> list[list[tuple[float, float]]]:
    """Per series, the ends of its whiskers along an axis."""
    return [
        [
            (segment[0, direction], segment[1, direction])
            for segment in container.lines[2][0].get_segments()
        ]
        for container in axes.containers
    ]


def place(number: int) -> float:
    """The position of a bin of queries."""
    return number * 256 + 128


def test_the_band_is_the_interval_of_the_mean() -> None:
    influences = bin_influences()
    for draw_figure, grounds in ((plasticity_figure, 1), (profile_figure, 2)):
        figure = draw_figure(BINS, influences=influences)
        band = bands(figure)[-1]
        for number, rows in influences.groupby("bin"):
            mean = PROFILES[PROFILES["q_bucket"] == number]["plasticity"].mean()
            half = width(rows[list(GROUP_COLUMNS)].to_numpy())
            assert edges(band, place(int(number))) == pytest.approx((mean - half, mean + half))  # type: ignore[call-overload]
        # the band and its white ground, or the bands of heads
        assert len(bands(figure)) == 1 + grounds
        assert "12 heads · band: 95 % interval over texts" in note(figure)
    figure = plasticity_figure(BINS, influences=influences)
    assert "95 % interval of one head: ± " in note(figure)


def test_few_heads_have_a_band_each() -> None:
    influences, chosen = bin_influences(), BINS["layer"] == 2
    figure = plasticity_figure(BINS[chosen], influences=influences, color_by_layer=True)
    first = influences.query("layer == 2 and q_head == 0 and bin == 1")
    half = width(first[list(GROUP_COLUMNS)].to_numpy())
    value = float(first["value"].iloc[0])
    mean, ground, *heads = sorted(bands(figure), key=lambda band: -band.get_zorder())
    assert mean.get_zorder() == ground.get_zorder() > heads[0].get_zorder()
    assert len(heads) == 4
    assert edges(heads[0], place(1)) == pytest.approx((value - half, value + half))
    # the mean is that of the four heads that are drawn
    rows = influences.query("layer == 2 and bin == 1")
    low, high = edges(mean, place(1))
    assert (high - low) / 2 == pytest.approx(width(rows[list(GROUP_COLUMNS)].to_numpy()))


def test_the_band_has_a_gap_where_a_head_has_no_influences() -> None:
    influences = bin_influences()
    unknown = (influences["layer"] == 0) & (influences["q_head"] == 1) & (influences["bin"] == 1)
    figure = plasticity_figure(BINS, influences=influences[~unknown])
    assert {path.vertices[:, 0].min() for path in bands(figure)[0].get_paths()} == {place(2)}


def test_buckets_have_no_errors() -> None:
    influences = bin_influences()
    for draw_figure in (plasticity_figure, profile_figure):
        figure = draw_figure(cells_table(), influences=influences)
        assert "95 %" not in note(figure)
        plain = draw_figure(cells_table())
        assert len(bands(figure)) == len(bands(plain))


def test_the_map_marks_drops_that_differ_from_zero() -> None:
    errors = np.array([0.01, 0.05, 0.11, 0.17, 0.19, 0.3, *[0.5] * 5, np.nan])
    table = METRICS.assign(ap_aligned_drop_se=errors)
    table.loc[0, ALIGNED_DROP] = 0.3
    drop = table[ALIGNED_DROP]
    p = 2 * t.sf(np.abs(drop / errors), GROUPS - 1)
    excluded = np.flatnonzero(p < 0.05)
    significant = np.flatnonzero(false_discovery_control(p[:-1]) <= 0.05)
    assert 0 < len(significant) < len(excluded)
    figure = map_figure(table.drop(index=10), metric="drop")
    tested = len(table) - 2
    missing, dots, rings = (
        item.get_offsets().tolist()
        for item in figure.axes[0].collections
        if isinstance(item, PathCollection)
    )
    places = table[["q_head", "layer"]].to_numpy().tolist()
    assert missing == [places[10]]
    assert dots == [places[number] for number in excluded]
    assert rings == [places[number] for number in significant]
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    faded = [number for number in range(tested + 1) if number not in (10, *excluded)]
    assert legend == [
        f"{len(excluded)} of {tested} tested: 95 % interval without 0",
        f"{len(significant)} of them: false discovery rate of 5 %",
        f"{len(faded)} faded: 95 % interval with 0",
    ]
    values, veil = figure.axes[0].images
    assert values.get_array()[0, 0] == pytest.approx(drop[0])  # type: ignore[index]
    opaque = np.argwhere(np.asarray(veil.get_array())[..., 3] > 0)  # (faded, 2) layer and head
    assert opaque.tolist() == [places[number][::-1] for number in faded]
    assert f"Heads whose interval contains 0 are faded ({len(faded)})." in caption(figure)
    clear = map_figure(table, metric="drop", fade=False)
    assert len(clear.axes[0].images) == 1
    assert "faded" not in caption(clear)


def test_other_maps_have_no_marks() -> None:
    table = METRICS.assign(ap_pooled_se=1e-6)
    figure = map_figure(table, metric="ap_pooled")
    np.testing.assert_allclose(np.ravel(figure.axes[0].images[0].get_array()), table["ap_pooled"])
    assert figure.axes[0].get_legend() is None
    half = f"{t.ppf(0.975, GROUPS - 1) * 1e-6:.2g}"
    assert f"95 % interval of a head: ±{half} (median)" in note(figure)
    small = map_figure(
        table.assign(ap_pooled_se=0.01 * (1 + table["layer"])), metric="ap_pooled_se"
    )
    assert small.axes[0].images[0].get_clim() == pytest.approx((0.01, 0.03))


def test_unknown_errors_leave_the_figures_as_they_were() -> None:
    unknown = {f"{name}_se": np.nan for name in AT_ONE_POSITION.all}
    metrics = METRICS.assign(**unknown, n_text_groups=np.nan)
    bare = metrics.drop(columns=[*unknown, "n_text_groups"])
    bins = BINS.assign(plasticity_se=np.nan)
    influences = bin_influences().assign(**dict.fromkeys(GROUP_COLUMNS, np.nan))
    pairs = [
        (plasticity_figure(bins, influences=influences), plasticity_figure(BINS)),
        (profile_figure(bins, influences=influences), profile_figure(BINS)),
        (heatmap_figure(bins), heatmap_figure(BINS)),
        (map_figure(metrics, metric="drop"), map_figure(bare, metric="drop")),
    ]
    for found, expected in pairs:
        kinds = [
            [type(item) for item in figure.axes[0].get_children()] for figure in (found, expected)
        ]
        assert kinds[0] == kinds[1]
        assert note(found) == note(expected)
        assert "95 %" not in note(found)


def test_commands_draw_the_intervals_of_a_run(tmp_path: Path) -> None:
    run = add_errors(add_bins(write_run(tmp_path / "run")))
    assert len(bands(draw(PlasticityPlot(run=str(run))))) == 2
    assert len(bands(draw(ProfilePlot(run=str(run))))) == 3
    alone = tmp_path / "bins.csv"
    BINS.to_csv(alone, index=False)
    assert note(draw(ProfilePlot(bucket_csv=str(alone)))) == "12 heads · 12 texts in every bin"


def compared_table() -> pd.DataFrame:
    rows = [
        {
            "run": label,
            **{name: 0.6 - 0.02 * place for place, name in enumerate(COMPARED)},
            **{f"{name}_se": 0.01 + 0.001 * place for place, name in enumerate(COMPARED)},
            **{f"{name}_df": groups - 1 for name in COMPARED},
        }
        for label, groups in (("a", 4), ("b", 16), ("c", np.nan))
    ]
    return pd.DataFrame(rows)


def test_whiskers_of_compared_runs() -> None:
    compared, names = compared_table(), AT_ONE_POSITION.all[:3]
    figure = trajectory_figure(compared)
    expected = np.array(
        [
            [
                row[name] + sign * row[f"{name}_se"] * t.ppf(0.975, row[f"{name}_df"])
                for sign in (-1, 1)
            ]
            for _, row in compared[:2].iterrows()
            for name in names
        ]
    ).reshape(2, len(names), 2)
    drawn = np.array(whisker_ends(figure.axes[0]))
    np.testing.assert_allclose(drawn.swapaxes(0, 1), expected)
    low, high = figure.axes[0].get_ylim()
    assert low < expected.min() < expected.max() < high
    assert note(figure).endswith("95 % interval over texts, where it is known")
    bare = trajectory_figure(compared.drop(columns=[*[f"{name}_se" for name in names]]))
    assert not bare.axes[0].containers
    assert bare._supxlabel is None  # type: ignore[attr-defined]


def test_whiskers_of_drops_are_horizontal() -> None:
    compared = compared_table()
    scores = pd.DataFrame({"model": compared["run"], "ruler": [1.0, 2.0, np.nan]})
    figure = scores_figure(compared, scores, correlations(compared, scores))
    ends = [end for run in whisker_ends(figure.axes[0], direction=0) for end in run]
    half = compared[f"{ALIGNED_DROP}_se"][0] * t.ppf(0.975, 3)
    drop = compared[ALIGNED_DROP][0]
    assert len(ends) == 2
    assert ends[0] == pytest.approx((drop - half, drop + half))
