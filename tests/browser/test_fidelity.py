"""The card of scores without a query on the page."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect

from attention_plasticity.page import make_report
from attention_plasticity.page.fidelity import fidelity_content
from attention_plasticity.tables.finished_run import FinishedRun
from fidelity_runs import KINDS, add_fidelity
from report_pages import open_report, show
from report_runs import write_run


def test_means_and_the_selected_key_head(browser: Browser, tmp_path: Path) -> None:
    run = FinishedRun.open(add_fidelity(write_run(tmp_path / "run")))
    found = fidelity_content(run)
    assert found is not None
    path = make_report([run]).save(tmp_path / "report.html")
    heads = run.head_metrics
    with open_report(browser, path) as page:
        page.locator("#fidelity-panel summary").click()
        rows = page.locator("#fidelity-table tbody tr")
        expect(rows).to_have_count(len(KINDS))
        expect(page.locator("#fidelity-caution")).to_have_text(found["caution"])
        for _, head in heads.groupby(["layer", "k_head"]).first().reset_index().iterrows():
            layer, k_head = int(head["layer"]), int(head["k_head"])
            show(page, f"head={layer}.{head['q_head']:.0f}")
            top = page.locator("#fidelity-table thead tr").first.locator("th")
            expect(top.nth(1)).to_have_text(found["of"])
            expect(top.nth(2)).to_have_text(f"layer {layer}, key head {k_head}")
            for place in (0, len(KINDS) - 1):
                texts = [*found["means"][place], *found["heads"][f"{layer}.{k_head}"][place]]
                expect(rows.nth(place).locator("td")).to_have_text(texts)


def test_a_run_without_the_table(browser: Browser, tmp_path: Path) -> None:
    run = FinishedRun.open(write_run(tmp_path / "run"))
    path = make_report([run]).save(tmp_path / "report.html")
    with open_report(browser, path) as page:
        expect(page.locator("#fidelity-panel")).to_be_hidden()
