"""Baselines on the page: values on the cards, and lines in the profile."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from attention_plasticity.tables.finished_run import FinishedRun
from report_pages import data_of, mean_text, show

WORDS = ("random weights", "shuffled tokens")
CARDS = {
    "Plasticity at one position": "ap_aligned",
    "Rotary phase": "ap_phase",
    "Drop over the context": "ap_aligned_drop",
}


def shown_on_cards(run: FinishedRun, page: Page) -> None:
    for title, metric in CARDS.items():
        lines = page.locator(".card", has=page.get_by_role("heading", name=title, exact=True))
        rows = lines.locator(".baselines div")
        expect(rows).to_have_count(len(WORDS))
        for row, words in zip(rows.all(), WORDS, strict=True):
            value = mean_text(run.baselines[words][0], metric)
            assert row.inner_text().replace("\n", " ") == f"{words} {value}"
            assert row.get_attribute("title") == "baseline, 8 texts"


def lines(page: Page) -> dict[str, list[float]]:
    """The lines of baselines in the profile, by their first words."""
    traces = [trace for trace in data_of(page, "profile") if "dash" in trace.get("line", {})]
    return {trace["name"].split(",")[0]: trace["y"] for trace in traces}


def test_cards_and_profile_show_the_baselines(page: Page, runs: dict[str, FinishedRun]) -> None:
    run = runs["full"]
    show(page, "run=full")
    shown_on_cards(run, page)
    bins = run.baselines["random weights"][0].table("bins")["q_bin"].nunique()
    assert [len(lines(page)[words]) for words in WORDS] == [bins, bins]
    bands = [trace["name"] for trace in data_of(page, "profile") if trace.get("fill") == "toself"]
    assert {f"interval, {words}" for words in WORDS} <= set(bands)
    for words in WORDS:
        expect(page.locator("#profile-keys")).to_contain_text(f"{words}, mean of heads")
    page.locator(".card .help").first.click()
    expect(page.locator("#glossary")).to_contain_text("Random weights, shuffled tokens")
    page.keyboard.press("Escape")
