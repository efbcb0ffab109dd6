"""Figures show plasticity at one position where a run has it, and say which plasticity it is."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection, PathCollection, PolyCollection, QuadMesh
from matplotlib.figure import Figure
from scipy.stats import t

from attention_plasticity import Run, open_run
from attention_plasticity.cli import main
from attention_plasticity.metrics import BIN_QUANTITY, GROUP_COLUMNS, POOLED_BIN_QUANTITY
from attention_plasticity.plots import (
    caption_of,
    heatmap_figure,
    map_figure,
    phase_figure,
    plasticity_figure,
)
from attention_plasticity.plots.drawing import draw
from attention_plasticity.plots.settings import HeatmapPlot, PlasticityPlot
from attention_plasticity.tables.bin_cells import bin_cells, bin_geometry
from attention_plasticity.tables.profiles import HEAD, head_profiles
from attention_runs import add_attention
from qk_toolkit.errors import ConfigError
from run_tables import add_bins, aligned_metrics, bins_table, metrics_table, write_run

ROOT = Path(__file__).parents[3]
POSITION, BUCKET = "plasticity at one position", "plasticity over a bucket"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return open_run(add_bins(write_run(tmp_path / "run", num_pairs_per_bin=256)))


def note(figure: Figure) -> str:
    return " ".join(str(figure.get_supxlabel()).split())


def caption(figure: Figure) -> str:
    return caption_of(figure) or ""


def label(figure: Figure, kind: str) -> str:
    """The label of the axis or of the colour bar that shows plasticity."""
    axes = figure.axes[-1] if kind in ("heatmap", "map") else figure.axes[0]
    return " ".join(axes.get_ylabel().split())


def title(figure: Figure) -> str:
    return figure.axes[0].get_title(loc="left") or str(figure.get_suptitle())


def mean_line(figure: Figure) -> np.ndarray:
    (line,) = [one for one in figure.axes[0].lines if one.get_label() == "mean over heads"]
    return np.column_stack([line.get_xdata(), line.get_ydata()])


def points(figure: Figure) -> np.ndarray:
    drawn = [one for one in figure.axes[0].collections if isinstance(one, PathCollection)]
    return np.asarray(drawn[0].get_offsets())


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("plasticity", {}),
    ("heatmap", {}),
    ("map", {}),
    ("profile", {}),
    ("predictability", {}),
]


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
def test_the_default_is_at_one_position_and_is_named(
    run: Run, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    figure = run.plot(kind, **options)
    for text in (title(figure), label(figure, kind), caption(figure)):
        assert POSITION in text.replace("Plasticity", "plasticity")
        assert "bucket" not in text
    assert "Queries are compared at one position of their bin" in caption(figure)
    assert "one bin of keys, 256 per bin of queries; bins of 256 tokens" in caption(figure)
    assert "bucket" not in note(figure)
    earlier = open_run(write_run(tmp_path / "earlier")).plot(kind, **options)
    for text in (title(earlier), label(earlier, kind), caption(earlier)):
        assert BUCKET in text.replace("Plasticity", "plasticity")
    assert "over a bucket: with rotary phase" in note(earlier)
    assert "The run has no plasticity at one position." in caption(earlier)


@pytest.mark.parametrize("kind", ["plasticity", "heatmap", "profile", "predictability"])
def test_plasticity_over_a_bucket_is_shown_on_request(run: Run, tmp_path: Path, kind: str) -> None:
    asked = run.plot(kind, plasticity="bucket")
    assert BUCKET in label(asked, kind)
    assert "The run has no plasticity" not in caption(asked)
    earlier = open_run(write_run(tmp_path / "earlier"))
    with pytest.raises(ConfigError, match="has no plasticity at one position; it needs the rotary"):
        earlier.plot(kind, plasticity="position")


def test_lines_and_cells_are_those_of_the_bins(run: Run) -> None:
    bins = bins_table()
    profile = bins.groupby(["layer", "q_head", "q_bin"])["plasticity"].mean()
    mean = profile.groupby("q_bin").mean()
    expected = np.column_stack([mean.index * 256 + 128, mean])
    np.testing.assert_allclose(mean_line(run.plot("plasticity")), expected)
    assert "12 texts in every bin" in note(run.plot("plasticity"))
    figure = run.plot("heatmap")
    mesh = next(one for one in figure.axes[0].collections if isinstance(one, QuadMesh))
    drawn = np.ma.filled(np.ma.asarray(mesh.get_array()).astype(float), np.nan)  # (keys, queries)
    for (q, k), value in bins.groupby(["q_bin", "k_bin"])["plasticity"].mean().items():  # type: ignore[misc]
        assert drawn[k, q] == pytest.approx(value)
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()][:3] == ["0", "256", "512"]


def test_cells_count_equally_except_with_windows_and_context_pairs() -> None:
    bins = bins_table()
    weights = bin_cells(bins).groupby(HEAD)["weight"].max()
    assert set(weights) == {1.0}
    own = bins[bins["k_bin"] == 0].assign(k_bin=bins["q_bin"])  # keys of the query's own bin
    table = pd.concat([bins, own[own["layer"] == 1]], ignore_index=True)
    cells = bin_cells(table)
    by_pairs = cells["layer"] == 1
    assert (cells["weight"] == cells["n_pairs"].where(by_pairs, 1)).all()
    assert (bin_cells(bins, "context")["weight"] == bins["n_pairs"]).all()
    one = cells[by_pairs & (cells["q_bucket"] == 3) & (cells["q_head"] == 0)]
    found = head_profiles(cells).query("layer == 1 and q_head == 0 and q_bucket == 3")
    mean = np.average(one["plasticity"], weights=one["n_pairs"])
    assert found["plasticity"].item() == pytest.approx(mean)


def test_bins_of_impossible_size_have_no_borders() -> None:
    geometry = bin_geometry(bins_table())
    assert geometry is not None
    assert geometry.min_size == 256
    assert bin_geometry(bins_table().assign(q_end=1e30)) is None
    assert bin_geometry(bins_table().assign(q_end=np.nan)) is None
    assert bin_geometry(bins_table().drop(columns="q_end")) is None
    heatmap_figure(bins_table().assign(q_end=1e30)).draw_without_rendering()


def test_the_band_of_bins_is_made_from_their_own_influences() -> None:
    bins, rng = bins_table(), np.random.default_rng(0)
    rows = head_profiles(bin_cells(bins)).rename(columns={"plasticity": "value"})
    shares = pd.DataFrame(rng.normal(0, 0.01, (len(rows), 16)), columns=list(GROUP_COLUMNS))
    rows = rows[[*HEAD, "q_bucket", "value"]].assign(n_groups=16).join(shares)
    rows = rows.rename(columns={"q_bucket": "bin"})
    others = rows.assign(quantity=POOLED_BIN_QUANTITY, **dict.fromkeys(GROUP_COLUMNS, 1.0))
    influences = pd.concat([rows.assign(quantity=BIN_QUANTITY), others])
    figure = plasticity_figure(bins, influences=influences)
    collections = figure.axes[0].collections
    band = next(one for one in collections if str(one.get_label()).startswith("95 %"))
    assert isinstance(band, PolyCollection)
    first = rows[rows["bin"] == 1]
    half = t.ppf(0.975, 15) * np.sqrt((first[list(GROUP_COLUMNS)].mean() ** 2).sum())
    heights = np.concatenate([path.vertices for path in band.get_paths()])
    heights = heights[heights[:, 0] == 384, 1]
    assert np.ptp(heights) == pytest.approx(2 * half)


def test_the_profile_has_the_mean_of_the_lines(run: Run) -> None:
    figure = run.plot("profile")
    np.testing.assert_allclose(mean_line(figure), mean_line(run.plot("plasticity")))
    assert figure.axes[0].get_xlabel() == "query position (tokens)"
    assert "12 texts in every bin" in note(figure)
    assert "middle 50 % and the middle 90 % of heads" in caption(figure)


def test_a_table_of_bins_is_drawn_by_its_columns(run: Run, tmp_path: Path) -> None:
    for folder in (run.folder, tmp_path):
        path = folder / "head_bin_plasticity.csv"
        bins_table().to_csv(path, index=False)
        assert POSITION in label(draw(HeatmapPlot(bucket_csv=str(path))), "heatmap")
    cells = run.folder / "head_bucket_plasticity.csv"
    assert BUCKET in label(draw(PlasticityPlot(bucket_csv=str(cells))), "plasticity")
    buckets = draw(PlasticityPlot(run=str(run.folder), bucket_min_size=10))  # of buckets
    assert BUCKET in label(buckets, "plasticity")
    with pytest.raises(ConfigError, match="are of buckets, not of bins"):
        run.plot("plasticity", plasticity="position", bucket_min_size=10)


def test_scripts_of_the_seeds_show_buckets(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plot_plasticity.py", "plot_bucket_heatmap.py"):
        script, output = str(ROOT / "scripts" / name), tmp_path / f"{name}.svg"
        for words, shown in (([], BUCKET), (["--plasticity", "position"], POSITION)):
            given = [script, str(run.folder), *words, "--output", str(output)]
            monkeypatch.setattr(sys, "argv", given)
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(script, run_name="__main__")
            assert ended.value.code == 0
            text = output.with_suffix(".txt").read_text()
            assert text.startswith(shown.capitalize())


def test_layers_without_values_at_one_position_show_buckets(run: Run) -> None:
    metrics = run.head_metrics.copy()
    metrics.loc[metrics["layer"] == 1, [name for name in metrics if "aligned" in name]] = np.nan
    metrics.to_csv(run.folder / "head_metrics.csv", index=False, na_rep="nan")
    again = open_run(run.folder)
    assert POSITION in label(again.plot("heatmap"), "heatmap")
    assert BUCKET in label(again.plot("heatmap", layers="1"), "heatmap")


def test_the_map_of_drops_tests_the_drop_that_it_shows(run: Run) -> None:
    metrics = aligned_metrics(metrics_table())
    figure = map_figure(metrics, metric="drop")
    (image, *_) = figure.axes[0].images
    drawn = np.asarray(image.get_array())
    assert drawn[1, 2] == pytest.approx(metrics["ap_aligned_drop"][6])
    assert "12 of 12 tested heads" in caption(figure)
    unknown = map_figure(metrics.drop(columns="ap_aligned_drop_se"), metric="drop")
    assert "tested heads" not in caption(unknown)  # its errors are not known
    assert label(unknown, "map") == f"drop of {POSITION}"
    assert run.plot("map", metric="ap_phase").axes[-1].get_ylabel() == "rotary phase"


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("ap_aligned_first20", f"{POSITION}, first fifth"),
        ("ap_aligned_last20", f"{POSITION}, last fifth"),
        ("ap_aligned_counted", f"counted {POSITION}"),
        ("ap_overall", BUCKET),
    ],
)
def test_a_map_says_which_plasticity_its_column_is(metric: str, words: str) -> None:
    table = aligned_metrics(metrics_table()).assign(ap_aligned_counted=0.5)
    figure = map_figure(table, metric=metric)
    assert label(figure, "map") == words
    assert title(figure) == f"{words[0].upper()}{words[1:]} by head"
    assert caption(figure).startswith(words[0].upper() + words[1:])


def test_phase_is_the_distance_from_the_diagonal(run: Run) -> None:
    figure = run.plot("phase")
    axes, metrics = figure.axes[0], run.head_metrics
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("plasticity over a bin", POSITION)
    np.testing.assert_allclose(points(figure), metrics[["ap_pooled", "ap_aligned"]])
    lines = [one for one in axes.collections if isinstance(one, LineCollection)]
    widths = np.array(lines[1].get_segments())[:, :, 1]  # (heads, 2) at one position
    np.testing.assert_allclose(np.ptp(widths, axis=1), 2 * t.ppf(0.975, 7) * 0.01)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["equal values"]
    names = [text.get_text() for text in axes.texts]
    assert names[0] in ("L0 H3", "L1 H3", "L2 H3")  # the last head has the largest phase
    assert "rotary phase: 0.200 in the mean over heads" in note(figure)
    for words in ("same bins, key pairs and weights", "0.350 at most", "8 groups of texts"):
        assert words in caption(figure)
    many = phase_figure(pd.concat([metrics] * 40, ignore_index=True))
    assert f"95 % interval of {POSITION} of one head: ± 0.024 (median)" in note(many)
    phase_figure(metrics.head(1)).draw_without_rendering()


def test_phase_is_drawn_where_it_is_known(run: Run, tmp_path: Path, capsys: Any) -> None:
    assert main(["plot", "all", str(run.folder), "--footnote", "", "--format", "svg"]) == 0
    assert f"{run.folder}/figures/phase.svg" in capsys.readouterr().out
    text = (run.folder / "figures" / "map-drop.txt").read_text()
    assert text.startswith(f"Drop of {POSITION}")
    earlier = write_run(tmp_path / "earlier")
    assert main(["plot", "phase", str(earlier), "--output", str(tmp_path / "x.png")]) == 2
    assert "has no plasticity at one position; it needs the rotary" in capsys.readouterr().err


def test_attended_plasticity_is_drawn_against_plasticity_at_one_position(tmp_path: Path) -> None:
    run = open_run(add_bins(add_attention(write_run(tmp_path / "run"))))
    figure = run.plot("attended")
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (POSITION, "attended plasticity")
    np.testing.assert_allclose(points(figure), run.head_metrics[["ap_aligned", "ap_attended"]])
    assert "Both are at one position" in caption(figure)
    assert "bucket" not in note(figure)
    figure.draw_without_rendering()


@pytest.mark.parametrize("kind", ["map", "profile", "phase", "predictability", "plasticity"])
def test_heads_without_a_value_are_told(run: Run, kind: str) -> None:
    path = run.folder / "head_metrics.csv"
    metrics = pd.read_csv(path)
    aligned = [name for name in metrics if "aligned" in name or name in ("ap_pooled", "ap_phase")]
    metrics.loc[metrics["layer"] == 1, aligned] = np.nan
    metrics.to_csv(path, index=False, na_rep="nan")
    bins = pd.read_csv(run.folder / "head_bin_plasticity.csv").query("layer != 1")
    bins.to_csv(run.folder / "head_bin_plasticity.csv", index=False)
    figure = open_run(run.folder).plot(kind)
    heads = "8 heads" if kind in ("map", "plasticity", "profile") else "8 of 12 heads"
    assert note(figure).startswith(heads)
    assert "8 query heads of Tiny-1B" in caption(figure)
    assert f"4 further heads have no {POSITION}." in caption(figure)


def test_a_map_without_values_names_the_command_that_adds_rotary_records() -> None:
    table = aligned_metrics(metrics_table())
    empty = table.assign(ap_aligned=np.nan, ap_phase=np.nan)
    for metric in ("ap_aligned", "ap_phase"):
        with pytest.raises(ConfigError, match="attention-plasticity add-rotary, and analyze"):
            map_figure(empty, metric=metric)


def test_a_bin_of_influences_is_an_integer(run: Run) -> None:
    row = {"layer": 0, "q_head": 0, "quantity": BIN_QUANTITY, "bin": 0.5}
    row |= {"value": 0.5, "n_groups": 8, **dict.fromkeys(GROUP_COLUMNS, 0.0)}
    pd.DataFrame([row]).to_csv(run.folder / "head_influences.csv", index=False)
    info = json.loads((run.folder / "run.json").read_text())
    info["tables"]["influences"] = "head_influences.csv"
    (run.folder / "run.json").write_text(json.dumps(info))
    with pytest.raises(ConfigError, match="expected integers in the rows of ap_bin"):
        open_run(run.folder).plot("plasticity")


@pytest.mark.parametrize("kind", ["plasticity", "heatmap"])
def test_captions_say_why_the_first_part_has_no_value(run: Run, tmp_path: Path, kind: str) -> None:
    told = "The first {0} has no value, because no {0} of keys comes before it."
    assert told.format("bin") in caption(run.plot(kind))
    earlier = open_run(write_run(tmp_path / "earlier"))
    assert told.format("bucket") in caption(earlier.plot(kind))


def test_a_heatmap_gives_the_range_of_its_colours(run: Run) -> None:
    assert "Colours range from 0 to 1." in caption(run.plot("heatmap", color_range="unit"))
    assert "Colours range from 0 to 1." not in caption(run.plot("heatmap"))
    assert "(range of the data)" in label(run.plot("heatmap"), "heatmap")
