"""A printed page is light and has the layout of the window, for which its charts were drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from attention_plasticity.page import make_report
from attention_plasticity.tables.finished_run import FinishedRun
from report_pages import READY, settled, without_errors
from report_runs import write_run

STATE = """() => ({
    theme: document.documentElement.dataset.theme,
    rules: [...document.styleSheets].flatMap(sheet => [...sheet.cssRules])
        .filter(rule => rule.media).map(rule => rule.media.mediaText),
    ink: getComputedStyle(document.body).color,
    state: document.documentElement.dataset.state,
})"""
DARK_INK, LIGHT_INK = "rgb(29, 33, 38)", "rgb(231, 233, 236)"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("print")
    run = FinishedRun.open(write_run(folder / "run", position=True))
    return make_report([run]).save(folder / "report.html")


@pytest.fixture(params=[1366, 700])
def page(browser: Browser, path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    size = {"width": request.param, "height": 768}
    with browser.new_context(viewport=size, offline=True, color_scheme="dark") as context:
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.goto(path.as_uri())
        page.wait_for_selector(READY)
        with without_errors(page):
            yield page


def test_the_paper_has_the_width_and_the_layout_of_the_window(page: Page) -> None:
    before = page.evaluate(STATE)
    assert (before["theme"], before["ink"]) == ("dark", LIGHT_INK)
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = ({STATE})(); }})")
    printed = page.pdf(prefer_css_page_size=True)
    width = page.evaluate("document.documentElement.clientWidth")
    found = [float(one) for one in re.findall(rb"/MediaBox \[0 0 ([\d.]+) ", printed)]
    assert found == [pytest.approx(width * 0.75, abs=1)] * len(found)  # points
    assert found
    during = page.evaluate("window.printed")
    assert (during["theme"], during["ink"]) == ("light", DARK_INK)
    for screen, paper in zip(before["rules"], during["rules"], strict=True):
        limit = re.search(r"max-width: (\d+)px", screen)
        if limit is None:
            assert paper == screen
        else:
            assert paper == ("all" if width <= int(limit[1]) else "not all")
    settled(page)
    assert page.evaluate(STATE) == before
