"""Plasticity at one position on the page, first, and runs without it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect

from attention_plasticity.page.content import run_content
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import head_half_width
from attention_runs import add_attention
from report_pages import (
    READY,
    data_of,
    mean_text,
    of_head,
    open_runs,
    settled,
    show,
    singles,
    with_half,
    without_errors,
)
from report_runs import BIN_SIZE, write_run

POSITION, BUCKET = "plasticity at one position", "plasticity over a bucket"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
    """A run with plasticity at one position, and one of a dump without rotary records."""
    folder = tmp_path_factory.mktemp("one_position")
    add_attention(write_run(folder / "new", position=True))
    write_run(folder / "old", seed=4)
    return [FinishedRun.open(folder / name) for name in ("new", "old")]


@pytest.fixture(scope="module")
def opened(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, runs: list[FinishedRun]
) -> Iterator[Page]:
    named = dict(zip(("new", "old"), runs, strict=True))
    with open_runs(browser, tmp_path_factory.mktemp("page"), named) as page:
        yield page


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    with without_errors(opened):
        show(opened, "run=new")
        yield opened


def titles(page: Page) -> list[str]:
    return page.locator(".card h2").all_text_contents()


def test_it_is_shown_first_with_the_part_of_the_phase(page: Page, runs: list[FinishedRun]) -> None:
    assert page.locator("#metric").input_value() == "ap_aligned"
    assert titles(page)[:3] == [
        "Plasticity at one position",
        "Rotary phase",
        "Drop over the context",
    ]
    for place, name in enumerate(("ap_aligned", "ap_phase", "ap_aligned_drop")):
        expect(page.locator(".card .number").nth(place)).to_have_text(mean_text(runs[0], name))
    pooled = mean_text(runs[0], "ap_pooled")
    expect(page.locator(".card").nth(1)).to_contain_text(f"over a bin of 64 tokens: {pooled}")
    columns = page.locator("[data-sort]").evaluate_all("all => all.map((one) => one.dataset.sort)")
    assert columns == ["head", "ap_aligned", "ap_aligned_drop", "ap_phase"]
    expect(page.locator("#head-facts")).to_contain_text("is rotary phase")


def test_the_page_opens_on_the_interval_of_the_drop_farthest_from_zero(
    page: Page, runs: list[FinishedRun]
) -> None:
    table, name = runs[0].head_metrics, "ap_aligned_drop"
    half = head_half_width(table, name, runs[0].influences)
    best = table.loc[(table[name].abs() - half).idxmax()]
    expect(page.locator("#head-title")).to_have_text(
        f"Layer {best['layer']:.0f} · head {best['q_head']:.0f}"
    )
    expect(page.locator("#head-reason")).to_contain_text(
        "whose 95 % interval of the drop at one position lies farthest from 0 ("
    )


def test_profile_and_cells_are_those_of_bins(page: Page, runs: list[FinishedRun]) -> None:
    show(page, "run=new&head=1.2")
    rows = of_head(pd.DataFrame(run_content(runs[0], "x")[1]["profiles"]), 1, 2)
    traces = {trace.get("name"): trace for trace in data_of(page, "profile")}
    np.testing.assert_allclose(traces["layer 1, head 2, 95 % interval"]["y"], rows["plasticity"])
    pooled = traces["over a bin, with rotary phase, 95 % interval"]
    np.testing.assert_allclose(pooled["y"], rows["pooled"])
    assert "95 % interval: " in pooled["text"][0]
    assert "interval over a bin" in traces
    expect(page.locator("#profile")).to_have_attribute("data-y", POSITION)
    cells = of_head(runs[0].table("bins"), 1, 2)
    first = cells[(cells["q_bin"] == 3) & (cells["k_bin"] == 1)].iloc[0]
    (shown,) = data_of(page, "cells")
    assert shown["z"][1][3] == pytest.approx(first["plasticity"], rel=1e-5)
    assert f"over a bin: {first['pooled']:.3f}<br>" in shown["text"][1][3]
    assert f"queries {3 * BIN_SIZE}–{4 * BIN_SIZE - 1}" in shown["text"][1][3]
    expect(page.locator("#cells-note")).to_contain_text(f"{POSITION} per query bin and key bin")


@pytest.mark.parametrize(
    ("text", "column", "limit"),
    [
        ("drop>0.1", "ap_aligned_drop", 0.1),
        ("phase>.2", "ap_phase", 0.2),
        ("plasticity>0.7", "ap_aligned", 0.7),
        ("last fifth>0.7", "ap_aligned_last20", 0.7),
        ("plasticity over a bucket>0.7", "ap_overall", 0.7),
    ],
)
def test_filters_mean_the_shown_plasticity(
    page: Page, runs: list[FinishedRun], text: str, column: str, limit: float
) -> None:
    page.fill("#search", text)
    settled(page)
    table = runs[0].head_metrics
    found = int((table[column] > limit).sum())
    expect(page.locator("#found")).to_have_text(f"{found} of {len(table)} heads")
    page.fill("#search", "")


def test_attended_plasticity_is_that_at_one_position(page: Page, runs: list[FinishedRun]) -> None:
    show(page, "run=new&head=1.2")
    table = runs[0].head_metrics
    half = head_half_width(table, "ap_attended", runs[0].influences)
    row = of_head(table.assign(half=half), 1, 2).iloc[0]
    expect(page.locator('[data-fact="ap_attended"]')).to_have_text(
        with_half(row["ap_attended"], row["half"])
    )
    expect(page.locator("#attention-facts")).to_contain_text("in proportion to the attention")
    page.locator('[data-help="attention"]').click()
    expect(page.locator("#glossary-words")).to_contain_text(
        "Plasticity at one position of pairs of keys that are drawn in proportion"
    )
    page.keyboard.press("Escape")


def test_few_metrics_are_shown_at_first_and_all_on_demand(page: Page) -> None:
    fifth = page.locator('#metrics [data-metric="ap_aligned_first20"]')
    expect(page.locator('#metrics [data-metric="ap_aligned"]')).to_be_visible()
    expect(fifth).to_be_hidden()
    page.locator("#all-metrics").check()
    expect(fifth).to_be_visible()
    page.locator("#all-metrics").uncheck()
    expect(fifth).to_be_hidden()


def test_the_example_of_the_filter_finds_heads(page: Page) -> None:
    example = page.locator("#search").get_attribute("placeholder")
    assert example is not None
    page.fill("#search", example)
    expect(page.locator("#found")).to_contain_text(re.compile(r"^[1-9]\d* of \d+ heads$"))
    page.fill("#search", "")


def test_the_words_are_explained(page: Page) -> None:
    page.locator('[data-help="model-Rotary-phase"]').click()
    terms = page.locator("#glossary-words dt").all_text_contents()
    assert {"At one position", "Over a bucket", "Rotary phase", "Before RoPE"} <= set(terms)
    page.keyboard.press("Escape")


def test_the_cells_are_downloaded_as_the_table_of_bins(
    page: Page, runs: list[FinishedRun], tmp_path: Path
) -> None:
    page.locator("#downloads summary").click()
    with page.expect_download() as download:
        page.locator("#download-cells").click()
    assert download.value.suggested_filename == "new-head_bin_plasticity.csv"
    download.value.save_as(tmp_path / "bins.csv")
    found, expected = pd.read_csv(tmp_path / "bins.csv"), runs[0].table("bins")
    assert list(found.columns[:5]) == list(expected.columns[:5])
    assert set(found.columns) < set(expected.columns)
    for name in ("plasticity", "plasticity_se", "pooled"):
        assert found[name].astype(np.float32).tolist() == singles(expected[name])


def test_a_run_over_a_bucket_is_named_beside_one_at_one_position(
    page: Page, runs: list[FinishedRun]
) -> None:
    show(page, "run=new&beside=old")
    assert titles(page)[0] == "Plasticity over a bucket"
    assert page.locator("#metric").input_value() == "ap_overall"
    for run, number in zip(runs, (".number", ".number .other"), strict=True):
        text = f"{run.head_metrics['ap_overall'].mean():.3f}"
        expect(page.locator(f".card {number}").first).to_contain_text(text)
    expect(page.locator("#subtitle")).to_contain_text(
        "Plasticity over a bucket is compared, because old has none at one position"
    )
    expect(page.locator("#profile")).to_have_attribute("data-y", "plasticity")
    names = page.locator("#runs-table th").all_text_contents()
    assert POSITION in names
    assert BUCKET in names
    expect(page.locator("#runs-note")).to_contain_text("over a bucket: old")


def test_a_run_over_buckets_says_what_it_shows(page: Page) -> None:
    show(page, "run=old")
    page.wait_for_selector(READY)
    assert titles(page)[0] == "Plasticity over a bucket"
    expect(page.locator(".card").first).to_contain_text("the rotation of RoPE counts too; at one")
    expect(page.locator("#warnings li")).to_have_text(
        "Plasticity at one position is not known: the tables of this run do not have it."
    )
    expect(page.locator("#cells-note")).to_contain_text(f"{BUCKET} per query bucket and key bucket")
    columns = page.locator("[data-sort]").evaluate_all("all => all.map((one) => one.dataset.sort)")
    assert columns == ["head", "ap_overall", "q_R2_total"]
    assert titles(page)[1:] == ["Variance from position", "Heads"]
