"""Bands, whiskers and marks of confidence intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from scipy.stats import false_discovery_control, t

from attention_plasticity.comparison.scores import correlations
from attention_plasticity.metrics import BUCKET_QUANTITY, FIFTHS, GROUP_COLUMNS, MEAN_COLUMNS
from attention_plasticity.plots import (
    caption_of,
    heatmap_figure,
    map_figure,
    plasticity_figure,
    predictability_figure,
    profile_figure,
    profiles_figure,
    scores_figure,
    trajectory_figure,
)
from attention_plasticity.plots.drawing import draw
from attention_plasticity.plots.settings import PlasticityPlot, ProfilePlot
from attention_plasticity.tables.profiles import HEAD, head_profiles
from run_tables import cells_table, metrics_table, write_run

GROUPS = 12  # of 16; the other influences are 0
CELLS = cells_table().assign(plasticity_bias=-0.01)
METRICS = metrics_table().assign(**dict.fromkeys((f"{name}_bias" for name in FIFTHS), -0.02))
METRICS["n_text_groups"] = GROUPS


def influences_of(rows: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Rows with `layer, q_head, quantity, q_bucket, value`, and random influences."""
    shares = np.random.default_rng(seed).normal(0, 0.01, (len(rows), len(GROUP_COLUMNS)))
    shares[:, GROUPS:] = 0.0
    groups = pd.DataFrame(shares, columns=list(GROUP_COLUMNS), index=rows.index)
    return rows.assign(bias=-0.01, n_groups=GROUPS).join(groups)


def bucket_influences() -> pd.DataFrame:
    profiles = head_profiles(CELLS)
    rows = profiles[[*HEAD, "q_bucket"]].assign(quantity=BUCKET_QUANTITY)
    return influences_of(rows.assign(value=profiles["plasticity"]))


def fifth_influences() -> pd.DataFrame:
    rows = METRICS[[*HEAD, *FIFTHS]].melt(HEAD, var_name="quantity", value_name="value")
    return influences_of(rows.assign(q_bucket=np.nan))


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


def test_the_band_is_the_interval_of_the_corrected_mean() -> None:
    influences = bucket_influences()
    figure = plasticity_figure(CELLS, influences=influences)
    (band,) = [item for item in bands(figure) if item.get_label().startswith("95 %")]
    profiles = head_profiles(CELLS)
    for bucket, rows in influences.groupby("q_bucket"):
        mean = profiles[profiles["q_bucket"] == bucket]["plasticity"].mean() + 0.01
        half = width(rows[list(GROUP_COLUMNS)].to_numpy())
        assert edges(band, (bucket + 0.5) * 128) == pytest.approx((mean - half, mean + half))
    assert len(bands(figure)) == 2  # the band and its white ground
    assert "corrected for bias · band: 95 % interval over texts" in note(figure)
    assert "95 % interval of one head: ± " in note(figure)


def test_few_heads_have_a_band_each() -> None:
    influences, chosen = bucket_influences(), CELLS["layer"] == 2
    figure = plasticity_figure(CELLS[chosen], influences=influences, color_by_layer=True)
    first = influences.query("layer == 2 and q_head == 0 and q_bucket == 1")
    half = width(first[list(GROUP_COLUMNS)].to_numpy())
    value = float(first["value"].iloc[0]) + 0.01
    mean, ground, *heads = sorted(bands(figure), key=lambda band: -band.get_zorder())
    assert mean.get_zorder() == ground.get_zorder() > heads[0].get_zorder()
    assert len(heads) == 4
    assert edges(heads[0], 192) == pytest.approx((value - half, value + half))
    # the mean is that of the four heads that are drawn
    rows = influences.query("layer == 2 and q_bucket == 1")
    low, high = edges(mean, 192)
    assert (high - low) / 2 == pytest.approx(width(rows[list(GROUP_COLUMNS)].to_numpy()))


def test_the_band_has_a_gap_where_a_head_has_no_influences() -> None:
    influences = bucket_influences()
    unknown = (influences["layer"] == 0) & (influences["q_head"] == 1)
    unknown &= influences["q_bucket"] == 1
    figure = plasticity_figure(CELLS, influences=influences[~unknown])
    assert {path.vertices[:, 0].min() for path in bands(figure)[0].get_paths()} == {320}


def test_whiskers_of_the_fifths_are_intervals_of_the_mean() -> None:
    influences = fifth_influences()
    figure = profile_figure(METRICS, influences=influences)
    (ends,) = whisker_ends(figure.axes[0])
    for name, found in zip(FIFTHS, ends, strict=True):
        half = width(influences[influences["quantity"] == name][list(GROUP_COLUMNS)].to_numpy())
        mean = METRICS[name].mean() + 0.02
        assert found == pytest.approx((mean - half, mean + half))
    half_of_heads = bands(figure)[1]
    assert edges(half_of_heads, 0)[0] == pytest.approx(METRICS["ap_first20"].quantile(0.25) + 0.02)
    assert note(figure).startswith(
        "12 heads · corrected for bias · whiskers: 95 % interval over texts"
    )


def test_the_map_marks_drops_that_differ_from_zero() -> None:
    errors = np.array([0.01, 0.05, 0.11, 0.17, 0.19, 0.3, *[0.5] * 5, np.nan])
    table = metrics_table().assign(ap_drop_se=errors, ap_drop_bias=0.0, n_text_groups=GROUPS)
    table.loc[0, "ap_drop_bias"] = 0.1
    drop = table["ap_drop"] - table["ap_drop_bias"]
    p = 2 * t.sf(np.abs(drop / errors), GROUPS - 1)
    excluded = np.flatnonzero(p < 0.05)
    significant = np.flatnonzero(false_discovery_control(p[:-1]) <= 0.05)
    assert 0 < len(significant) < len(excluded)
    figure = map_figure(table.drop(index=10), metric="ap_drop")
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
    clear = map_figure(table, metric="ap_drop", fade=False)
    assert len(clear.axes[0].images) == 1
    assert "faded" not in caption(clear)


def test_other_maps_are_corrected_and_have_no_marks() -> None:
    table = METRICS.assign(ap_first20_se=1e-6)
    figure = map_figure(table, metric="ap_first20")
    np.testing.assert_allclose(
        np.ravel(figure.axes[0].images[0].get_array()), table["ap_first20"] + 0.02
    )
    assert figure.axes[0].get_legend() is None
    half = f"{t.ppf(0.975, GROUPS - 1) * 1e-6:.2g}"
    assert f"95 % interval of a head: ±{half} (median)" in note(figure)
    small = map_figure(
        table.assign(ap_first20_se=0.01 * (1 + table["layer"])), metric="ap_first20_se"
    )
    assert small.axes[0].images[0].get_clim() == pytest.approx((0.01, 0.03))


def test_values_of_cells_and_heads_are_corrected() -> None:
    partly = CELLS.assign(plasticity_bias=CELLS["plasticity_bias"].where(CELLS["q_bucket"] > 1))
    figure = heatmap_figure(partly)
    drawn = np.ma.filled(figure.axes[0].collections[0].get_array(), np.nan)  # type: ignore[arg-type]
    assert drawn[0, 1] == pytest.approx(CELLS[CELLS["q_bucket"] == 1]["plasticity"].mean())
    cell = CELLS[(CELLS["q_bucket"] == 2) & (CELLS["k_bucket"] == 1)]["plasticity"]
    assert drawn[1, 2] == pytest.approx(cell.mean() + 0.01)
    assert "corrected for bias where it is known" in note(figure)
    heads = predictability_figure(metrics_table().assign(ap_overall_bias=-0.02))
    points = np.asarray(heads.axes[0].collections[0].get_offsets())
    np.testing.assert_allclose(points[:, 1], metrics_table()["ap_overall"] + 0.02)
    assert "corrected for bias" in note(heads)


def test_unknown_errors_leave_the_figures_as_they_were() -> None:
    unknown = dict.fromkeys(f"{name}_{end}" for name in MEAN_COLUMNS for end in ("se", "bias"))
    metrics = metrics_table().assign(**dict.fromkeys(unknown, np.nan), n_text_groups=np.nan)
    cells = cells_table().assign(plasticity_se=np.nan, plasticity_bias=np.nan)
    influences = bucket_influences().assign(**dict.fromkeys(GROUP_COLUMNS, np.nan))
    pairs = [
        (plasticity_figure(cells, influences=influences), plasticity_figure(cells_table())),
        (heatmap_figure(cells), heatmap_figure(cells_table())),
        (profile_figure(metrics), profile_figure(metrics_table())),
        (
            map_figure(metrics, metric="ap_drop"),
            map_figure(metrics_table(), metric="ap_drop"),
        ),
    ]
    for found, expected in pairs:
        kinds = [
            [type(item) for item in figure.axes[0].get_children()] for figure in (found, expected)
        ]
        assert kinds[0] == kinds[1]
        assert note(found) == note(expected)
        assert "95 %" not in note(found)


def write_errors(run: Path) -> None:
    """Add errors to the tables of a run, and the table of influences."""
    both = pd.concat([fifth_influences(), bucket_influences()])
    both.to_csv(run / "head_influences.csv", index=False, na_rep="nan")
    METRICS.to_csv(run / "head_metrics.csv", index=False, na_rep="nan")
    info = json.loads((run / "run.json").read_text())
    info["tables"]["influences"] = "head_influences.csv"
    (run / "run.json").write_text(json.dumps(info))


def test_commands_draw_the_intervals_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_errors(run)
    assert len(bands(draw(PlasticityPlot(run=str(run))))) == 2
    assert len(whisker_ends(draw(ProfilePlot(run=str(run))).axes[0])[0]) == 5
    alone = tmp_path / "metrics.csv"
    METRICS.to_csv(alone, index=False)
    drawn = note(draw(ProfilePlot(metrics_csv=str(alone))))
    assert drawn.startswith("12 heads · corrected for bias · over a bucket")


def compared_table() -> pd.DataFrame:
    rows = [
        {
            "run": label,
            "n_text_groups": groups,
            **{name: 0.6 - 0.02 * place for place, name in enumerate(MEAN_COLUMNS)},
            **{f"{name}_se": 0.01 + 0.001 * place for place, name in enumerate(MEAN_COLUMNS)},
        }
        for label, groups in (("a", 4), ("b", 16), ("c", np.nan))
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("kind", "names"),
    [("profiles", FIFTHS), ("trajectory", ("ap_overall", "ap_first20", "ap_last20"))],
)
def test_whiskers_of_compared_runs(kind: str, names: tuple[str, ...]) -> None:
    compared = compared_table()
    draw_figure = profiles_figure if kind == "profiles" else trajectory_figure
    figure = draw_figure(compared)
    expected = np.array(
        [
            [
                row[name] + sign * row[f"{name}_se"] * t.ppf(0.975, row["n_text_groups"] - 1)
                for sign in (-1, 1)
            ]
            for _, row in compared[:2].iterrows()
            for name in names
        ]
    ).reshape(2, len(names), 2)
    drawn = np.array(whisker_ends(figure.axes[0]))
    np.testing.assert_allclose(drawn if kind == "profiles" else drawn.swapaxes(0, 1), expected)
    low, high = figure.axes[0].get_ylim()
    assert low < expected.min() < expected.max() < high
    assert note(figure).endswith("95 % interval over texts, where it is known")
    bare = draw_figure(compared.drop(columns=[*[f"{name}_se" for name in names]]))
    assert not bare.axes[0].containers
    assert bare._supxlabel is None  # type: ignore[attr-defined]


def test_whiskers_of_drops_are_horizontal() -> None:
    compared = compared_table()
    scores = pd.DataFrame({"model": compared["run"], "ruler": [1.0, 2.0, np.nan]})
    figure = scores_figure(compared, scores, correlations(compared, scores))
    ends = [end for run in whisker_ends(figure.axes[0], direction=0) for end in run]
    half = 0.016 * t.ppf(0.975, 3)
    drop = compared["ap_drop"][0]
    assert len(ends) == 2
    assert ends[0] == pytest.approx((drop - half, drop + half))
