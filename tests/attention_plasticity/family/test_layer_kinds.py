"""Means over layers of one kind and their difference, against plain sums over the CSV files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from attention_plasticity.comparison.runs import ComparedRun, labelled
from attention_plasticity.family.layer_kinds import (
    BY_ATTENTION,
    BY_ROPE,
    has_two_kinds,
    kind_table,
    kinds_of_layers,
)
from attention_plasticity.family.layer_kinds_figure import layer_kinds_figure
from attention_plasticity.plots.captions import caption_of
from attention_plasticity.tables.finished_run import FinishedRun
from family_models import small_models

WITHOUT_ROPE = {1, 3}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ComparedRun]:
    """The first model has layers without RoPE, the second does not record it."""
    folder = tmp_path_factory.mktemp("kinds")
    small_models(folder, 2)
    info = json.loads((folder / "m0" / "run.json").read_text())
    entries = [{"layer": layer, "rope": layer not in WITHOUT_ROPE} for layer in range(5)]
    info["input"]["dump"]["layers"] = entries
    (folder / "m0" / "run.json").write_text(json.dumps(info))
    return labelled([FinishedRun.open(folder / name) for name in ("m0", "m1")], ["m0", "m1"])


def plain(folder: Path, layers: set[int], metric: str) -> tuple[float, list[float]]:
    heads = pd.read_csv(folder / "head_metrics.csv")
    own = heads[heads["layer"].isin(layers)]
    rows = pd.read_csv(folder / "head_influences.csv")
    rows = rows[(rows["quantity"] == metric) & rows["layer"].isin(layers)]
    value = sum(own[metric]) / len(own)
    return value, [sum(rows[f"group_{group:02d}"]) / len(own) for group in range(16)]


@pytest.mark.parametrize(
    ("divided", "one", "other", "layers"),
    [
        (BY_ATTENTION, "full attention", "sliding window", {0, 2, 3, 4}),
        (BY_ROPE, "NoPE", "RoPE", WITHOUT_ROPE),
    ],
)
def test_means_and_differences_are_those_of_plain_sums(
    runs: list[ComparedRun], divided: str, one: str, other: str, layers: set[int]
) -> None:
    table = kind_table(runs, ["ap_aligned", "ap_phase"])
    chosen = (table["run"] == "m0") & (table["divided"] == divided)
    rows = table[chosen & (table["metric"] == "ap_phase")].set_index("kind")
    first, shares = plain(runs[0].run.folder, layers, "ap_phase")
    second, others = plain(runs[0].run.folder, set(range(5)) - layers, "ap_phase")
    assert rows.loc[one, "mean"] == pytest.approx(first, abs=1e-12)
    assert rows.loc[other, "mean"] == pytest.approx(second, abs=1e-12)
    error = math.sqrt(sum(share * share for share in shares))
    assert rows.loc[one, "standard_error"] == pytest.approx(error, abs=1e-12)
    difference = rows.loc[f"{one} minus {other}"]
    assert difference["mean"] == pytest.approx(first - second, abs=1e-12)
    error = math.sqrt(sum((a - b) ** 2 for a, b in zip(shares, others, strict=True)))
    assert difference["standard_error"] == pytest.approx(error, abs=1e-12)
    assert difference["heads"] == 29


def test_a_model_that_does_not_record_rope_has_no_rows(runs: list[ComparedRun]) -> None:
    table = kind_table(runs, ["ap_aligned"])
    assert set(table[table["divided"] == BY_ROPE]["run"]) == {"m0"}
    assert kinds_of_layers(runs[1].run, BY_ROPE) == {}
    assert has_two_kinds(table, BY_ROPE)
    assert not has_two_kinds(kind_table(runs[1:], ["ap_aligned"]), BY_ROPE)


@pytest.mark.parametrize("width", [3.3, 7.0])
def test_the_figure_has_a_row_per_model(runs: list[ComparedRun], width: float) -> None:
    table = kind_table(runs, ["ap_aligned", "ap_phase"])
    figure = layer_kinds_figure(table, runs, BY_ATTENTION, width=width)
    assert [axes.get_xlabel().replace("\n", " ") for axes in figure.axes] == [
        "plasticity at one position",
        "rotary phase",
    ]
    ticks = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert ticks == ["m0", "m1"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["full attention", "sliding window"]
    caption = caption_of(figure)
    assert caption is not None
    assert "2 models:" in caption
