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
from attention_plasticity.metrics import ALIGNED_FIFTHS, FIFTHS
from attention_plasticity.plots import caption_of
from attention_plasticity.tables.intervals import (
    mean_bucket_errors,
    mean_half_width,
    mean_over_heads,
)
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


@pytest.mark.parametrize(("shown", "fifths"), [("position", ALIGNED_FIFTHS), ("bucket", FIFTHS)])
def test_the_profile_has_the_means_of_the_baselines(
    run: Path, shown: str, fifths: tuple[str, ...]
) -> None:
    opened = open_run(run)
    figure = opened.plot("profile", plasticity=shown)
    for words in WORDS:
        means = [mean_over_heads(opened.baselines[words], name) for name in fifths]
        drawn = lines(figure)[words]
        np.testing.assert_allclose(np.asarray(drawn.get_ydata()), [mean.value for mean in means])
        assert drawn.get_linestyle() == "--"  # a pattern of dashes
        ends = [mean.value + sign * mean_half_width(mean) for mean in means for sign in (-1, 1)]
        np.testing.assert_allclose(reach(figure, drawn), (min(ends), max(ends)))
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} >= {*WORDS, "mean"}
    caption = caption_of(figure)
    assert caption is not None
    assert "Reference lines: dashed, the same model with random weights (8 texts)" in caption
    assert "random order (8 texts), with bands of the 95 % intervals of the mean." in caption


@pytest.mark.parametrize("shown", ["position", "bucket"])
def test_the_traces_have_the_means_of_the_baselines(run: Path, shown: str) -> None:
    opened = open_run(run)
    figure = opened.plot("plasticity", plasticity=shown, color_by_layer=True)
    quantity = "ap_bin" if shown == "position" else "ap_bucket"
    for words in WORDS:
        drawn = lines(figure)[words]
        known = mean_bucket_errors(opened.baselines[words], quantity)
        assert known is not None
        assert len(np.asarray(drawn.get_xdata())) == len(known)
        low, high = reach(figure, drawn)
        values = np.asarray(drawn.get_ydata(), np.float64)
        half = known["half_width"].to_numpy()  # (bins,)
        np.testing.assert_allclose((low, high), ((values - half).min(), (values + half).max()))


def test_layers_are_chosen_in_the_baselines_too(run: Path) -> None:
    opened = open_run(run)
    figure = opened.plot("profile", layers="3")
    expected = opened.select(layers="3").baselines["random weights"]
    value = np.asarray(lines(figure)["random weights"].get_ydata())[0]
    assert value == pytest.approx(mean_over_heads(expected, ALIGNED_FIFTHS[0]).value)
    assert len(expected.head_metrics) == 6


def test_they_can_be_left_out(run: Path) -> None:
    for kind in ("profile", "plasticity"):
        figure = open_run(run).plot(kind, baselines=False)
        assert not set(WORDS) & set(lines(figure))
        assert "Reference" not in str(caption_of(figure))


@pytest.mark.parametrize(
    "changes",
    [
        {"bin_size": 128},
        {"config": {"query_model": "positional", "layers": [0]}},
        {"config": {"query_model": "positional", "layers": None, "pair_sampling": "context"}},
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
