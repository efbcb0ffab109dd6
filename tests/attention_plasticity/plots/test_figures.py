"""What the figures draw is what the tables say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection, PathCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from attention_plasticity.plots import (
    caption_of,
    components_figure,
    heatmap_figure,
    map_figure,
    plasticity_figure,
    predictability_figure,
    profile_figure,
)
from attention_plasticity.plots.heatmap import all_buckets, cell_grid
from attention_plasticity.plots.plasticity import trend_of
from attention_plasticity.plots.style import line_shades
from attention_plasticity.tables.bin_cells import bin_cells
from attention_plasticity.tables.profiles import head_profiles
from qk_dump.buckets import BucketGeometry
from qk_toolkit.errors import ConfigError
from run_tables import aligned_metrics, bins_table, cells_table, components_table, metrics_table

UNIFORM = BucketGeometry("uniform", 128)


def one(items: Any, kind: type[Any]) -> Any:
    (found,) = [item for item in items if isinstance(item, kind)]
    return found


def traces(figure: Figure) -> list[np.ndarray]:
    paths = one(figure.axes[0].collections, LineCollection).get_paths()
    return [path.vertices for path in paths]


def mean_line(figure: Figure) -> tuple[np.ndarray, np.ndarray]:
    (line,) = [line for line in figure.axes[0].lines if line.get_label() == "mean over heads"]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def note(figure: Figure) -> str:
    return figure._supxlabel.get_text()  # type: ignore[attr-defined]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_every_head_is_a_trace_and_the_mean_is_their_mean() -> None:
    cells = cells_table()
    figure = plasticity_figure(cells, model_name="tiny")
    profiles = head_profiles(cells)
    expected = [
        group[["q_position", "plasticity"]].to_numpy()
        for _, group in profiles.groupby(["layer", "q_head"])
    ]
    assert len(traces(figure)) == 12
    for drawn, wanted in zip(traces(figure), expected, strict=True):
        np.testing.assert_allclose(drawn, wanted)
    x, y = mean_line(figure)
    np.testing.assert_allclose(x, [192, 320, 448, 576, 704])
    np.testing.assert_allclose(y, profiles.groupby("q_bucket")["plasticity"].mean())
    axes = figure.axes[0]
    assert axes.get_title(loc="left") == "Plasticity over a bucket: tiny"
    assert axes.get_xlabel() == "query position (tokens)"
    assert axes.get_ylabel() == "plasticity over a bucket"
    assert note(figure) == "12 heads  ·  over a bucket: with rotary phase"


def test_asked_for_starts_are_drawn_at_bucket_starts() -> None:
    figure = plasticity_figure(cells_table(), geometry=UNIFORM, at_starts=True)
    assert mean_line(figure)[0].tolist() == [128, 256, 384, 512, 640]
    log = plasticity_figure(cells_table(), geometry=BucketGeometry("log", 2), at_starts=True)
    assert mean_line(log)[0].tolist() == [0, 3, 7, 15, 31]
    assert log.axes[0].get_xscale() == "symlog"


def test_without_positions_the_axis_says_bucket() -> None:
    bare = cells_table().drop(columns=["q_position", "k_position", "n_pairs"])
    figure = plasticity_figure(bare)
    assert figure.axes[0].get_xlabel() == "query bucket"
    assert mean_line(figure)[0].tolist() == [1, 2, 3, 4, 5]


def test_nan_cells_leave_gaps_that_are_counted() -> None:
    cells = cells_table()
    cells.loc[(cells["layer"] == 1) & (cells["q_bucket"] == 3), "plasticity"] = np.nan
    figure = plasticity_figure(cells)
    broken = [np.isnan(path[:, 1]).tolist() for path in traces(figure)]
    gap = [False, False, True, False, False]
    assert broken == [[False] * 5] * 4 + [gap] * 4 + [[False] * 5] * 4
    assert "4 of them have cells without a value, left as gaps" in note(figure)
    known = head_profiles(cells).groupby("q_bucket")["plasticity"].mean()
    np.testing.assert_allclose(mean_line(figure)[1], known)
    assert "4 of them have cells without a value" in note(heatmap_figure(cells))


def test_layers_have_their_own_colours() -> None:
    figure = plasticity_figure(cells_table(), color_by_layer=True, cmap="plasma")
    colours = [to_hex(colour) for colour in figure.axes[0].collections[0].get_colors()]
    shades = line_shades("plasma")
    expected = [to_hex(shades(value)) for value in (0.0, 0.5, 1.0) for _ in range(4)]
    assert colours == expected
    assert figure.axes[1].get_ylabel() == "layer"
    assert figure.axes[1].get_yticks().tolist() == [0, 1, 2]
    assert len(plasticity_figure(cells_table(1), color_by_layer=True).axes) == 1  # no bar


@pytest.mark.parametrize(
    "layers", [[0, 14, 29], range(30), range(24), range(3, 36), [7, 8], [0, 1, 2, 29], range(100)]
)
def test_the_bar_of_layers_has_the_first_and_the_last_layer(layers: Sequence[int]) -> None:
    metrics = metrics_table(len(layers), 1)
    metrics["layer"] = np.array(layers)[metrics["layer"]]
    ticks = predictability_figure(metrics).axes[1].get_yticks()
    assert (ticks[0], ticks[-1]) == (layers[0], layers[-1])
    assert len(ticks) <= 7
    assert np.diff(ticks).min() >= (layers[-1] - layers[0]) / 12
    if len(layers) == 3:
        assert ticks.tolist() == layers


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_an_axis_of_a_part_of_the_range_says_so(scale: float) -> None:
    cells = cells_table()
    cells["plasticity"] = 0.7 + scale * (cells["plasticity"] - 0.7)
    for figure in (profile_figure(cells), plasticity_figure(cells)):
        axes = figure.axes[0]
        low, high = axes.get_ylim()
        ticks = axes.get_yticks()
        if scale == 1.0:
            assert axes.get_ylabel() == "plasticity over a bucket"
            assert ticks.tolist() == [0, 0.25, 0.5, 0.75, 1]
        else:
            words = f"(axis from {ticks[0]:g} to {ticks[-1]:g})"
            assert axes.get_ylabel() == f"plasticity over a bucket\n{words}"
            assert 0.5 < low < ticks[0] < ticks[-1] < high < 0.9
        figure.draw_without_rendering()
        drawn = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
        assert figure.bbox.x0 - 1 <= drawn.x0 < drawn.x1 <= figure.bbox.x1 + 1


def test_trends_have_colours_and_counts() -> None:
    cells = cells_table()
    rises = cells["layer"] == 0
    cells.loc[rises, "plasticity"] = 0.1 * cells.loc[rises, "q_bucket"]
    figure = plasticity_figure(cells, color_trend=True)
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == ["rising (4)", "falling (8)", "neither (0)", "mean over heads"]


@pytest.mark.parametrize(
    ("values", "threshold", "trend"),
    [
        ([0.1, 0.2, 0.3, 0.9], 0.5, "rising"),
        ([0.9, 0.2, 0.1], 0.99, "falling"),
        ([0.1, 0.9, 0.1, 0.9, 0.1], 0.5, "neither"),
        ([0.5, 0.5, 0.5], 0.0, "neither"),
        ([0.5, np.nan, 0.7], 0.0, "neither"),
        ([0.1, np.nan, 0.2, 0.3], 0.5, "rising"),
        ([0.1, 0.9, 0.2, 0.8], 0.5, "neither"),
    ],
)
def test_a_trend_is_a_rank_correlation(values: list[float], threshold: float, trend: str) -> None:
    assert trend_of(np.array(values), threshold) == trend


def test_look_of_the_traces_can_be_chosen() -> None:
    lines = plasticity_figure(cells_table(), alpha=0.3, line_width=2.0).axes[0].collections[0]
    assert lines.get_alpha() == 0.3
    assert lines.get_linewidth() == [2.0]


@pytest.mark.parametrize("agg", ["mean", "median"])
def test_the_heatmap_holds_the_aggregate_of_every_cell(agg: Any) -> None:
    cells = cells_table()
    cells.loc[(cells["q_bucket"] == 4) & (cells["k_bucket"] == 0), "plasticity"] = np.nan
    figure = heatmap_figure(cells, geometry=UNIFORM, agg=agg, title="mine", vmin=0.1, vmax=0.9)
    mesh = one(figure.axes[0].collections, QuadMesh)
    drawn = np.ma.filled(mesh.get_array(), np.nan)  # (key buckets, query buckets)
    assert drawn.shape == (6, 6)
    for q in range(6):
        for k in range(6):
            cell = cells[(cells["q_bucket"] == q) & (cells["k_bucket"] == k)]["plasticity"]
            if k < q and (q, k) != (4, 0):
                assert drawn[k, q] == pytest.approx(getattr(cell, agg)())
            else:
                assert np.isnan(drawn[k, q])
    assert mesh.get_clim() == (0.1, 0.9)
    axes = figure.axes[0]
    assert axes.get_title(loc="left") == "mine"
    assert [tick.get_text() for tick in axes.get_xticklabels()][:3] == ["0", "128", "256"]
    assert axes.get_xticks()[:3].tolist() == [-0.5, 0.5, 1.5]  # where the buckets begin
    assert agg in figure.axes[1].get_ylabel()


def test_without_geometry_the_heatmap_shows_mean_positions_or_bucket_numbers() -> None:
    axes = heatmap_figure(cells_table()).axes[0]
    for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):  # bucket 0 has no queries
        assert [tick.get_text() for tick in ticks] == ["64", "192", "320", "448", "576", "704"]
    assert axes.get_xticks()[:2].tolist() == [0, 1]  # in the middle of buckets
    assert axes.get_xlabel() == "mean query position (tokens)"
    bare = heatmap_figure(cells_table().drop(columns=["q_position", "k_position"])).axes[0]
    assert [tick.get_text() for tick in bare.get_yticklabels()][:2] == ["0", "1"]
    assert bare.get_xlabel() == "query bucket"


def bars(figure: Figure) -> list[float]:
    return [float(bar.get_height()) for bar in figure.axes[0].patches]


def test_components_are_normalised_per_head_before_averaging() -> None:
    figure = components_figure(components_table())
    # each head gives 3 of 10 to its own dimension and 1 of 10 to each other one
    expected = [(3 + 1 + 1 + 1) / 40] * 4 + [0.1] * 4
    np.testing.assert_allclose(bars(figure), expected)
    np.testing.assert_allclose(bars(components_figure(components_table(), agg="median")), 0.1)


def test_the_largest_components_come_first() -> None:
    figure = components_figure(components_table(), limit=3, title="t", ylabel="share")
    assert len(bars(figure)) == 3
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["0", "1", "2"]
    assert figure.axes[0].get_ylabel() == "share"
    assert note(figure) == "mean over 12 heads  ·  3 of 8 dimensions"
    legend = figure.axes[0].get_legend().get_texts()
    assert [text.get_text() for text in legend] == ["uniform share (1/d)"]
    assert components_figure(components_table()).axes[0].get_ylabel() == (
        "share of linear position R²"
    )


@pytest.mark.parametrize("metric", ["ap_overall", "ap_phase", "q_R2_total", "attn_sink_mass"])
def test_the_map_shows_the_metric_of_every_head(metric: str) -> None:
    metrics = aligned_metrics(metrics_table()).assign(attn_sink_mass=np.linspace(0.1, 0.8, 12))
    metrics = metrics.drop(index=5)  # layer 1, head 1
    figure = map_figure(metrics, metric=metric)
    (image,) = figure.axes[0].images
    drawn = np.ma.filled(image.get_array(), np.nan)
    for row in metrics.itertuples():
        assert drawn[row.layer, row.q_head] == pytest.approx(getattr(row, metric))
    assert np.isnan(drawn[1, 1])
    assert "1 without a value or not captured" in note(figure)
    low, high = image.get_clim()
    if metric in ("ap_overall", "attn_sink_mass"):
        assert (low, high) == (0, 1)
    if metric == "ap_phase":
        assert low == -high
    assert one(figure.axes[0].collections, PathCollection).get_offsets().tolist() == [[1, 1]]


def test_the_profile_shows_mean_and_spread() -> None:
    cells = cells_table()
    cells.loc[(cells["layer"] == 1) & (cells["q_bucket"] == 5), "plasticity"] = np.nan
    figure = profile_figure(cells)
    profiles = head_profiles(cells)
    x, y = mean_line(figure)
    np.testing.assert_allclose(x, [192, 320, 448, 576, 704])
    np.testing.assert_allclose(y, profiles.groupby("q_bucket")["plasticity"].mean())
    wide, half = figure.axes[0].collections[:2]
    last = profiles.loc[profiles["q_bucket"] == 5, "plasticity"]
    for band, share in ((half, 0.25), (wide, 0.05)):
        points = np.concatenate([path.vertices for path in band.get_paths()])
        heights = points[points[:, 0] == 704, 1]
        assert heights.min() == pytest.approx(last.quantile(share))
        assert heights.max() == pytest.approx(last.quantile(1 - share))
    assert "4 of them have cells without a value, left as gaps" in note(figure)


@pytest.mark.parametrize("draw", [plasticity_figure, profile_figure, heatmap_figure])
def test_a_bin_without_a_value_is_not_drawn(draw: Callable[..., Figure]) -> None:
    """The last bin has too few texts in every head, and an earlier one in some heads."""
    bins = bins_table()
    last = bins["q_bin"].max()
    whole = draw(bins[bins["q_bin"] < last])
    bins.loc[bins["q_bin"] == last, ["plasticity", "pooled"]] = np.nan
    figure = draw(bins)
    assert figure.axes[0].get_xlim() == whole.axes[0].get_xlim()
    assert figure.axes[0].get_ylim() == whole.axes[0].get_ylim()
    if draw is heatmap_figure:
        mesh = one(figure.axes[0].collections, QuadMesh)
        drawn = mesh.get_array()
        assert drawn.shape == (last, last)
        means = bins.groupby(["q_bin", "k_bin"])["plasticity"].mean()
        assert mesh.get_clim() == pytest.approx((means.min(), means.max()))  # of drawn bins
    else:
        assert mean_line(figure)[0].max() < bins["q_start"].max()
    bins.loc[(bins["q_bin"] == 2) & (bins["layer"] == 0), "plasticity"] = np.nan
    if draw is not heatmap_figure:
        known = head_profiles(bin_cells(bins)).groupby("q_bucket")["plasticity"].mean().dropna()
        np.testing.assert_allclose(mean_line(draw(bins))[1], known)


def test_predictability_is_a_point_per_head() -> None:
    metrics = metrics_table()
    figure = predictability_figure(metrics)
    points = one(figure.axes[0].collections, PathCollection)
    np.testing.assert_allclose(points.get_offsets(), metrics[["q_R2_total", "ap_overall"]])
    np.testing.assert_allclose(points.get_array(), metrics["layer"])
    rho = metrics["q_R2_total"].corr(metrics["ap_overall"], method="spearman")
    assert f"ρ {rho:.2f}".replace("-", "−") in note(figure)
    older = predictability_figure(metrics.drop(columns="q_R2_total"))
    assert "R² of position" in older.axes[0].get_xlabel()


PARTS = ("as captured", "before RoPE")


def test_variance_before_rope_has_a_panel_of_its_own() -> None:
    metrics = metrics_table().assign(q_R2_unrotated=np.linspace(-0.0005, 0.01, 12))
    figure = predictability_figure(metrics)
    left, right = figure.axes[:2]
    names = [axes.get_xlabel().split("\n") for axes in (left, right)]
    assert names == [["variance from position,", f"{part} (R²)"] for part in PARTS]
    figure.draw_without_rendering()
    first, second = (axes.xaxis.label.get_window_extent() for axes in (left, right))
    assert first.x1 < second.x0
    assert right.get_xlim()[0] < -0.0008  # the first point, at -0.0005, is not cut
    shares = (metrics["q_R2_total"], metrics["q_R2_unrotated"])
    for axes, share, part in zip((left, right), shares, PARTS, strict=True):
        points = one(axes.collections, PathCollection)
        np.testing.assert_allclose(points.get_offsets()[:, 0], share)  # type: ignore[index]
        rho = share.corr(metrics["ap_overall"], method="spearman")
        assert f"Spearman's ρ {rho:.2f} {part}".replace("-", "−") in note(figure)
    assert "how far RoPE turns the mean query" in caption_of(figure)
    metrics.loc[3, "q_R2_unrotated"] = 0.2
    assert "triangles: 1 beyond the axis, up to 0.20" in note(predictability_figure(metrics))
    metrics["q_R2_unrotated"] = np.nan
    assert "R²" in predictability_figure(metrics).axes[0].get_xlabel()


def test_outliers_do_not_squeeze_the_other_heads() -> None:
    metrics = metrics_table()
    metrics.loc[[3, 9], "q_R2_total"] = 5.0, 7.5
    figure = predictability_figure(metrics)
    points, triangles = (
        item for item in figure.axes[0].collections if isinstance(item, PathCollection)
    )
    end = figure.axes[0].get_xlim()[1]
    assert 0.21 < end < 1.5
    assert len(points.get_offsets()) == 10
    places = np.asarray(triangles.get_offsets())
    assert set(places[:, 0]) == {end}
    np.testing.assert_allclose(places[:, 1], metrics["ap_overall"][[3, 9]])
    assert "triangles: 2 beyond the axis, up to 7.50" in note(figure)
    assert "triangles" not in note(predictability_figure(metrics_table()))


def test_a_figure_of_one_head_and_one_cell_can_be_drawn() -> None:
    cells = cells_table(1, 1, 2)
    metrics = metrics_table(1, 1)
    for figure in (
        plasticity_figure(cells, color_by_layer=True),
        plasticity_figure(cells, color_trend=True),
        heatmap_figure(cells, geometry=UNIFORM),
        components_figure(components_table(1, 1, 1)),
        map_figure(metrics),
        map_figure(aligned_metrics(metrics).assign(ap_aligned_drop=0.0), metric="drop"),
        profile_figure(cells),
        predictability_figure(metrics),
    ):
        figure.draw_without_rendering()


NOTHING = cells_table().assign(plasticity=np.nan)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: plasticity_figure(NOTHING), "plasticity: every value is NaN"),
        (lambda: heatmap_figure(NOTHING), "plasticity: every value is NaN"),
        (
            lambda: components_figure(components_table().assign(weight=np.nan)),
            "weight: every value is NaN",
        ),
        (
            lambda: map_figure(metrics_table().assign(q_R2_total=np.nan), metric="q_R2_total"),
            "q_R2_total: every value is NaN",
        ),
        (lambda: map_figure(metrics_table(), metric="drop"), "no plasticity at one position"),
        (lambda: map_figure(metrics_table(), metric="ap_overal"), "did you mean ap_overall?"),
        (
            lambda: map_figure(metrics_table().assign(layer_type="full"), metric="layer_type"),
            "holds words, not numbers",
        ),
        (lambda: profile_figure(NOTHING), "plasticity: every value is NaN"),
        (
            lambda: predictability_figure(metrics_table().assign(ap_overall=np.nan)),
            "no head has both values",
        ),
        (lambda: heatmap_figure(cells_table(), cmap="viridiss"), "did you mean viridis?"),
        (lambda: plasticity_figure(cells_table(), cmap="??"), "such as viridis"),
        (lambda: heatmap_figure(cells_table(), vmin=1, vmax=0), "must be below vmax"),
        (
            lambda: plasticity_figure(cells_table(), color_by_layer=True, color_trend=True),
            "cannot be used together with color_trend",
        ),
    ],
)
def test_what_cannot_be_drawn_is_told(call: Callable[[], object], told: str) -> None:
    assert told in refusal(call)


def test_a_model_name_is_no_mathematics() -> None:
    figure = plasticity_figure(cells_table(), model_name="a$b_{c}$ <script>")
    assert figure.axes[0].get_title(loc="left").endswith(r"a\$b_{c}\$ <script>")
    figure.draw_without_rendering()


def test_heads_of_different_widths_are_averaged_where_they_have_the_dimension() -> None:
    wide = components_table(1, 1, 4)
    narrow = components_table(1, 1, 2).assign(layer=1)
    figure = components_figure(pd.concat([wide, narrow]))
    # 3:1:1:1 of a head of four dimensions, 3:1 of one of two
    np.testing.assert_allclose(
        bars(figure), [(3 / 6 + 3 / 4) / 2, (1 / 6 + 1 / 4) / 2, 1 / 6, 1 / 6]
    )


def test_buckets_far_apart_stand_side_by_side_in_a_heatmap() -> None:
    cells = cells_table()
    for name in ("q_bucket", "k_bucket"):
        cells[name] = cells[name] * 10**12
    buckets = all_buckets(cells)
    grid, _ = cell_grid(cells, buckets, "mean")
    near, _ = cell_grid(cells_table(), all_buckets(cells_table()), "mean")
    np.testing.assert_array_equal(grid, near)
    assert buckets.tolist() == [number * 10**12 for number in range(6)]
    heatmap_figure(cells, geometry=UNIFORM).draw_without_rendering()
