"""Roles per model, against a count of the rows of the CSV files."""

from __future__ import annotations

import csv
from collections import Counter

import pytest

from attention_plasticity.comparison.runs import ComparedRun, labelled
from attention_plasticity.family.roles import role_counts
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
        assert own.loc[role, "heads"] == counted[role]
        assert own.loc[role, "likely_heads"] == likely[role]
        assert own.loc[role, "share"] == pytest.approx(counted[role] / len(rows))
    assert counted["unsure"] == 1
    assert own["heads"].sum() == own["all_heads"].iloc[0] == 29


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
