"""The figure of scores without a query."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from attention_plasticity.cli import main
from attention_plasticity.plots import caption_of, fidelity_figure
from attention_plasticity.plots.drawing import plot_run
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.names import FIDELITY_CAUTION
from fidelity_runs import KINDS, MEAN_ERROR, QUANTITIES, add_fidelity
from qk_toolkit.errors import ConfigError, ToolkitError
from report_runs import write_run

CHANCE = {"spearman": 0.0, "kept_50": 0.5, "kept_25": 0.25, "kept_10": 0.1}


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    return FinishedRun.open(add_fidelity(write_run(tmp_path / "run")))


def points(figure: Figure, panel: int) -> list[np.ndarray]:
    """(heads, 2) value and place of the points of every score of a panel."""
    found = figure.axes[panel].collections
    return [np.asarray(one.get_offsets()) for one in found if len(one.get_offsets()) > 1]


def test_every_key_head_has_a_point_in_every_panel(run: FinishedRun) -> None:
    figure = plot_run(run, "fidelity", {})
    table = run.table("fidelity")
    for panel, name in enumerate(QUANTITIES):
        kinds = [kind for kind in KINDS if name != "spearman" or kind[0] != "best_per_query"]
        drawn = points(figure, panel)
        assert len(drawn) == len(kinds)
        for (score, kind), own in zip(kinds, drawn, strict=True):
            rows = table[(table["score"] == score) & (table["value_norm"] == kind)]
            assert own[:, 0].tolist() == rows[name].tolist()
        lines = [line.get_xdata() for line in figure.axes[panel].lines]
        assert any(list(x) == [CHANCE[name]] * 2 for x in lines)
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(rows) == len({score for score, _ in KINDS})
    assert rows[3] == "Expected Attention"


def test_scores_with_the_value_are_beside_those_without(run: FinishedRun) -> None:
    drawn = dict(zip(KINDS, points(plot_run(run, "fidelity", {}), 1), strict=True))
    above, below = drawn["gaussian", 0][:, 1], drawn["gaussian", 1][:, 1]
    assert 1.5 < above.max() < below.min() < 2.5  # the third row


def test_means_have_intervals_over_texts(run: FinishedRun) -> None:
    figure = plot_run(run, "fidelity", {})
    means = run.fidelity_means
    half = float(half_width(MEAN_ERROR, 12))
    bars = [bar.get_segments()[0] for bar in figure.axes[2].containers for bar in bar[2]]
    assert len(bars) == len(KINDS)
    for kind, bar in zip(KINDS, bars, strict=True):
        middle = means[kind]["kept_25"].value
        assert bar[:, 0] == pytest.approx([middle - half, middle + half])
    caption = caption_of(figure) or ""
    assert "12 groups of texts" in caption
    assert "key heads of" in caption
    table = run.table("fidelity")
    assert "12 groups of texts" not in (caption_of(fidelity_figure(table)) or "")


def test_selected_layers_have_means_without_intervals(run: FinishedRun) -> None:
    part = run.select(layers=[1])
    table = part.table("fidelity")
    assert set(table["layer"]) == {1}
    own = table[(table["score"] == "q_filter") & (table["value_norm"] == 0)]
    mean = part.fidelity_means["q_filter", 0]["kept_10"]
    assert mean.value == pytest.approx(own["kept_10"].mean())
    assert np.isnan(mean.standard_error)
    assert "layer 1" in (caption_of(plot_run(part, "fidelity", {})) or "")


def test_a_run_or_its_table_alone(run: FinishedRun, tmp_path: Path) -> None:
    for number, words in enumerate(
        (
            [str(run.folder)],
            [str(run.folder), "--layers", "1"],
            ["--fidelity_csv", str(run.folder / "head_fidelity.csv")],
        )
    ):
        out = tmp_path / f"{number}.png"
        assert main(["plot", "fidelity", *words, "--output", str(out)]) == 0
        assert out.stat().st_size > 1000


def test_means_of_a_folder_without_run_json_have_no_errors(run: FinishedRun) -> None:
    (run.folder / "run.json").unlink()
    mean = FinishedRun.open(run.folder).fidelity_means["q_filter", 0]["kept_10"]
    assert mean.value == pytest.approx(run.fidelity_means["q_filter", 0]["kept_10"].value)
    assert np.isnan(mean.standard_error)


def test_the_caption_says_that_a_good_ranking_can_evict_badly(run: FinishedRun) -> None:
    assert FIDELITY_CAUTION in (caption_of(plot_run(run, "fidelity", {})) or "")


def test_what_cannot_be_drawn_is_refused(run: FinishedRun, tmp_path: Path) -> None:
    without = FinishedRun.open(write_run(tmp_path / "without"))
    assert not without.has("fidelity")
    assert without.fidelity_means == {}
    with pytest.raises(ConfigError, match=r"has no table of fidelity; run .* with --fidelity"):
        plot_run(without, "fidelity", {})
    table = run.table("fidelity")
    path, facts = run.path("fidelity"), run.folder / "run.json"
    written = facts.read_text()
    facts.write_text(written.replace('"spearman": {"value"', '"spearman": {"number"'))
    with pytest.raises(ConfigError, match="edited or damaged; run the analysis again"):
        FinishedRun.open(run.folder)
    facts.write_text(written)
    path.write_text(path.read_text() + " ")
    with pytest.raises(ToolkitError, match="was changed after the run; run the analysis again"):
        plot_run(FinishedRun.open(run.folder), "fidelity", {})
    with pytest.raises(ConfigError, match="has no column 'kept_25'"):
        fidelity_figure(table.drop(columns="kept_25"))
    with pytest.raises(ConfigError, match="no values of known scores"):
        fidelity_figure(table.assign(score="other"))
