"""The table of key heads on the page."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect

from attention_plasticity.page import make_report
from attention_plasticity.tables.finished_run import FinishedRun
from key_head_runs import add_key_heads
from report_pages import open_report, show
from report_runs import write_run


def test_a_row_per_key_head_and_the_selected_one(browser: Browser, tmp_path: Path) -> None:
    run = FinishedRun.open(add_key_heads(write_run(tmp_path / "run")))
    path = make_report([run]).save(tmp_path / "report.html")
    heads = run.head_metrics
    with open_report(browser, path) as page:
        page.locator("#key-heads-panel summary").click()
        rows = page.locator("#key-heads-table tbody tr")
        expect(rows).to_have_count(len(run.table("key_heads")))
        for _, head in heads.groupby(["layer", "k_head"]).first().reset_index().iterrows():
            show(page, f"head={head['layer']:.0f}.{head['q_head']:.0f}")
            current = page.locator("#key-heads-table tr[aria-current=true]")
            expect(current).to_have_count(1)
            name = f"layer {head['layer']:.0f}, key head {head['k_head']:.0f}"
            expect(current.locator("td").first).to_have_text(name)


def test_a_run_without_the_table(browser: Browser, tmp_path: Path) -> None:
    run = FinishedRun.open(write_run(tmp_path / "run"))
    path = make_report([run]).save(tmp_path / "report.html")
    with open_report(browser, path) as page:
        expect(page.locator("#key-heads-panel")).to_be_hidden()
