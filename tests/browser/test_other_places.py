"""The page in an old browser, without scripts, and in the frame of a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from attention_plasticity.page import Report, make_report
from attention_plasticity.tables.finished_run import FinishedRun
from report_pages import READY
from report_runs import write_run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return make_report([FinishedRun.open(write_run(tmp_path_factory.mktemp("run")))])


def test_an_old_browser_and_one_without_scripts_say_so(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    path = report.save(tmp_path / "report.html")
    with browser.new_context(offline=True) as context:
        page = context.new_page()
        page.add_init_script("delete window.DecompressionStream")
        page.goto(path.as_uri())
        expect(page.locator("#notice")).to_contain_text("cannot be shown: this browser cannot")
    with browser.new_context(offline=True, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(path.as_uri())
        expect(page.locator(".notice")).to_contain_text("which is switched off here")


def test_a_notebook_frame_shows_the_page(browser: Browser, report: Report, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><body>{report._repr_html_()}")
    with browser.new_context(offline=True) as context:
        page = context.new_page()
        page.goto(path.as_uri())
        frame = page.frame_locator("iframe")
        expect(frame.locator(READY)).to_be_attached(timeout=20_000)
        expect(frame.locator("#run")).to_be_hidden()
        frame.locator(".map-plot").press("ArrowUp")
        expect(frame.locator("#head-title")).to_contain_text("Layer")
