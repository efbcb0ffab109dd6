"""Metrics over checkpoints, and the phases of the training."""

from __future__ import annotations

import pandas as pd
import pytest

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.family.checkpoints import (
    Checkpoint,
    PhaseBlock,
    checkpoint_table,
    training_phases,
)
from attention_plasticity.family.checkpoints_figure import checkpoints_figure
from attention_plasticity.plots.captions import caption_of
from family_models import small_models

PHASES = ("pretraining", "pretraining", "annealing", "long context")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ComparedRun]:
    return small_models(tmp_path_factory.mktemp("checkpoints"), 4)


def trained(
    runs: list[ComparedRun], numbers: list[float], phases: tuple[str, ...] = PHASES
) -> list[Checkpoint]:
    families = ["b", "a", "b", "a"]
    return [Checkpoint(*one) for one in zip(runs, families, numbers, phases, strict=True)]


def test_values_are_means_over_heads_in_the_order_of_training(runs: list[ComparedRun]) -> None:
    table = checkpoint_table(trained(runs, [300, 100, 20, 400]), ["ap_aligned", "ap_phase"])
    assert table["run"].tolist() == ["m2", "m0", "m1", "m3"] * 2
    assert table["checkpoint"].tolist() == [20, 300, 100, 400] * 2
    for run in runs:
        heads = pd.read_csv(run.run.folder / "head_metrics.csv")
        value = sum(heads["ap_phase"]) / len(heads)
        row = table[(table["run"] == run.label) & (table["metric"] == "ap_phase")].iloc[0]
        assert row["mean"] == pytest.approx(value, abs=1e-12)
        assert row["low"] < value < row["high"]


def test_phases_are_blocks_of_checkpoints(runs: list[ComparedRun]) -> None:
    assert training_phases(trained(runs, [100, 200, 300, 400])) == [
        PhaseBlock("pretraining", 100, 200),
        PhaseBlock("annealing", 300, 300),
        PhaseBlock("long context", 400, 400),
    ]
    assert training_phases(trained(runs, [100, 350, 300, 400])) == []  # among each other
    assert training_phases(trained(runs, [100, 300, 300, 400])) == []  # at the same number
    assert training_phases(trained(runs, [1, 2, 3, 4], ("", "", "", ""))) == []
    partly = training_phases(trained(runs, [1, 2, 3, 4], ("", "x", "", "x")))
    assert partly == [PhaseBlock("x", 2, 4)]


@pytest.mark.parametrize("width", [3.3, 7.0])
def test_the_figure_shades_and_names_the_phases(runs: list[ComparedRun], width: float) -> None:
    checkpoints = trained(runs, [100, 200, 300, 400])
    figure = checkpoints_figure(
        checkpoint_table(checkpoints, ["ap_aligned", "ap_phase"]), checkpoints, width=width
    )
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["b", "a", "pretraining", "annealing", "long context"]
    inverse = figure.axes[0].transData.inverted()
    patches = figure.axes[0].patches
    spans = [patch.get_extents().transformed(inverse) for patch in patches]
    assert [round(span.x0) for span in spans] == [100, 250, 350]
    assert [round(span.x1) for span in spans] == [250, 350, 400]
    caption = caption_of(figure)
    assert caption is not None
    assert "pretraining (100 to 200)" in caption


def test_phases_that_overlap_are_not_shaded(runs: list[ComparedRun]) -> None:
    checkpoints = trained(runs, [1, 3500, 3000, 4000])
    figure = checkpoints_figure(checkpoint_table(checkpoints, ["ap_aligned"]), checkpoints)
    assert not figure.axes[0].patches
    assert figure.axes[0].get_xscale() == "log"
    assert "phases of the training overlap" in figure.get_supxlabel()
