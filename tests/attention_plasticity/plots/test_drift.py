"""The figure of drift: queries against keys, one point per head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from scipy.stats import t

from attention_plasticity.cli import main
from attention_plasticity.plots import caption_of, drift_figure
from attention_plasticity.plots.drawing import plot_run
from attention_plasticity.tables.finished_run import FinishedRun
from drift_runs import add_drift
from qk_toolkit.errors import ConfigError
from run_tables import write_run

FRAMES = {"before RoPE": "_unrotated", "after RoPE": ""}


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    return FinishedRun.open(add_drift(write_run(tmp_path / "run")))


def note(figure: Figure) -> str:
    return str(figure.get_supxlabel())


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def test_points_are_the_drift_of_queries_and_keys_with_intervals(run: FinishedRun) -> None:
    figure = plot_run(run, "drift", {})
    assert titles(figure) == list(FRAMES)
    for axes, ending in zip(figure.axes, FRAMES.values(), strict=False):
        names = [f"q_drift_r{ending}", f"k_drift_r{ending}"]
        (points,) = [one for one in axes.collections if isinstance(one, PathCollection)]
        np.testing.assert_allclose(points.get_offsets(), run.table("drift")[names])
        np.testing.assert_allclose(points.get_array(), run.table("drift")["layer"])
        lines = [one for one in axes.collections if isinstance(one, LineCollection)]
        widths = np.ptp(np.array(lines[1].get_segments())[:, :, 1], axis=1)
        np.testing.assert_allclose(widths, 2 * t.ppf(0.975, 11) * 0.004)
        low, high = axes.get_xlim()
        assert low < 0 < run.table("drift")[names].max(axis=None) < high
    assert note(figure).startswith("12 heads")
    assert "lines: 95 % intervals over texts" in note(figure)
    caption = caption_of(figure) or ""
    assert "before RoPE and after RoPE, one point per head, coloured by layer" in caption
    assert "(12 groups of texts, Student's t)" in caption
    figure.draw_without_rendering()


def test_a_frame_that_is_not_known_has_no_panel(run: FinishedRun) -> None:
    table = run.table("drift").assign(q_drift_r_unrotated=np.nan)
    figure = drift_figure(table)
    assert titles(figure) == ["after RoPE"]
    table.loc[3, "k_drift_r"] = np.nan
    assert note(drift_figure(table)).startswith("11 of 12 heads")
    bare = drift_figure(table.drop(columns=[name for name in table if name.endswith("_se")]))
    assert "95 %" not in note(bare)
    with pytest.raises(ConfigError, match="no head has both values"):
        drift_figure(table.assign(q_drift_r=np.nan))


def test_drift_needs_its_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no table of drift; it needs the texts"):
        plot_run(FinishedRun.open(write_run(tmp_path / "without")), "drift", {})


def test_a_table_without_its_run(run: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "drift.png"
    table = run.path("drift")
    assert main(["plot", "drift", "--drift_csv", str(table), "--output", str(out)]) == 0
    assert out.stat().st_size > 1000
