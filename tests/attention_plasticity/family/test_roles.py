"""Roles per model, against a count of the rows of the CSV files."""

from __future__ import annotations

import csv
import math
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from attention_plasticity.comparison.runs import ComparedRun, labelled
from attention_plasticity.family.matched import Pair
from attention_plasticity.family.roles import role_changes, role_counts, role_scores
from attention_plasticity.family.roles_figure import roles_figure
from attention_plasticity.plots.captions import caption_of
from attention_plasticity.tables.finished_run import FinishedRun
from family_models import small_models
from qk_toolkit.errors import ConfigError
from role_runs import add_roles


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ComparedRun]:
    """Two models with roles, and one without."""
    folder = tmp_path_factory.mktemp("roles")
    names = [run.label for run in small_models(folder, 3)]
    for name in names[:2]:
        add_roles(folder / name)
    return labelled([FinishedRun.open(folder / name) for name in names], names)


def test_counts_are_those_of_the_file(runs: list[ComparedRun]) -> None:
    table = role_counts(runs)
    assert set(table["run"]) == {"m0", "m1"}
    with (runs[0].run.folder / "head_roles.csv").open() as file:
        rows = list(csv.DictReader(file))
    counted, likely = (Counter(row[name] for row in rows) for name in ("role", "likely_role"))
    own = table[table["run"] == "m0"].set_index("role")
    for role in own.index:
        assert own.loc[role, "sure_heads"] == counted[role]
        assert own.loc[role, "likely_heads"] == likely[role]
        assert own.loc[role, "likely_share"] == pytest.approx(likely[role] / len(rows))
    assert counted["unsure"] == 1
    # The rows of the helper have scores below all thresholds, except that of one unsure head.
    assert own.loc["previous", "possible_heads"] == 1
    assert own.loc["mixed", "possible_heads"] == 29
    assert own["likely_heads"].sum() == own["all_heads"].iloc[0] == 29
    assert own["sure_heads"].sum() == 28


@pytest.mark.parametrize("width", [3.3, 7.0])
def test_bars_end_at_all_heads(runs: list[ComparedRun], width: float) -> None:
    figure = roles_figure(role_counts(runs), runs, width=width)
    axes = figure.axes[0]
    ends: dict[float, float] = {}
    for bar in axes.patches:
        x, y = bar.get_xy()  # type: ignore[attr-defined]
        ends[y] = max(ends.get(y, 0.0), x + bar.get_width())  # type: ignore[attr-defined]
    assert list(ends.values()) == pytest.approx([100.0, 100.0])
    assert axes.get_xlabel() == "share of heads (%)"
    caption = caption_of(figure)
    assert caption is not None
    assert "No table of roles: m2." in caption


def test_without_roles_there_is_no_figure(runs: list[ComparedRun]) -> None:
    with pytest.raises(ConfigError, match="nothing to draw"):
        roles_figure(role_counts(runs[2:]), runs[2:])


def test_scores_are_means_of_the_rows(runs: list[ComparedRun]) -> None:
    """The helper writes no influences of these scores, so there are no intervals."""
    table = role_scores(runs, [Pair(runs[1], runs[0])])
    assert set(table["layer_type"]) == {"all", "full_attention", "sliding_attention"}
    windows = table[(table["layer_type"] == "sliding_attention") & (table["minus"] == "")]
    assert set(windows["heads"]) == {6}  # of layer 1
    table = table[table["layer_type"] == "all"].set_index(["run", "minus", "score"])
    with (runs[0].run.folder / "head_roles.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in ("previous_mass", "sink_rate", "induction_excess"):
        plain = sum(float(row[name]) for row in rows) / len(rows)
        assert table.loc[("m0", "", name), "mean"] == pytest.approx(plain)
        assert math.isnan(table.loc[("m0", "", name), "low"])
        assert table.loc[("m1", "m0", name), "mean"] == pytest.approx(0.0)


def test_changes_are_counted_from_the_rows(runs: list[ComparedRun], tmp_path: Path) -> None:
    folder = tmp_path / "later"
    folder.mkdir()
    for path in runs[1].run.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    rows = pd.read_csv(folder / "head_roles.csv")
    changed = rows["likely_role"] == "far"
    rows.loc[changed, ["role", "likely_role"]] = "sink"
    rows.to_csv(folder / "head_roles.csv", index=False)
    [later] = labelled([FinishedRun.open(folder)], ["later"])
    table = role_changes([Pair(later, runs[0])])
    found = {(row["role_before"], row["role_after"]): row for row in table.to_dict("records")}
    assert found["far", "sink"]["heads"] == found["far", "sink"]["sure_in_both"] == changed.sum()
    assert ("far", "far") not in found
    previous = found["previous", "previous"]
    assert previous["sure_before"] == previous["sure_after"] == previous["sure_in_both"]
    assert previous["heads"] == previous["sure_in_both"] + 1  # one head is unsure in both
    assert table["heads"].sum() == 29
    assert role_changes([Pair(runs[2], runs[0])]).empty
