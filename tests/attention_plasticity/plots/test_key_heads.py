"""The map of key heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attention_plasticity.cli import main
from attention_plasticity.plots import caption_of, key_heads_figure
from attention_plasticity.plots.drawing import plot_run
from attention_plasticity.tables.finished_run import FinishedRun
from key_head_runs import add_key_heads
from qk_toolkit.errors import ConfigError
from report_runs import write_run


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    return FinishedRun.open(add_key_heads(write_run(tmp_path / "run")))


def test_every_key_head_has_its_value(run: FinishedRun) -> None:
    figure = plot_run(run, "key_heads", {})
    picture = np.asarray(figure.axes[0].images[0].get_array())  # (layers, key heads)
    table = run.table("key_heads")
    for layer, head, value in table[["layer", "k_head", "static_error"]].to_numpy().tolist():
        assert picture[int(layer), int(head)] == value
    assert figure.axes[0].images[0].get_clim() == (0.0, 0.5)
    assert figure.axes[0].get_xlabel() == "key head"
    caption = caption_of(figure) or ""
    assert "Static error of every key head" in caption
    assert f"{len(table)} key heads of" in caption
    assert "12 groups of texts" in caption


def test_other_columns_layers_and_ranges(run: FinishedRun) -> None:
    far = plot_run(run, "key_heads", {"metric": "far_mass", "layers": "0-1"})
    assert far.axes[0].images[0].get_clim() == (0.0, 1.0)
    assert np.asarray(far.axes[0].images[0].get_array()).shape[0] == 2
    pairs = plot_run(run, "key_heads", {"metric": "n_pairs", "vmin": 0.0})
    assert pairs.axes[0].images[0].get_clim() == (0.0, 2001.0)
    table = run.table("key_heads")
    table.loc[0, "static_error"] = np.nan
    figure = key_heads_figure(table)
    assert "1 without a value: dots" in figure._supxlabel.get_text()  # type: ignore[attr-defined]


def test_what_cannot_be_drawn_is_refused(run: FinishedRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds words"):
        plot_run(run, "key_heads", {"metric": "layer_type"})
    with pytest.raises(ConfigError, match="has no column 'static'"):
        plot_run(run, "key_heads", {"metric": "static"})
    with pytest.raises(ConfigError, match="vmin"):
        plot_run(run, "key_heads", {"vmin": 0.7})
    without = FinishedRun.open(write_run(tmp_path / "without"))
    with pytest.raises(ConfigError, match="has no table of key heads"):
        plot_run(without, "key_heads", {})


def test_a_table_without_its_run(run: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "map.png"
    table = run.path("key_heads")
    assert main(["plot", "key_heads", "--key_head_csv", str(table), "--output", str(out)]) == 0
    assert out.stat().st_size > 1000
