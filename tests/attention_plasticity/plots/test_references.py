"""Baselines as reference lines in figures over the context."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attention_plasticity import open_run
from attention_plasticity.plots import caption_of
from attention_plasticity.tables.intervals import mean_bucket_errors
from attention_plasticity.tables.profiles import head_profiles
from qk_toolkit.errors import ConfigError
from report_runs import write_baselines, write_run

WORDS = ("random weights", "shuffled tokens")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "run", position=True)
    write_baselines(folder)
    return folder


def lines(figure: Figure) -> dict[str, Line2D]:
    return {str(line.get_label()): line for line in figure.axes[0].lines}


def reach(figure: Figure, line: Line2D) -> tuple[float, float]:
    """The lowest and the highest value of the band in the colour of a line."""
    colour = to_hex(line.get_color())
    bands = [part for part in figure.axes[0].collections if isinstance(part, PolyCollection)]
    (band,) = [part for part in bands if to_hex(part.get_facecolor()[0]) == colour]  # type: ignore[index]
    y = np.concatenate([path.vertices[:, 1] for path in band.get_paths()])  # type: ignore[index]
    return float(y.min()), float(y.max())


@pytest.mark.parametrize(("kind", "mean"), [("profile", "mean"), ("plasticity", "mean over heads")])
def test_figures_have_the_means_of_the_baselines(run: Path, kind: str, mean: str) -> None:
    opened = open_run(run)
    figure = opened.plot(kind)
    for words in WORDS:
        known = mean_bucket_errors(opened.baselines[words])
        assert known is not None
        drawn = lines(figure)[words]
        np.testing.assert_allclose(np.asarray(drawn.get_ydata()), known["plasticity"])
        assert drawn.get_linestyle() == "--"  # a pattern of dashes
        low, high = (
            known["plasticity"] - known["half_width"],
            known["plasticity"] + known["half_width"],
        )
        np.testing.assert_allclose(reach(figure, drawn), (low.min(), high.max()))
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} >= {*WORDS, mean}
    caption = caption_of(figure)
    assert caption is not None
    assert "Reference lines: dashed, the same model with random weights (8 texts)" in caption
    assert "random order (8 texts), with bands of the 95 % intervals of the mean." in caption


@pytest.mark.parametrize("kind", ["profile", "plasticity"])
def test_baselines_over_buckets_have_no_bands(run: Path, kind: str) -> None:
    opened = open_run(run)
    figure = opened.plot(kind, plasticity="bucket")
    for words in WORDS:
        profiles = head_profiles(opened.baselines[words].bucket_plasticity)
        expected = profiles.groupby("q_bucket")["plasticity"].mean()
        drawn = lines(figure)[words]
        np.testing.assert_allclose(np.asarray(drawn.get_ydata()), expected)
        with pytest.raises(ValueError, match="not enough values"):
            reach(figure, drawn)
    assert "random order (8 texts)." in str(caption_of(figure))


def test_layers_are_chosen_in_the_baselines_too(run: Path) -> None:
    opened = open_run(run)
    figure = opened.plot("profile", layers="3")
    chosen = opened.select(layers="3").baselines["random weights"]
    expected = mean_bucket_errors(chosen)
    assert expected is not None
    drawn = np.asarray(lines(figure)["random weights"].get_ydata())
    np.testing.assert_allclose(drawn, expected["plasticity"])
    assert len(chosen.head_metrics) == 6


def test_they_can_be_left_out(run: Path) -> None:
    for kind in ("profile", "plasticity"):
        figure = open_run(run).plot(kind, baselines=False)
        assert not set(WORDS) & set(lines(figure))
        assert "Reference" not in str(caption_of(figure))


@pytest.mark.parametrize(
    "changes",
    [
        {"bin_size": 128},
        {"not_analysed": [[0, 0]]},
        {"config": {"query_model": "positional", "pair_sampling": "context"}},
    ],
)
def test_baselines_of_other_settings_are_not_drawn(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    run = write_run(tmp_path / "run", position=True)
    write_baselines(run, **changes)
    assert open_run(run).baselines == {}
    assert "Reference" not in str(caption_of(open_run(run).plot("profile")))


def test_baselines_of_another_capture_are_not_drawn(run: Path) -> None:
    info = json.loads((run / "run.json").read_text())
    info["input"]["dump"]["capture"] = {"model": {"name": "another"}}
    (run / "run.json").write_text(json.dumps(info))
    assert open_run(run).baselines == {}


def test_a_baseline_that_is_not_finished_is_left_out(run: Path) -> None:
    (run / "baseline" / "shuffled" / "run.json").unlink()
    assert list(open_run(run).baselines) == ["random weights"]
    figure = open_run(run).plot("profile")
    assert "random weights" in lines(figure)
    assert "shuffled tokens" not in lines(figure)


@pytest.mark.parametrize("file", ["baseline.json", "random/run.json"])
def test_a_damaged_file_is_named(run: Path, file: str) -> None:
    (run / "baseline" / file).write_text("[")
    with pytest.raises(ConfigError, match="was edited or damaged; remove the folder"):
        open_run(run).plot("profile")
