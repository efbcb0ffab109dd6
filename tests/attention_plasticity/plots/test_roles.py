"""The figures of roles: a map, and plasticity by role."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from attention_plasticity.metrics import ALIGNED, PHASE
from attention_plasticity.plots import by_role_figure, caption_of, roles_figure
from attention_plasticity.plots.by_role import spread
from attention_plasticity.plots.drawing import plot_run
from attention_plasticity.plots.roles import FADED
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_roles import COLOURS
from qk_toolkit.errors import ConfigError
from report_runs import MISSING, TEXT_GROUPS, write_run
from role_runs import ROLE_OF_LAYER, UNSURE_HEAD, add_roles

T_11 = 2.200985  # of a table of Student's t: 97.5 %, 11 degrees of freedom


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    folder = tmp_path_factory.mktemp("roles")
    return FinishedRun.open(add_roles(write_run(folder / "run", position=True)))


def legend(figure: object) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]  # type: ignore[attr-defined]


def note(figure: object) -> str:
    return figure._supxlabel.get_text()  # type: ignore[attr-defined]


def test_a_head_has_the_colour_of_its_role_and_unsure_heads_are_faded(run: FinishedRun) -> None:
    figure = plot_run(run, "roles", {})
    picture = np.asarray(figure.axes[0].images[0].get_array())  # (layers, heads, rgb)
    for layer, name in ROLE_OF_LAYER.items():
        for head in range(6):
            colour = np.array(to_rgb(COLOURS[name]))
            if (layer, head) == UNSURE_HEAD:
                colour = FADED + (1 - FADED) * colour
            if (layer, head) == MISSING:
                colour = np.full(3, np.nan)
            np.testing.assert_allclose(picture[layer, head], colour)
    names = ["induction (6)", "previous (5)", "far (5)", "sink (6)", "mixed (6)"]
    assert legend(figure) == [*names, "faded: unsure (1)"]
    assert "unsure: a 95 % interval contains a threshold" in note(figure)
    assert "repeated tokens" not in note(figure)
    assert "1 without known attention or not captured: blank" in note(figure)
    caption = caption_of(figure) or ""
    assert (
        "The role of 1 head is unsure, and the colour, that of the likely role, is faded: a "
        in (caption)
    )
    assert "29 query heads of model-one" in caption


def test_the_legend_counts_heads_whose_role_repeated_tokens_decide_as_unsure(
    run: FinishedRun,
) -> None:
    """Here the scores on repeated tokens are not known, and two layers rest."""
    resting = run.table("roles")["likely_role"].isin(["sink", "mixed"])
    roles = run.table("roles").assign(repeated_induction=np.nan)
    figure = roles_figure(roles.assign(role=roles["role"].mask(resting, "unsure")))
    names = ["induction (6)", "previous (5)", "far (5)", "sink (0)", "mixed (0)"]
    assert legend(figure) == [*names, "faded: unsure (13)"]
    assert "unsure: repeated tokens decide in 12 heads" in note(figure)
    assert "are not known in 12 of them and a 95 % interval contains a threshold in 1 of them" in (
        caption_of(figure) or ""
    )


def test_the_map_of_roles_can_be_of_some_layers_and_of_a_table(run: FinishedRun) -> None:
    figure = plot_run(run, "roles", {"layers": "1,3-4"})
    assert np.shape(figure.axes[0].images[0].get_array())[:2] == (3, 6)
    assert "dashed line: layer 2 left out" in note(figure)
    sure = run.table("roles")[run.table("roles")["role"] != "unsure"]
    assert "faded" not in note(roles_figure(sure))
    with pytest.raises(ConfigError, match="role: unknown role"):
        roles_figure(sure.assign(role="other"))
    with pytest.raises(ConfigError, match="has no column 'likely_role'"):
        roles_figure(sure.drop(columns="likely_role"))


def test_points_and_means_are_those_of_the_heads_of_a_role(run: FinishedRun) -> None:
    figure = plot_run(run, "by_role", {})
    table = run.head_metrics.merge(run.table("roles")[["layer", "q_head", "role"]])
    order = ("induction", "previous", "far", "sink", "mixed")
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels == [f"{name}\n{(table['role'] == name).sum()} heads" for name in order]
    for axes, column in zip(figure.axes, (ALIGNED, PHASE), strict=True):
        points = {dots.get_label(): dots for dots in axes.collections if dots.get_label() in order}
        means = [line for line in axes.lines if line.get_marker() == "D"]
        for row, name in enumerate(order):
            heads = table[table["role"] == name]
            values = heads[column].to_numpy()
            drawn = np.asarray(points[name].get_offsets())  # (heads, xy)
            np.testing.assert_allclose(drawn[:, 0], values)
            assert (np.abs(drawn[:, 1] - row) < 0.5).all()
            (mean,) = np.atleast_1d(means[row].get_xdata())
            assert mean == pytest.approx(values.mean())


def test_intervals_of_means_are_over_texts(run: FinishedRun) -> None:
    axes = plot_run(run, "by_role", {}).axes[0]
    heads = run.table("roles").loc[run.table("roles")["role"] == "sink", ["layer", "q_head"]]
    assert run.influences is not None
    rows = run.influences[run.influences["quantity"] == ALIGNED].merge(heads)
    groups = [f"group_{number:02}" for number in range(TEXT_GROUPS)]
    error = np.sqrt((rows[groups].mean() ** 2).sum())
    lines = [part.get_segments() for part in axes.collections if hasattr(part, "get_segments")]
    widths = [np.ptp(segments[0][:, 0]) for segments in lines if len(segments) == 1]
    assert any(width == pytest.approx(2 * T_11 * error) for width in widths)


def test_unsure_heads_are_left_out_and_said_so(run: FinishedRun) -> None:
    figure = plot_run(run, "by_role", {})
    assert "28 of 29 heads" in note(figure)
    assert "1 head of unsure role left out" in note(figure)
    caption = caption_of(figure) or ""
    assert "1 head with an unsure role is left out." in caption
    assert f"({TEXT_GROUPS} groups of texts, Student's t)" in caption
    without = by_role_figure(run.head_metrics, run.table("roles"))
    assert "interval" not in note(without)


def test_plasticity_by_role_needs_both_tables(run: FinishedRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no roles; give the folder of the run"):
        by_role_figure(run.head_metrics)
    bucket = write_run(tmp_path / "bucket", errors=True)
    metrics = FinishedRun.open(bucket).head_metrics
    with pytest.raises(ConfigError, match="at one position"):
        by_role_figure(metrics, run.table("roles"))


def test_points_with_near_values_are_spread() -> None:
    assert spread(np.array([0.3])).tolist() == [0.0]
    values = np.linspace(0.4, 0.41, 50)
    shifts = spread(values)
    assert np.abs(shifts).max() < 0.25
    assert np.abs(np.diff(shifts)).min() > 0.1  # neighbours in value
    np.testing.assert_array_equal(spread(values[::-1]), shifts[::-1])


def test_many_heads_can_be_drawn() -> None:
    grid = pd.MultiIndex.from_product([range(60), range(64)], names=["layer", "q_head"])
    roles = grid.to_frame(index=False).assign(role="far", likely_role="far")
    roles_figure(roles).draw_without_rendering()
