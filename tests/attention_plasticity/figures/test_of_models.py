"""Figures of several runs draw the numbers of their tables, at the widths of a paper."""

import numpy as np
import pytest

from attention_plasticity.compare.matched import matched_heads
from attention_plasticity.compare.runs import family_pairs
from attention_plasticity.compare.several import SeveralRuns
from attention_plasticity.compare.summary import summary
from attention_plasticity.figures.captions import caption_of, short_names
from attention_plasticity.figures.draw import draw_of_runs
from attention_plasticity.figures.registry import left_out
from attention_plasticity.figures.style import TEXT
from helpers.added_tables import add_roles
from helpers.drawn_runs import points
from helpers.plain_runs import opened, small_models
from qk_toolkit.errors import ConfigError

METRICS = ["ap_aligned", "ap_aligned_drop"]
LONG = "a-very-long-name-of-a-model-with-many-parts-and-a-$-of-the-7B-instruct-kind"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three checkpoints of a family, two of them on the same texts; the third has no roles."""
    found = small_models(tmp_path_factory.mktemp("figures"), 3, "aab")
    for one in found[:2]:
        add_roles(one.run.folder, bands=True)
    labels, numbers = ("base", LONG, "other"), (100.0, 1000.0, 20000.0)
    return [
        opened(one.run.folder, label, family="A", checkpoint=number)
        for one, label, number in zip(found, labels, numbers, strict=True)
    ]


def several(runs, metrics=()):
    return SeveralRuns(tuple(runs), tuple(metrics))


def means_of(table, run, metric):
    chosen = (table["run"] == run) & (table["metric"] == metric) & (table["minus"] == "")
    return table[chosen]["mean"].tolist()


def test_profiles_are_lines_over_positions(runs):
    figure = draw_of_runs("profiles", several(runs))
    table = summary(runs, "bin")
    assert figure.get_figwidth() == TEXT
    for line, one in zip(figure.axes[0].lines, runs, strict=False):
        np.testing.assert_allclose(line.get_ydata(), means_of(table, one.label, "ap_aligned"))
    assert len(figure.axes[0].collections) == 3  # bands
    assert len(figure.legends[0].get_texts()) == 3


def test_lengths_have_a_panel_per_metric(runs):
    figure = draw_of_runs("lengths", several(runs))
    labels = [axes.get_ylabel().replace("\n", " ") for axes in figure.axes]
    drops = ["drop", "drop of rotary phase"]
    levels = ["RoPE-aligned plasticity", "RoPE-aligned plasticity, near keys", "rotary phase"]
    assert labels == [*levels, drops[0], "drop, near keys", drops[1]]
    ticks = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert ticks == ["0–128", "128–256", "256–512", "512–1K"]
    caption = caption_of(figure) or ""
    assert "A drop is the value at 0–128 minus the value at a later part." in caption


def test_depth_has_errors(runs):
    table = summary(runs, "depth", METRICS, [])
    figure = draw_of_runs("depth", several(runs, METRICS))
    for axes, metric in zip(figure.axes, METRICS, strict=True):
        assert len(axes.collections) == 3
        lines = [line for line in axes.lines if len(line.get_xdata()) == 10]
        np.testing.assert_allclose(lines[0].get_ydata(), means_of(table, "base", metric))
        np.testing.assert_allclose(lines[0].get_xdata(), np.arange(5, 100, 10))


def test_bars_of_roles_end_at_all_heads(runs):
    figure = draw_of_runs("role-shares", several(runs))
    ends = {}
    for bar in figure.axes[0].patches:
        x, y = bar.get_xy()
        ends[y] = max(ends.get(y, 0.0), x + bar.get_width())
    assert list(ends.values()) == pytest.approx([100.0, 100.0])
    assert "No table of roles: other." in (caption_of(figure) or "")


def test_bands_have_a_panel_of_differences(runs):
    figure = draw_of_runs("band-shares", several(runs[:2]))
    assert len(figure.axes) == 2
    assert "difference of the same heads from base" in (caption_of(figure) or "")
    assert len(draw_of_runs("band-shares", several(runs[:1])).axes) == 1


def test_only_heads_that_changed_are_coloured(runs):
    pairs = family_pairs(runs)
    table = matched_heads(pairs, METRICS[:1])
    figure = draw_of_runs("matched-heads", several(runs, METRICS[:1]))
    for axes, pair in zip(figure.axes, pairs, strict=False):
        low, high = axes.get_ylim()
        assert low > high  # layer 0 is at the top
        [image] = axes.images
        values = np.ma.filled(image.get_array(), np.nan)  # (layers, heads)
        own = table[table["run"] == pair.run.label].set_index(["layer", "q_head"])["changed"]
        for layer in range(5):
            for head in range(6):
                changed = (layer, head) in own.index and own.loc[(layer, head)]
                assert bool(np.isfinite(values[layer, head])) == changed
                missing = (layer, head) not in own.index
                assert ([head, layer] in points(axes).tolist()) == missing
    caption = caption_of(figure) or ""
    assert f"compared text by text: {LONG} minus base." in caption
    assert "independent samples: other minus base." in caption


def test_runs_say_what_their_figures_need(runs):
    assert left_out(several(runs, METRICS)) == {}
    assert left_out(several(runs[2:])) == {
        "profiles": "two models",
        "role-shares": "a dump with attention columns: capture.attention",
        "band-shares": "the rotary embedding in a dump",
        "matched-heads": "two models of one family and architecture",
    }
    with pytest.raises(ConfigError, match="matched-heads: cannot be drawn; it needs two models"):
        draw_of_runs("matched-heads", several(runs[:1]))


def test_short_names_stay_different():
    names = [f"{LONG}-{number}" for number in range(3)]
    middle = [f"{'x' * 30}{letter}{'y' * 30}" for letter in "abc"]
    for long in (names, middle):
        short = short_names(long, 20)
        assert len(set(short)) == 3
        assert all(len(name) <= 20 for name in short)
