"""The card "Drift with position": numbers of the selected head, and its place among all heads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect

from attention_plasticity.metrics import DRIFT
from attention_plasticity.tables.finished_run import FinishedRun
from drift_runs import add_drift
from report_pages import of_head, open_runs, settled, show, without_errors
from report_runs import write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
    """Runs with drift, with drift after RoPE only, and without the table."""
    folder = tmp_path_factory.mktemp("drift")
    after = add_drift(write_run(folder / "after"))
    table = pd.read_csv(after / DRIFT.file)
    before = [name for name in table if "_unrotated" in name]
    table.assign(**dict.fromkeys(before, np.nan)).to_csv(
        after / DRIFT.file, index=False, na_rep="nan"
    )
    folders = (add_drift(write_run(folder / "both")), after, write_run(folder / "none"))
    return [FinishedRun.open(run) for run in folders]


@pytest.fixture(scope="module")
def opened(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, runs: list[FinishedRun]
) -> Iterator[Page]:
    named = dict(zip(("both", "after", "none"), runs, strict=True))
    with open_runs(browser, tmp_path_factory.mktemp("page"), named) as page:
        yield page


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    with without_errors(opened):
        show(opened, "run=both&head=1.2")
        yield opened


def headings(page: Page) -> list[str]:
    return page.locator("#drift-tables th[scope=col]").all_text_contents()


def test_the_numbers_of_the_head_are_those_of_the_table(
    page: Page, runs: list[FinishedRun]
) -> None:
    row = of_head(runs[0].table("drift"), 1, 2).iloc[0]
    cell = page.locator("[data-drift=q_drift_r_unrotated]")
    expect(cell).to_have_text(f"{row['q_drift_r_unrotated']:.3f} ± 0.009")
    for name in ("k_pc1_share", "k_pc1_r"):
        expect(page.locator(f"[data-drift={name}]")).to_have_text(f"{row[name]:.3f}")
    assert page.locator("[data-drift]").count() == 2 * 2 * 6
    expect(page.locator("#drift-note")).to_contain_text("±: half of the 95 % interval over texts")
    frames = ("after RoPE", "before RoPE")
    assert headings(page) == ["Queries", *frames, "Keys", *frames]


def test_a_bar_shows_where_the_head_is_among_all(page: Page, runs: list[FinishedRun]) -> None:
    values = runs[0].table("drift")["q_drift_r"]
    row = of_head(runs[0].table("drift"), 1, 2).iloc[0]
    strip = page.locator("td:has([data-drift=q_drift_r]) .strip")
    words = f"heads: {values.min():.3f} to {values.max():.3f}, mean {values.mean():.3f}"
    expect(strip).to_have_attribute("aria-label", words)
    share = 100 * (row["q_drift_r"] - values.min()) / (values.max() - values.min())
    left = strip.locator(".dot").evaluate("dot => parseFloat(dot.style.left)")
    assert left == pytest.approx(share, abs=0.01)


def test_a_frame_that_is_not_known_is_left_out(page: Page) -> None:
    show(page, "run=after&head=1.2")
    assert headings(page) == ["Queries", "after RoPE", "Keys", "after RoPE"]


def test_runs_without_drift_have_no_card(page: Page) -> None:
    show(page, "run=none&head=0.0")
    expect(page.locator("#drift-panel")).to_be_hidden()
    show(page, "run=both&head=0.0")
    expect(page.locator("#drift-panel")).to_be_visible()


def test_another_run_is_in_orange_beside_the_numbers(page: Page, runs: list[FinishedRun]) -> None:
    show(page, "run=both&beside=after&head=1.0")
    row = of_head(runs[1].table("drift"), 1, 0).iloc[0]
    cell = page.locator("[data-drift=k_drift_r] .other")
    expect(cell).to_have_text(f" {row['k_drift_r']:.3f}")
    expect(page.locator("#drift-note")).to_contain_text("orange: after")


@pytest.mark.parametrize("width", [1366, 1000, 390])
def test_the_card_fits_any_width(page: Page, width: int) -> None:
    for address in ("run=both&head=1.0", "run=both&beside=after&head=1.0"):
        show(page, address)
        page.set_viewport_size({"width": width, "height": 768})
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.locator("#drift-tables .strip").first.is_visible() == (width > 760)
    page.set_viewport_size({"width": 1366, "height": 768})
    settled(page)
