"""The card "Where attention goes", the metrics of attention, and pages of runs without them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect

from attention_plasticity.page import make_report
from attention_plasticity.tables.attention_masses import HeadMasses, mass_bins, masses_without_sinks
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import head_half_width
from attention_runs import DISTANT, add_attention
from report_pages import (
    READY,
    data_of,
    of_head,
    open_report,
    settled,
    show,
    with_half,
    without_errors,
)
from report_runs import write_run


def head_masses(run: FinishedRun, table: pd.DataFrame) -> HeadMasses:
    return masses_without_sinks(table, mass_bins(run.table("attention")), run.geometry)


WITHOUT_ROWS = (4, 5)  # a head whose attention is not known


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
    """Three runs: attention with errors; attention without errors; no attention."""
    folder = tmp_path_factory.mktemp("attention")
    sure = add_attention(write_run(folder / "sure", position=True))
    table = pd.read_csv(sure / "head_attention.csv")
    unknown = (table["layer"] == WITHOUT_ROWS[0]) & (table["q_head"] == WITHOUT_ROWS[1])
    table[~unknown].to_csv(sure / "head_attention.csv", index=False)
    bare = add_attention(write_run(folder / "bare"), seed=1, errors=False)
    return [FinishedRun.open(run) for run in (sure, bare, write_run(folder / "without"))]


@pytest.fixture(scope="module")
def opened(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, runs: list[FinishedRun]
) -> Iterator[Page]:
    report = make_report(runs, labels=["sure", "bare", "without"])
    path = report.save(tmp_path_factory.mktemp("page") / "report.html")
    with open_report(browser, path) as page:
        yield page


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    with without_errors(opened):
        show(opened, "run=sure&head=1.2&metric=ap_aligned")
        opened.select_option("#attention-queries", "")
        settled(opened)
        yield opened


def test_the_card_has_the_numbers_of_the_head(page: Page, runs: list[FinishedRun]) -> None:
    table = runs[0].head_metrics
    attention = ("attn_sink_mass", "attn_far_mass", "attn_entropy", "attn_max_logit")
    for name in (*attention, "ap_aligned", "ap_attended"):
        half = head_half_width(table, name, runs[0].influences)
        row = of_head(table.assign(half=half), 1, 2).iloc[0]
        text = with_half(row[name], row["half"])
        expect(page.locator(f'[data-fact="{name}"]')).to_have_text(text)
        expect(page.locator(f'[data-metric="{name}"]')).to_have_text(text)
    facts = page.locator("#attention-facts")
    far = "at least 256 tokens before the query, without the first four tokens of the text"
    expect(facts).to_contain_text(far)
    expect(page.locator('[data-fact="attn_distant_mass"]')).to_have_count(0)
    expect(page.locator('[data-metric="attn_distant_mass"]')).to_have_count(1)


def test_bars_are_the_masses_of_all_queries_or_of_one_bucket(
    page: Page, runs: list[FinishedRun]
) -> None:
    table = runs[0].table("attention")
    bins = mass_bins(table)
    bars, mean = data_of(page, "attention")
    of_all = head_masses(runs[0], table)
    place = of_all.heads.index[(of_all.heads == [1, 2]).all(axis=1)][0]
    assert bars["type"] == "bar"
    np.testing.assert_allclose(bars["y"], of_all.values[place], atol=1e-4)
    np.testing.assert_allclose(bars["error_y"]["array"], of_all.half[place], atol=1e-4)
    del mean["y"][1]  # the gap between the first four tokens and the distances
    np.testing.assert_allclose(mean["y"], of_all.values.mean(axis=0), atol=1e-4)
    assert bars["customdata"][:3] == ["the first four tokens", "distance 0", "distance 1"]
    assert bars["customdata"][3:5] == ["distance 2–3", "distance 4–7"]
    keys = page.locator("#attention-keys")
    expect(keys).to_contain_text("95 % interval (upper bound)")
    expect(keys).to_contain_text("far attention: from 256 tokens")
    expect(page.locator("#attention-note")).to_contain_text(
        "the first four tokens of the text stand apart"
    )
    border = page.evaluate("document.getElementById('attention').layout.shapes[0].x0")
    assert border == bins.index(DISTANT) + 0.5
    page.select_option("#attention-queries", label="384–511")
    settled(page)
    chosen = head_masses(runs[0], table[table["q_bucket"] == 3])
    bars, mean = data_of(page, "attention")
    np.testing.assert_allclose(bars["y"], chosen.values[place], atol=1e-4)
    np.testing.assert_allclose(bars["error_y"]["array"], chosen.half[place], atol=1e-4)
    del mean["y"][1]  # the gap between the first four tokens and the distances
    np.testing.assert_allclose(mean["y"], chosen.values.mean(axis=0), atol=1e-4)
    expect(keys).not_to_contain_text("upper bound")
    page.locator("#attention .nsewdrag").hover(position={"x": 100, "y": 120})
    expect(page.locator("#attention .hoverlayer")).to_contain_text("95 % interval: ")


def test_metrics_of_attention_can_be_mapped(page: Page, runs: list[FinishedRun]) -> None:
    groups = page.locator("#metric optgroup")
    labels = groups.evaluate_all("all => all.map(o => o.label)")
    assert labels[:2] == ["Plasticity", "Attention"]
    assert "Other columns" not in labels
    for metric, scale in (
        ("attn_sink_mass", [0, 1]),
        ("ap_attended", [0, 1]),
        ("attn_entropy", None),
    ):
        page.select_option("#metric", metric)
        settled(page)
        code = "(({zmin, zmax}) => [zmin, zmax])(document.querySelector('.map-plot').data[0])"
        column = runs[0].head_metrics[metric]
        expected = scale or [column.min(), column.max()]
        np.testing.assert_allclose(page.evaluate(code), expected)
        expect(page.locator("#sure")).to_be_enabled()


def test_two_runs_are_compared(page: Page, runs: list[FinishedRun]) -> None:
    show(page, "run=bare&beside=sure&head=1.2")
    bars, _, other = data_of(page, "attention")
    for run, trace in ((runs[1], bars), (runs[0], other)):
        rows = of_head(run.table("attention"), 1, 2)
        np.testing.assert_allclose(trace["y"], head_masses(run, rows).values[0], atol=1e-4)
    assert [bars["error_y"]["visible"], other["error_y"]["visible"]] == [False, True]
    expect(page.locator("#attention-keys")).to_contain_text("same head, sure")
    for name in ("attn_sink_mass", "attn_far_mass"):
        expect(page.locator(f'[data-fact="{name}"] .other')).to_contain_text("±")
    show(page, "run=sure&beside=without&head=1.2")
    expect(page.locator("#attention-keys")).to_contain_text("without: not known")


def test_heads_and_runs_without_attention_have_no_card(
    page: Page, browser: Browser, runs: list[FinishedRun], tmp_path: Path
) -> None:
    card = page.locator("#attention-panel")
    views = (("run=sure&head=4.5", False), ("run=sure&head=0.0", True), ("run=without", False))
    for address, shown in views:
        show(page, address)
        expect(card).to_be_visible() if shown else expect(card).to_be_hidden()
    show(page, "run=sure&head=0.0")
    sizes = "['#attention', '#attention .main-svg'].map(s => document.querySelector(s).clientWidth)"
    place, drawn = page.evaluate(sizes)
    assert place == drawn > 400
    path = make_report(runs[2:]).save(tmp_path / "report.html")
    with browser.new_context(offline=True) as context:
        alone = context.new_page()
        alone.goto(path.as_uri())
        alone.wait_for_selector(READY)
        expect(alone.locator("#attention-panel")).to_be_hidden()
        text = alone.locator("body").inner_text()
        for words in ("Where attention goes", "ttended", "Attention on sinks", "Other columns"):
            assert words not in text


@pytest.mark.parametrize("width", [1366, 420])
def test_the_card_fits_any_width(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 768})
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.set_viewport_size({"width": 1366, "height": 768})
    settled(page)
