"""Baselines on the page: values on the cards, and lines in the profile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from attention_plasticity.page import make_report
from attention_plasticity.tables.finished_run import FinishedRun
from report_pages import data_of, mean_text, open_report, show, without_errors
from report_runs import write_baselines, write_run

WORDS = ("random weights", "shuffled tokens")
CARDS = {
    "Plasticity at one position": "ap_aligned",
    "Rotary phase": "ap_phase",
    "Drop over the context": "ap_aligned_drop",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    folder = write_run(tmp_path_factory.mktemp("runs") / "with", position=True)
    write_baselines(folder)
    return FinishedRun.open(folder)


@pytest.fixture(scope="module")
def opened(
    browser: Browser, run: FinishedRun, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    runs = [run, FinishedRun.open(write_run(folder / "without", position=True, seed=3))]
    path = make_report(runs, labels=["with", "without"]).save(folder / "report.html")
    with open_report(browser, path) as page:
        yield page


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    with without_errors(opened):
        yield opened


def shown_on_cards(run: FinishedRun, page: Page) -> None:
    for title, metric in CARDS.items():
        lines = page.locator(".card", has=page.get_by_role("heading", name=title, exact=True))
        rows = lines.locator(".baselines div")
        expect(rows).to_have_count(len(WORDS))
        for row, words in zip(rows.all(), WORDS, strict=True):
            value = mean_text(run.baselines[words], metric)
            assert row.inner_text().replace("\n", " ") == f"{words} {value}"
            assert row.get_attribute("title") == "baseline, 8 texts"


def lines(page: Page) -> dict[str, list[float]]:
    """The lines of baselines in the profile, by their first words."""
    traces = [trace for trace in data_of(page, "profile") if "dash" in trace.get("line", {})]
    return {trace["name"].split(",")[0]: trace["y"] for trace in traces}


def test_cards_and_profile_show_the_baselines(page: Page, run: FinishedRun) -> None:
    show(page, "run=with")
    shown_on_cards(run, page)
    bins = run.baselines["random weights"].table("bins")["q_bin"].nunique()
    assert [len(lines(page)[words]) for words in WORDS] == [bins, bins]
    bands = [trace["name"] for trace in data_of(page, "profile") if trace.get("fill") == "toself"]
    assert {f"interval, {words}" for words in WORDS} <= set(bands)
    for words in WORDS:
        expect(page.locator("#profile-keys")).to_contain_text(f"{words}, mean of heads")
    page.locator(".card .help").first.click()
    expect(page.locator("#glossary")).to_contain_text("Random weights, shuffled tokens")
    page.keyboard.press("Escape")


def test_chosen_layers_are_those_of_the_baselines(page: Page, run: FinishedRun) -> None:
    show(page, "run=with")
    everywhere = lines(page)["random weights"]
    show(page, "run=with&layers=sliding_attention")
    shown_on_cards(run.select(layer_type="sliding"), page)
    assert lines(page)["random weights"] != everywhere


def test_a_run_without_baselines_has_none(page: Page) -> None:
    show(page, "run=without")
    expect(page.locator(".baselines")).to_have_count(0)
    assert not set(WORDS) & set(lines(page))


def test_one_baseline_keeps_its_look(browser: Browser, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", position=True)
    write_baselines(folder)
    (folder / "baseline" / "random" / "run.json").unlink()
    path = make_report([FinishedRun.open(folder)]).save(tmp_path / "report.html")
    with open_report(browser, path) as page, without_errors(page):
        show(page, "")
        assert set(lines(page)) >= {"shuffled tokens"}
        traces = data_of(page, "profile")
        found = [one for one in traces if one.get("name", "").startswith("shuffled")]
        assert [one["line"]["dash"] for one in found] == ["dot"]
