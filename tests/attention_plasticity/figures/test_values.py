"""What figures draw, read back from them and compared with the tables by plain loops."""

import math
import shutil

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from scipy.stats import spearmanr, t

import attention_plasticity as ap
from attention_plasticity.figures import caption_of
from attention_plasticity.figures.over_context import trend_of
from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.tables.head_roles import COLOURS
from attention_plasticity.tables.intervals import HeadColumn, rank_intervals
from helpers import report_runs
from helpers.drawn_runs import (
    band_ends,
    bars,
    legend,
    notes,
    panels,
    picture,
    points,
    segments,
    whole_run,
)
from helpers.run_tables import add_windows, write_run
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import two_digits

FACTOR = t.ppf(0.975, 7)  # 8 groups of texts


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return ap.open_run(whole_run(tmp_path_factory.mktemp("runs") / "whole"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return ap.open_run(write_run(tmp_path_factory.mktemp("runs") / "plain"))


def heads(table):
    return [(int(row["layer"]), int(row["q_head"])) for row in table.to_dict("records")]


def plain_profiles(cells, weight):
    """Per head and bin of queries, the mean over cells: equal weights, or by pairs."""
    sums = {}
    side = "q_bin" if "q_bin" in cells else "q_bucket"
    for row in cells.to_dict("records"):
        size = row[weight] if weight else 1.0
        own = sums.setdefault((row["layer"], row["q_head"]), {}).setdefault(row[side], [0.0, 0.0])
        own[0] += size * row["plasticity"]
        own[1] += size
    return {head: {b: a / n for b, (a, n) in own.items()} for head, own in sums.items()}


def plain_mean_half(run, part, quantity):
    """Half of the interval of a mean over heads: influences are averaged over heads first."""
    rows = run.table("influences")
    own = [row for row in rows.to_dict("records") if row["quantity"] == quantity]
    wanted = set(heads(part))
    chosen = [row for row in own if (row["layer"], row["q_head"]) in wanted]
    total = 0.0
    for name in GROUP_COLUMNS:
        total += (sum(row[name] for row in chosen) / len(chosen)) ** 2
    return FACTOR * math.sqrt(total)


def test_lines_over_the_context_are_the_means_of_bins(run):
    figure = run.plot("plasticity", color="none")
    [axes] = panels(figure)
    own = plain_profiles(run.table("bins"), None)
    [collection] = [one for one in axes.collections if hasattr(one, "get_segments")]
    for line, head in zip(collection.get_segments(), own, strict=True):
        np.testing.assert_allclose(line[:, 1], list(own[head].values()))
        np.testing.assert_allclose(line[:, 0], [256 * b + 128 for b in own[head]])
    mean = [np.mean([own[head][b] for head in own]) for b in own[0, 0]]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), mean)
    assert axes.get_ylabel() == "RoPE-aligned plasticity"
    assert legend(figure) == ["one head", "mean over heads"]
    assert "band: 95 % interval over texts" in notes(figure)
    assert "12 texts in a bin" in notes(figure)
    assert "The first bin has no value" in str(caption_of(figure))
    low, high = band_ends(axes)
    rows = run.table("influences").query("quantity == 'ap_bin'")
    for place, (_, part) in enumerate(rows.groupby("bin")):
        shares = [sum(part[name]) / len(part) for name in GROUP_COLUMNS]
        half = FACTOR * math.sqrt(sum(share**2 for share in shares))
        np.testing.assert_allclose(high[place] - low[place], 2 * half, rtol=1e-6)


def test_plasticity_over_a_bucket_weighs_cells_by_their_pairs(run, plain):
    own = plain_profiles(plain.bucket_plasticity, "n_pairs")
    mean = [np.mean([own[head][b] for head in own]) for b in own[0, 0]]
    for one in (plain.plot("plasticity"), run.plot("plasticity", plasticity="bucket")):
        line = panels(one)[0].lines[0]
        np.testing.assert_allclose(line.get_ydata(), mean)
        assert panels(one)[0].get_ylabel() == "plasticity over a bucket"
        assert "over a bucket: with rotary phase" in notes(one)
    assert "The run has no RoPE-aligned plasticity." in str(caption_of(plain.plot("profile")))
    with pytest.raises(ConfigError, match="add-rotary"):
        plain.plot("profile", plasticity="position")


def test_the_profile_has_a_line_at_equal_distances(run):
    figure = run.plot("profile")
    near = run.table("influences").query("quantity == 'ap_bin_near'")
    line = panels(figure)[1].lines[1]
    expected = near.groupby("bin")["value"].mean()
    np.testing.assert_allclose(line.get_ydata(), expected)
    np.testing.assert_allclose(line.get_xdata(), 256 * expected.index + 128)
    assert legend(figure)[-1] == "the same, keys at equal distances"
    assert "keys at most 511 tokens before the query" in str(caption_of(figure))


def test_plasticity_by_distance_is_a_mean_over_heads(run):
    table = run.table("distances")
    figure = run.plot("distance")
    for axes in panels(figure):
        mean, first, last = axes.lines
        grouped = table.groupby("distance_bin")
        np.testing.assert_allclose(mean.get_ydata(), grouped["plasticity"].mean())
        np.testing.assert_allclose(mean.get_xdata(), grouped["distance"].mean())
        np.testing.assert_allclose(last.get_ydata(), grouped["last20"].mean())
        np.testing.assert_allclose(first.get_ydata(), grouped["first20"].mean().dropna())
    low, high = band_ends(panels(figure)[1])
    for place, (_, part) in enumerate(
        run.table("influences").query("quantity == 'ap_distance'").groupby("bin")
    ):
        shares = [sum(part[name]) / len(part) for name in GROUP_COLUMNS]
        half = FACTOR * math.sqrt(sum(share**2 for share in shares))
        np.testing.assert_allclose(high[place] - low[place], 2 * half, rtol=1e-6)


def test_trends_are_rank_correlations(run):
    rng = np.random.default_rng(0)
    for values in rng.normal(size=(50, 6)):
        rho = spearmanr(range(6), values).statistic
        expected = "neither" if abs(rho) < 0.5 else "rising" if rho > 0 else "falling"
        assert trend_of(values, 0.5) == expected
    figure = run.plot("plasticity", color="trend")
    assert legend(figure)[:3] == ["rising (0)", "falling (12)", "neither (0)"]


def test_a_heatmap_has_the_mean_of_every_cell(run):
    sums = {}
    for row in run.table("bins").to_dict("records"):
        sums.setdefault((row["q_bin"], row["k_bin"]), []).append(row["plasticity"])
    for agg, of in (("mean", np.mean), ("median", np.median)):
        figure = run.plot("heatmap", agg=agg)
        grid = picture(panels(figure)[0])  # (key bins, query bins)
        for (q, k), values in sums.items():
            assert grid[k, q - 1] == pytest.approx(of(values))  # the first bin has no cell
        assert np.isfinite(grid).sum() == len(sums)
        assert bars(figure) == [f"RoPE-aligned plasticity, {agg} over heads"]
    figure = run.plot("heatmap", range="unit")
    assert figure.axes[0].images[0].get_clim() == (0.0, 1.0)
    assert figure.axes[0].get_xlim() == (-0.5, 2.5)  # no empty column
    assert figure.axes[0].get_ylim() == (-0.5, 2.5)  # keys upwards


def test_types_of_layers_have_panels_and_a_strip(tmp_path):
    run = ap.open_run(add_windows(write_run(tmp_path / "run")))
    figure = run.plot("heatmap")
    titles = [" ".join(axes.get_title().split()) for axes in panels(figure)]
    assert titles == ["sliding window 8 heads", "full attention 4 heads"]
    assert legend(run.plot("map")) == ["sliding window", "full attention"]
    assert "5 to 9 texts in a bucket" in notes(run.plot("plasticity"))
    chosen = run.plot("map", layer_type="full")
    assert notes(chosen).startswith("4 heads of layer 1")


def test_a_map_has_every_value_and_tells_the_interval_of_a_head(run):
    figure = run.plot("map")
    [values] = (picture(axes) for axes in panels(figure))
    halves = []
    for row in run.head_metrics.to_dict("records"):
        place = int(row["layer"]), int(row["q_head"])
        assert values[place] == pytest.approx(row["ap_aligned"])
        halves.append(FACTOR * row["ap_aligned_se"])
    assert f"95 % interval of a head: ± {two_digits(np.median(halves))} (median)" in notes(figure)
    for axes in panels(figure):
        assert axes.get_ylim() == (2.5, -0.5)  # layer 0 at the top
    assert bars(figure) == ["RoPE-aligned plasticity"]
    assert "interval" not in notes(run.plot("map", intervals=False))
    assert panels(run.plot("map", range="unit"))[0].images[0].get_clim() == (0.0, 1.0)


def test_a_map_of_drops_marks_and_fades_heads_by_their_tests(run):
    figure = run.plot("map", metric="drop")
    [axes] = panels(figure)
    p, excluded, faded = [], set(), set()
    for row in run.head_metrics.to_dict("records"):
        ratio = _ratio(row)
        p.append(2 * t.sf(ratio, 7))
        place = (int(row["q_head"]), int(row["layer"]))
        (excluded if ratio > FACTOR else faded).add(place)
    ordered = sorted(p)
    passed = [n for n, one in enumerate(ordered, 1) if one <= 0.05 * n / len(p)]
    largest = sorted(run.head_metrics.to_dict("records"), key=lambda row: -_ratio(row))
    marked = {(int(row["q_head"]), int(row["layer"])) for row in largest[: max(passed, default=0)]}
    assert {tuple(place) for place in points(axes, 1)} == marked
    assert marked <= excluded
    alpha = np.asarray(axes.images[0].get_alpha())  # (layers, heads)
    assert {(int(c), int(r)) for r, c in np.argwhere(alpha < 1)} == faded
    assert f"differs from 0: {len(marked)} of 12 heads" in legend(figure)
    assert f"95 % interval with 0: {len(faded)}" in legend(figure)
    low, high = axes.images[0].get_clim()
    assert low == -high
    unfaded = run.plot("map", metric="drop", fade=False)
    assert np.all(panels(unfaded)[0].images[0].get_alpha() == 1)


def _ratio(row):
    """The drop from position over its standard error."""
    return abs(row["ap_aligned_drop_position"]) / float(row["ap_aligned_drop_position_se"])


def test_key_heads_and_roles(run):
    grid = picture(panels(run.plot("key-heads"))[0])
    for row in run.table("key_heads").to_dict("records"):
        if not math.isnan(row["static_error"]):
            layers = sorted(set(run.table("key_heads")["layer"]))
            place = layers.index(row["layer"]), int(row["k_head"])
            assert grid[place] == pytest.approx(row["static_error"])
    figure = run.plot("roles")
    colours = panels(figure)[0].images[0].get_array()
    counts = {}
    for row in run.table("roles").to_dict("records"):
        found = colours[int(row["layer"]), int(row["q_head"])]
        likely = np.array(to_rgb(COLOURS[row["likely_role"]]))
        unsure = row["role"] == "unsure"
        expected = 0.6 + 0.4 * likely if unsure else likely
        np.testing.assert_allclose(found, expected)
        counts[row["role"]] = counts.get(row["role"], 0) + 1
    for words in legend(figure):
        name, _, number = words.partition(" (")
        if not name.startswith("faded"):
            assert int(number[:-1]) == counts.get(name, 0)


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [("phase", "ap_pooled", "ap_aligned"), ("attended", "ap_aligned", "ap_attended")],
)
def test_two_values_of_every_head_with_intervals(run, name, x, y):
    figure = run.plot(name)
    [axes] = panels(figure)
    found, across = points(axes), segments(axes)
    for place, row in enumerate(run.head_metrics.to_dict("records")):
        assert found[place].tolist() == pytest.approx([row[x], row[y]])
        assert np.ptp(across[place][:, 0]) == pytest.approx(2 * FACTOR * row[f"{x}_se"])
    rho = spearmanr(run.head_metrics[x], run.head_metrics[y]).statistic
    assert f"Spearman's ρ {rho:.2f}".replace("-", "−") in notes(figure)
    assert len(panels(run.plot(name, intervals=False))[0].collections) == 1


def test_the_mean_of_a_layer_has_its_interval(run):
    figure = run.plot("depth")
    [axes] = panels(figure)
    every, mean = axes.lines[:2] if len(axes.lines) == 2 else (axes.lines[0], axes.lines[-1])
    np.testing.assert_allclose(every.get_ydata(), run.head_metrics["ap_aligned"])
    ends = segments(axes)[:, :, 1]
    for layer, part in run.head_metrics.groupby("layer"):
        assert mean.get_ydata()[layer] == pytest.approx(sum(part["ap_aligned"]) / len(part))
        half = plain_mean_half(run, part, "ap_aligned")
        assert np.ptp(ends[int(layer)]) == pytest.approx(2 * half)


def test_no_line_joins_layers_that_are_not_neighbours(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    for file in copy.glob("*.csv"):
        table = pd.read_csv(file)
        table["layer"] = table["layer"] * 5 + 3
        table.to_csv(file, index=False)
    (copy / "run.json").unlink()
    [axes] = panels(ap.open_run(copy).plot("depth"))
    mean = axes.lines[-1]
    assert mean.get_marker() == "o"
    known = np.isfinite(mean.get_ydata())
    assert mean.get_xdata()[known].tolist() == [3 + 5 * layer for layer in range(known.sum())]
    assert len(known) > known.sum() > 1


def test_ranks_are_ordered_and_have_intervals(run):
    figure = run.plot("ranks", limit=2)
    [axes] = panels(figure)
    values = sorted(run.head_metrics["ap_aligned"], reverse=True)
    drawn = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
    np.testing.assert_allclose(drawn, [*values[:2], *values[-2:]])
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    best = run.head_metrics.loc[run.head_metrics["ap_aligned"].idxmax()]
    assert labels[0].startswith(f"L{best['layer']:.0f} H{best['q_head']:.0f}  rank 1")
    assert "8 heads between them left out" in notes(figure)


def test_intervals_of_ranks_count_heads_that_are_surely_different():
    rng = np.random.default_rng(1)
    number, groups = 7, 12
    values = rng.normal(size=number)
    shares = np.zeros((number, len(GROUP_COLUMNS)))
    shares[:, :groups] = rng.normal(0.0, 0.1, (number, groups))
    column = HeadColumn(
        tuple((0, head) for head in range(number)), values, shares, np.full(number, 12.0), None
    )
    found = rank_intervals(column)
    factor = t.ppf(1 - 0.025 / (number - 1), groups - 1)
    for one in range(number):
        larger = smaller = 0
        for other in range(number):
            error = math.sqrt(
                sum((a - b) ** 2 for a, b in zip(shares[one], shares[other], strict=True))
            )
            larger += values[other] - values[one] > factor * error
            smaller += values[one] - values[other] > factor * error
        assert found[one].tolist() == [1 + larger, number - smaller]
        assert found[one][0] <= 1 + (values > values[one]).sum() <= found[one][1]
    unknown = HeadColumn(column.heads, values, shares * np.nan, column.groups, None)
    assert (rank_intervals(unknown) == [1, number]).all()


def test_plasticity_by_role_has_means_with_intervals(run):
    figure = run.plot("by-role")
    roles = run.table("roles")
    sure = run.head_metrics.merge(roles[["layer", "q_head", "role"]], on=["layer", "q_head"])
    for axes, column in zip(panels(figure), ("ap_aligned", "ap_phase"), strict=True):
        labels = [tick.get_text().split("\n") for tick in panels(figure)[0].get_yticklabels()]
        diamonds = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
        for (name, number), mean in zip(labels, diamonds, strict=True):
            own = [row[column] for row in sure.to_dict("records") if row["role"] == name]
            assert mean == pytest.approx(sum(own) / len(own))
            assert number.startswith(str(len(own)))


def test_components_are_shares_of_heads(run):
    table = run.component_weights
    totals = {}
    for row in table.to_dict("records"):
        head = row["layer"], row["q_head"]
        totals[head] = totals.get(head, 0.0) + row["weight"]
    expected = [0.0] * (int(table["component"].max()) + 1)
    for row in table.to_dict("records"):
        share = row["weight"] / totals[row["layer"], row["q_head"]]
        expected[int(row["component"])] += share / len(totals)
    figure = run.plot("components")
    heights = [bar.get_height() for bar in panels(figure)[0].patches]
    np.testing.assert_allclose(heights, expected)
    largest = run.plot("components", limit=3, ylabel="mine")
    found = [bar.get_height() for bar in panels(largest)[0].patches]
    np.testing.assert_allclose(found, sorted(expected, reverse=True)[:3])
    assert panels(largest)[0].get_ylabel() == "mine"
    caption = str(caption_of(figure))
    assert "does not show where the model stores position" in caption
    assert "after RoPE" in notes(figure)


def test_the_first_tokens_stand_apart_from_the_distances(run):
    table = run.table("attention")
    figure = run.plot("attention")
    heights = [y for line in panels(figure)[0].lines for y in line.get_ydata()]
    bins = len(heights) - 1
    masses = [name for name in table if name.startswith("mass_") and not name.endswith("_se")]
    sinks = {}
    total = np.zeros(len(masses))
    tokens = {}
    for row in table.to_dict("records"):
        head = row["layer"], row["q_head"]
        tokens[head] = tokens.get(head, 0.0) + row["n_tokens"]
        sinks[head] = sinks.get(head, 0.0) + row["n_tokens"] * row["sink_mass"]
    for row in table.to_dict("records"):
        share = row["n_tokens"] / tokens[row["layer"], row["q_head"]] / len(tokens)
        total += share * np.array([row[name] for name in masses])
    assert heights[0] == pytest.approx(np.mean([sinks[head] / tokens[head] for head in sinks]))
    assert sum(heights[: bins + 1]) == pytest.approx(
        total.sum()
    )  # nothing is lost or counted twice
    assert all(
        height <= mass + 1e-9 for height, mass in zip(heights[1 : bins + 1], total, strict=False)
    )
    assert legend(figure) == ["middle 80 % of heads", "on the first 4 tokens", "mean over heads"]


def test_many_heads_are_quantiles_with_the_extreme_heads_by_name(tmp_path):
    run = ap.open_run(report_runs.write_run(tmp_path / "run", errors=True, position=True))
    figure = run.plot("plasticity")
    [axes] = panels(figure)
    rows = run.table("influences").query("quantity == 'ap_bin'")
    values = rows.pivot(index=["layer", "q_head"], columns="bin", values="value")
    ordered = values.mean(axis=1).sort_values(kind="stable").index.tolist()
    named = {text.get_text() for text in axes.texts}
    assert named == {f"L{layer} H{head}" for layer, head in (*ordered[:3], *ordered[-3:])}
    lines = [np.asarray(line.get_ydata()) for line in axes.lines]
    for head in (*ordered[:3], *ordered[-3:]):
        expected = values.loc[head].to_numpy()
        assert any(line.shape == expected.shape and np.allclose(line, expected) for line in lines)
    assert legend(figure) == ["middle 50 % of heads", "middle 90 % of heads", "mean over heads"]
    low, high = values.quantile(0.05), values.quantile(0.95)
    path = np.asarray(axes.collections[1].get_paths()[0].vertices)
    assert path[:, 1].min() == pytest.approx(low.min())
    assert path[:, 1].max() == pytest.approx(high.max())


def test_the_line_of_a_baseline_is_the_mean_of_its_draws(tmp_path):
    run = report_runs.write_run(tmp_path / "run", errors=True, position=True)
    report_runs.write_baselines(run, draws=3)
    opened = ap.open_run(run)
    figure = opened.plot("profile")
    draws = [ap.open_run(one.folder) for one in opened.baselines["random weights"]]
    means = np.array([mean_line(one) for one in draws])
    line = panels(figure)[0].lines[1]
    assert line.get_ydata() == pytest.approx(means.mean(axis=0))
    assert "(8 texts, mean of 3 draws)" in str(caption_of(figure))


def mean_line(run):
    """The mean over heads in the figure of one run alone."""
    return np.asarray(panels(run.plot("profile", baselines=False))[0].lines[0].get_ydata())
