"""The card "Drift with position": numbers of the selected head, and its points."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect

from attention_plasticity.metrics import POINTS
from attention_plasticity.page import make_report
from attention_plasticity.tables.finished_run import FinishedRun
from drift_runs import LAST, POINTS_OF_HEAD, add_drift, change_points
from report_pages import READY, data_of, of_head, open_report, settled, show, without_errors
from report_runs import write_run

FAR = 1e4  # coordinate of a point


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
    """Runs with points, without points, without the table of drift, and with one frame."""
    folder = tmp_path_factory.mktemp("drift")
    frames = add_drift(write_run(folder / "frames"))
    change_points(frames, 0, 0, pc0=np.nan, pc1=np.nan)
    change_points(frames, 0, 1, pc0_rotated=np.nan, pc1_rotated=np.nan)
    change_points(frames, 1, 0, pc0_rotated="pc0", pc1_rotated="pc1")
    path = frames / POINTS.file
    table = pd.read_csv(path)
    own = table.query("layer == 1 and q_head == 1 and kind == 'q'")
    more = pd.concat([own] * 4, ignore_index=True)
    more.loc[0, "pc1_rotated"] = FAR
    pd.concat([table, more]).to_csv(path, index=False, na_rep="nan")
    folders = (
        add_drift(write_run(folder / "points")),
        add_drift(write_run(folder / "no-points"), points=False),
        write_run(folder / "old"),
        frames,
    )
    return [FinishedRun.open(run) for run in folders]


@pytest.fixture(scope="module")
def opened(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, runs: list[FinishedRun]
) -> Iterator[Page]:
    report = make_report(runs, labels=["points", "no-points", "old", "frames"])
    path = report.save(tmp_path_factory.mktemp("page") / "report.html")
    with open_report(browser, path) as page:
        yield page


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    with without_errors(opened):
        yield opened


def test_the_numbers_of_the_head_are_those_of_the_table(
    page: Page, runs: list[FinishedRun]
) -> None:
    show(page, "run=points&head=1.2")
    row = of_head(runs[0].drift, 1, 2).iloc[0]
    cell = page.locator("[data-drift=q_drift_r_unrotated]")
    expect(cell).to_have_text(f"{row['q_drift_r_unrotated']:.3f}\u00a0±\u00a00.009")
    shares = f"{row['k_pc1_share']:.3f}, {row['k_pc1_r']:.3f}"
    expect(page.locator("[data-drift=k_pc1_share]")).to_have_text(shares)
    expect(page.locator("#drift-note")).to_contain_text("95 % interval over texts")


def test_points_have_the_coordinates_and_the_positions_of_the_table(
    page: Page, runs: list[FinishedRun]
) -> None:
    show(page, "run=points&head=1.2")
    rows = of_head(runs[0].points, 1, 2)
    for kind in "qk":
        own = rows[rows["kind"] == kind]
        (trace,) = data_of(page, f"points-{kind}")
        assert trace["x"] == pytest.approx(own["pc0"].tolist(), abs=2e-4)
        assert trace["y"] == pytest.approx(own["pc1"].tolist(), abs=2e-4)
        assert trace["marker"]["color"] == own["position"].tolist()
        assert (trace["marker"]["cmin"], trace["marker"]["cmax"]) == (0, LAST)
        assert len(trace["x"]) == POINTS_OF_HEAD
    share = of_head(runs[0].drift, 1, 2).iloc[0]["q_pc0_share_unrotated"]
    label = page.locator("#points-q").get_attribute("data-x") or ""
    assert label.startswith(f"component 0: {100 * share:.0f} %, |r| ")
    expect(page.locator(".points-end").first).to_have_text(f"{LAST:,}")


def test_the_switch_shows_points_after_rope_and_is_part_of_the_address(
    page: Page, runs: list[FinishedRun]
) -> None:
    show(page, "run=points&head=1.2")
    switch = page.get_by_role("combobox", name="Queries and keys")
    expect(switch).to_have_value("before")
    switch.focus()
    page.keyboard.press("ArrowDown")
    expect(switch).to_have_value("after")
    expect(switch).to_be_focused()
    page.wait_for_url(lambda url: "points=after" in url)
    settled(page)
    row = of_head(runs[0].drift, 1, 2).iloc[0]
    for kind, own in of_head(runs[0].points, 1, 2).groupby("kind"):
        (trace,) = data_of(page, f"points-{kind}")
        assert trace["x"] == pytest.approx(own["pc0_rotated"].tolist(), abs=2e-4)
        assert trace["y"] == pytest.approx(own["pc1_rotated"].tolist(), abs=2e-4)
        assert trace["marker"]["color"] == own["position"].tolist()
        label = page.locator(f"#points-{kind}").get_attribute("aria-label") or ""
        assert "of this head after RoPE on two principal components" in label
        assert f"{row[f'{kind}_drift_r']:.3f}" in label
        share, r = row[f"{kind}_pc1_share"], row[f"{kind}_pc1_r"]
        axis = page.locator(f"#points-{kind}").get_attribute("data-y")
        assert axis == f"component 1: {100 * share:.0f} %, |r| {r:.2f}"
    expect(page.locator("#points-note")).to_contain_text("after RoPE, as the attention compares")
    with page.expect_download() as download:
        page.click("[data-image='points-k.svg']")
    assert download.value.suggested_filename == "points-points-k-after-rope-l1h2.svg"
    assert "keys after RoPE" in Path(download.value.path()).read_text(encoding="utf-8")
    page.reload()
    page.wait_for_selector(READY)
    expect(switch).to_have_value("after")
    switch.select_option("before")
    page.wait_for_url(lambda url: "points=" not in url)


def test_a_link_with_another_frame_is_named(page: Page) -> None:
    show(page, "run=points&head=1.2&points=turned")
    notice = page.locator("#link-problem")
    expect(notice).to_contain_text("“points=turned” (shown instead: points before RoPE)")
    page.click("#link-close")


def test_the_frame_that_is_known_is_shown_without_a_switch(
    page: Page, runs: list[FinishedRun]
) -> None:
    switch, words = page.locator("#points-frame"), page.locator("#points-note")
    shown = {
        "0.0": ("before", "after RoPE", "pc0_rotated", "the points before RoPE are not known"),
        "0.1": ("after", "before RoPE", "pc0", "the points after RoPE are not known"),
        "1.0": ("after", "without RoPE", "pc0", "which this layer does not have"),
    }
    for head, (asked, frame, column, reason) in shown.items():
        show(page, f"run=frames&head={head}&points={asked}")
        expect(switch).to_be_hidden()
        expect(words).to_contain_text(frame)
        expect(words).to_contain_text(reason)
        own = of_head(runs[3].points, *map(int, head.split("."))).query("kind == 'q'")
        (trace,) = data_of(page, "points-q")
        assert trace["x"] == pytest.approx(own[column].tolist(), abs=2e-4)
    show(page, "run=frames&head=1.1&points=after")  # the choice is kept
    expect(switch).to_be_visible()
    expect(switch).to_have_value("after")


def test_a_point_far_from_all_others_is_left_out_of_its_frame_only(page: Page) -> None:
    for frame, points in (("before", 5 * POINTS_OF_HEAD), ("after", 5 * POINTS_OF_HEAD - 1)):
        show(page, f"run=frames&head=1.1&points={frame}")
        (trace,) = data_of(page, "points-q")
        assert len(trace["x"]) == len(trace["marker"]["color"]) == points
        assert max(trace["y"]) < 10.0
        left_out = "1 point far from all others is left out"
        assert (left_out in page.locator("#points-note").inner_text()) == (frame == "after")


def test_points_are_saved_with_a_bar_of_positions(page: Page) -> None:
    show(page, "run=points&head=0.0")
    with page.expect_download() as download:
        page.click("[data-image='points-q.svg']")
    picture = Path(download.value.path()).read_text(encoding="utf-8")
    assert "position (tokens)" in picture
    assert download.value.suggested_filename == "points-points-q-l0h0.svg"


def test_without_points_the_card_says_how_to_get_them(page: Page) -> None:
    show(page, "run=no-points&head=0.0")
    expect(page.locator("#drift-panel")).to_be_visible()
    expect(page.locator("#points-pair")).to_be_hidden()
    expect(page.locator("#points-note")).to_contain_text("--points_per_head")
    show(page, "run=points&head=0.0")
    expect(page.locator("#points-pair")).to_be_visible()
    assert data_of(page, "points-k")


def test_runs_without_drift_have_no_card(page: Page) -> None:
    show(page, "run=old&head=0.0")
    expect(page.locator("#drift-panel")).to_be_hidden()


def test_another_run_is_in_orange_beside_the_numbers(page: Page, runs: list[FinishedRun]) -> None:
    show(page, "run=points&beside=no-points&head=1.0")
    row = of_head(runs[1].drift, 1, 0).iloc[0]
    cell = page.locator("[data-drift=k_drift_r] .other")
    expect(cell).to_have_text(f" {row['k_drift_r']:.3f}")
