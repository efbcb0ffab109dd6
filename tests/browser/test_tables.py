"""The folded tables of key heads and of scores without a query, and a printed page."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.names import FIDELITY_CAUTION
from fidelity_runs import KINDS
from report_pages import READY, show, with_half


def test_the_key_head_of_the_selected_head_is_marked(
    page: Page, runs: dict[str, FinishedRun]
) -> None:
    run = runs["full"]
    page.locator("#key-heads-panel summary").click()
    rows = page.locator("#key-heads-table tbody tr")
    expect(rows).to_have_count(len(run.table("key_heads")))
    current = page.locator("#key-heads-table tr[aria-current=true]")
    for head, k_head in ((2, 0), (4, 1)):
        show(page, f"run=full&head=1.{head}")
        expect(current).to_have_count(1)
        expect(current.locator("th")).to_have_text(f"layer 1, key head {k_head}")
    table = run.table("key_heads")
    row = table[(table["layer"] == 1) & (table["k_head"] == 1)].iloc[0]
    half = half_width(row["aligned_plasticity_se"], row["n_groups"])
    text = with_half(row["aligned_plasticity"], float(half))
    assert text in current.locator("td").all_text_contents()


def test_scores_have_their_mean_and_the_selected_key_head(
    page: Page, runs: dict[str, FinishedRun]
) -> None:
    run = runs["full"]
    page.locator("#fidelity-panel summary").click()
    expect(page.locator("#fidelity-table tbody tr")).to_have_count(len(KINDS))
    expect(page.locator("#fidelity-caution")).to_have_text(FIDELITY_CAUTION)
    expect(page.locator("#fidelity-table thead")).to_contain_text("layer 1, key head 0")
    table = run.table("fidelity")
    wanted = (table["layer"] == 1) & (table["k_head"] == 0) & (table["score"] == "gaussian")
    row = table[wanted & (table["value_norm"] == 0)].iloc[0]
    mean = run.fidelity_means["gaussian", 0]["kept_50"]
    expected = [
        with_half(mean.value, float(half_width(mean.standard_error, mean.groups))),
        with_half(row["kept_50"], float(half_width(row["kept_50_se"], row["n_groups"]))),
    ]
    cells = page.locator("[data-score='gaussian.0'] td").all_text_contents()
    assert cells[2:4] == expected


def test_a_run_without_these_tables_has_no_card_of_them(page: Page) -> None:
    show(page, "run=bucket")
    for name in ("key-heads", "fidelity", "role", "attention", "drift"):
        expect(page.locator(f"#{name}-panel")).to_be_hidden()


def test_a_printed_page_is_light_and_has_no_controls(page: Page) -> None:
    page.emulate_media(media="screen", color_scheme="dark")
    page.wait_for_selector(f"{READY}[data-theme=dark]")
    page.emulate_media(media="print", color_scheme="dark")
    page.wait_for_selector(f"{READY}[data-theme=light]")
    expect(page.locator(".controls")).to_be_hidden()
    expect(page.locator("#profile")).to_be_visible()
    assert page.pdf(prefer_css_page_size=True)
    page.emulate_media(media="screen", color_scheme="dark")
    page.wait_for_selector(f"{READY}[data-theme=dark]")
