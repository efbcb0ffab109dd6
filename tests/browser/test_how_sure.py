"""Errors, intervals and marks on the page, and pages of runs without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect

from attention_plasticity.page import make_report
from attention_plasticity.page.content import run_content
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import corrected, head_half_width, mean_over_heads
from report_pages import (
    READY,
    data_of,
    first_rows,
    of_head,
    open_report,
    open_runs,
    settled,
    show,
    without_errors,
)
from report_runs import GAPS, REASON, write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
    """A run with errors, a run whose errors are NaN, and tables of an earlier version."""
    folder = tmp_path_factory.mktemp("how_sure")
    folders = [write_run(folder / "sure", errors=True), write_run(folder / "unknown")]
    folders.append(write_run(folder / "earlier"))
    table = pd.read_csv(folder / "earlier/head_metrics.csv").dropna(axis="columns", how="all")
    table.to_csv(folder / "earlier/head_metrics.csv", index=False)
    return [FinishedRun.open(run) for run in folders]


@pytest.fixture(scope="module")
def opened(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, runs: list[FinishedRun]
) -> Iterator[Page]:
    named = dict(zip(("sure", "unknown", "earlier"), runs, strict=True))
    with open_runs(browser, tmp_path_factory.mktemp("page"), named) as page:
        yield page


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    with without_errors(opened):
        show(opened, "run=sure&head=1.2&metric=ap_overall")
        yield opened


def with_error(value: float, error: float) -> str:
    return f"{value:.3f} ± {error:.3f}".replace("-", "−")


def map_traces(page: Page) -> dict[str, dict[str, Any]]:
    """Traces of the first map by name; the heads themselves have no name."""
    code = "JSON.parse(JSON.stringify(document.querySelector('.map-plot').data))"
    return {trace.get("name", "heads"): trace for trace in page.evaluate(code)}


def faded_heads(page: Page) -> set[tuple[int, int]]:
    z = map_traces(page)["faded"]["z"]
    return {(layer, head) for layer, row in enumerate(z) for head, one in enumerate(row) if one}


def unsure_heads(run: FinishedRun, metric: str) -> set[tuple[int, int]]:
    table = run.head_metrics
    values = corrected(table, metric)
    half = head_half_width(table, metric, run.influences)
    wide = 2 * half > values.quantile(0.75) - values.quantile(0.25)
    if metric == "ap_drop":
        wide = values.abs() <= half
    return set(zip(table["layer"][wide], table["q_head"][wide], strict=True))


def test_numbers_have_their_standard_errors(page: Page, runs: list[FinishedRun]) -> None:
    for card, name in enumerate(("ap_overall", "ap_drop")):
        mean = mean_over_heads(runs[0], name)
        shown = page.locator(".card .number").nth(card)
        expect(shown).to_have_text(with_error(mean.value, mean.standard_error))
    expect(page.locator(".card .number").nth(2)).not_to_contain_text("±")
    expect(page.locator(".card").nth(2)).to_contain_text("as captured; before RoPE: 0.")
    row = of_head(runs[0].head_metrics, 1, 2).iloc[0]
    overall = with_error(row["ap_overall"] - row["ap_overall_bias"], row["ap_overall_se"])
    expect(page.locator("#head-facts")).to_contain_text(f"plasticity over a bucket {overall}")
    announced = f"Layer 1 · head 2: plasticity over a bucket {overall}"
    expect(page.locator("#announcement")).to_have_text(announced)
    cell = page.locator('[data-metric="ap_overall"]')
    expect(cell).to_have_text(overall)
    expect(cell).to_have_attribute(
        "title", f"ap_overall: {row['ap_overall']}; shown minus its bias"
    )
    counted = with_error(row["ap_counted"], row["ap_counted_se"])
    expect(page.locator('[data-metric="ap_counted"]')).to_have_text(counted)
    expect(page.locator('tr[aria-selected="true"] td').nth(1)).to_have_text(overall)
    assert f"<b>{overall}</b> plasticity" in map_traces(page)["heads"]["text"][1][2]
    cells = of_head(runs[0].bucket_plasticity, 1, 2)
    first = cells[(cells["q_bucket"] == 1) & (cells["k_bucket"] == 0)].iloc[0]
    value = with_error(first["plasticity"] - first["plasticity_bias"], first["plasticity_se"])
    text = data_of(page, "cells")[0]["text"][0][1]
    assert f"<b>{value}</b>" in text
    assert f"counted: {first['plasticity_counted']:.3f}" in text


def test_the_table_and_the_map_are_ordered_by_the_corrected_value(
    page: Page, runs: list[FinishedRun]
) -> None:
    table = runs[0].head_metrics
    values = corrected(table, "ap_drop")
    best = table.loc[values.sort_values(ascending=False).index]
    page.locator('[data-sort="ap_drop"]').click()
    settled(page)
    names = [f"L{row.layer} H{row.q_head}" for row in best.itertuples()]
    assert [name.rstrip("◇") for name in first_rows(page, 5)] == names[:5]
    page.locator('[data-sort="head"]').click()
    page.select_option("#metric", "ap_drop")
    settled(page)
    z = map_traces(page)["heads"]["z"]
    shown = [z[layer][head] for layer, head in zip(table["layer"], table["q_head"], strict=True)]
    np.testing.assert_allclose(shown, values, rtol=1e-6)


def test_the_profile_has_bands_of_intervals(page: Page, runs: list[FinishedRun]) -> None:
    tables = run_content(runs[0], "x")[1]
    rows = of_head(pd.DataFrame(tables["profiles"]), 1, 2)
    traces = {trace.get("name"): trace for trace in data_of(page, "profile")}
    for name, table in (
        ("interval of the head", rows),
        ("interval of the mean", pd.DataFrame(tables["mean"])),
    ):
        high, low = (table["plasticity"] + sign * table["half_width"] for sign in (1, -1))
        outline = [*high, *low[::-1], high[0]]
        assert traces[name]["y"][-1] is None
        np.testing.assert_allclose(traces[name]["y"][:-1], outline, rtol=1e-6)
        x = table["q_position"]
        np.testing.assert_allclose(traces[name]["x"][:-1], [*x, *x[::-1], x[0]], rtol=1e-6)
    keys = page.locator("#profile-keys")
    expect(keys).to_contain_text("this head, 95 % interval")
    expect(keys).to_contain_text("mean of heads, 95 % interval")
    expect(page.locator("#profile-note")).to_have_text(
        "values corrected for bias; intervals over texts"
    )
    page.locator("#profile .nsewdrag").first.hover(position={"x": 150, "y": 120})
    expect(page.locator("#profile .hoverlayer")).to_contain_text("95 % interval: ")
    value, half = rows["plasticity"][0], rows["half_width"][0]
    text = f"<br>95 % interval: {value - half:.3f} to {value + half:.3f}".replace("-", "−")
    assert data_of(page, "profile")[-1]["text"][0] == text


def test_the_switch_fades_heads_with_wide_intervals(page: Page, runs: list[FinishedRun]) -> None:
    unsure = unsure_heads(runs[0], "ap_overall")
    heads = len(runs[0].head_metrics)
    assert 0 < len(unsure) < heads
    switch = page.locator("#sure")
    expect(switch).not_to_be_checked()
    expect(page.get_by_label("How sure")).to_have_count(1)
    expect(page.locator("#sure-words")).to_contain_text(f"{len(unsure)} of {heads} heads")
    expect(page.locator("#sure-words")).to_contain_text("interquartile range of the corrected")
    assert "faded" not in map_traces(page)
    assert page.locator("tr.faded").count() == 0
    switch.focus()
    page.keyboard.press("Space")
    settled(page)
    z = map_traces(page)["faded"]["z"]
    assert {(i, j) for i, row in enumerate(z) for j, cell in enumerate(row) if cell} == unsure
    keys = page.locator("tr.row").evaluate_all(
        "rows => rows.map(r => [r.dataset.key, r.className])"
    )
    assert keys
    for key, classes in keys:
        layer, head = map(int, key.split("."))
        assert ("faded" in classes) == ((layer, head) in unsure)
    faded = page.locator("tr.faded").first
    assert float(faded.locator("td").first.evaluate("e => getComputedStyle(e).opacity")) < 0.6
    page.wait_for_url(lambda url: "sure=1" in url)
    page.select_option("#metric", "ap_drop")
    settled(page)
    assert faded_heads(page) == unsure_heads(runs[0], "ap_drop")
    switch.focus()
    page.keyboard.press("Space")
    settled(page)
    assert "faded" not in map_traces(page)
    assert page.locator("tr.faded").count() == 0


def test_uncertain_drops_are_faded_at_first(page: Page, runs: list[FinishedRun]) -> None:
    expect(page.locator("#sure")).not_to_be_checked()
    page.select_option("#metric", "ap_drop")
    settled(page)
    expect(page.locator("#sure")).to_be_checked()
    unsure = unsure_heads(runs[0], "ap_drop")
    assert 0 < len(unsure) < len(runs[0].head_metrics)
    assert faded_heads(page) == unsure
    expect(page.locator("#sure-words")).to_have_text(
        f"Fade heads whose 95 % interval contains 0: {len(unsure)} of 29 heads."
    )
    assert "sure=" not in page.url
    page.locator("#sure").uncheck()
    page.wait_for_url(lambda url: "sure=0" in url)
    assert "faded" not in map_traces(page)
    show(page, page.url.split("#")[1])
    expect(page.locator("#sure")).not_to_be_checked()


def test_the_switch_is_kept_in_the_address(page: Page) -> None:
    show(page, "run=sure&metric=ap_overall&sure=1")
    expect(page.locator("#sure")).to_be_checked()
    assert "faded" in map_traces(page)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("run=sure&metric=q_R2_total", "no standard errors for “variance from position”"),
        ("run=unknown&metric=ap_overall", "the standard errors of this run are not known"),
        ("run=earlier&metric=ap_overall", "the standard errors of this run are not known"),
    ],
)
def test_the_switch_is_disabled_with_a_reason(page: Page, address: str, reason: str) -> None:
    show(page, f"{address}&sure=1")
    expect(page.locator("#sure")).to_be_disabled()
    expect(page.locator("#sure")).not_to_be_checked()
    expect(page.locator("#sure-words")).to_have_text(f"Not available: {reason}.")
    assert "faded" not in map_traces(page)


def test_runs_with_and_without_errors_side_by_side(page: Page) -> None:
    show(page, "run=unknown&beside=sure&metric=ap_overall&sure=1")
    words = "not corrected for bias: unknown"
    expect(page.locator("#subtitle")).to_contain_text(words)
    expect(page.locator("#runs-meaning")).to_contain_text(f"{words}, earlier")
    names = page.evaluate("document.querySelectorAll('.map-plot')[1].data.map(t => t.name)")
    assert "gap" in names
    assert "faded" not in names  # the switch is disabled
    show(page, "run=sure&beside=unknown&metric=ap_overall&sure=1")
    expect(page.locator("#sure-words")).to_contain_text("heads of sure.")
    assert "faded" in map_traces(page)
    assert len(data_of(page, "runs-chart")) == 4  # one run of three has a band


def test_a_missing_value_has_its_reason(page: Page) -> None:
    show(page, "run=sure&head=0.4&metric=ap_first20")
    row = page.locator('#metrics tr:has([data-metric="ap_first20"])')
    expect(row.locator(".meaning")).to_have_text(f"missing: {REASON}")
    expect(row.locator(".value").first).to_contain_text("–")
    text = map_traces(page)["heads"]["text"]
    assert "missing: no query bucket" in text[0][4]
    assert "missing" not in text[0][3]
    show(page, "run=sure&head=0.3&metric=ap_first20")
    expect(row.locator(".meaning")).to_have_text("in the first fifth of the context")
    expect(page.locator("#cards")).not_to_contain_text("missing")


def test_a_card_without_a_value_has_the_reason(
    browser: Browser, tmp_path: Path, runs: list[FinishedRun]
) -> None:
    table = runs[1].head_metrics.assign(ap_drop=np.nan)
    heads = {str(layer): "0-99" for layer in set(table["layer"])}
    missing = {"table": "head_metrics", "columns": ["ap_drop"], "reason": "too short", "heads": 9}
    info = {**runs[1].info, "missing": [{**missing, "values": 9, "where": heads}]}
    run = replace(runs[1], info=info)
    run.__dict__["head_metrics"] = table  # a cached property
    path = make_report([run]).save(tmp_path / "report.html")
    with open_report(browser, path) as page:
        expect(page.locator(".card", has_text="Drop over")).to_contain_text("missing: too short")
        expect(page.locator(".card", has_text="Plasticity").first).not_to_contain_text("missing")


def test_heads_whose_model_differs_from_the_count_are_marked(page: Page) -> None:
    traces = map_traces(page)
    marks = list(zip(traces["gap"]["y"], traces["gap"]["x"], strict=True))
    assert marks == list(GAPS)
    words = "Gaussian model differs from the count, over a bucket"
    assert f"{words}: +0.050 ± 0.004" in traces["heads"]["text"][GAPS[0][0]][GAPS[0][1]]
    assert words not in traces["heads"]["text"][0][0]
    expect(page.locator("#gap-legend")).to_have_text(f"◇ {words} (2 heads)")
    mark = page.locator('[data-key="0.1"] .gap-mark')
    expect(mark).to_have_attribute("title", f"{words}: +0.050 ± 0.004")
    expect(page.locator('[data-key="0.0"] .gap-mark')).to_have_count(0)
    show(page, "run=sure&head=0.1")
    expect(page.locator("#head-facts")).to_contain_text(words)


def test_the_menu_has_a_group_of_errors_at_its_end(page: Page) -> None:
    groups = page.locator("#metric optgroup")
    assert groups.last.get_attribute("label") == "How sure"
    names = groups.last.locator("option").evaluate_all("all => all.map(o => o.value)")
    assert {"ap_overall_se", "ap_drop_bias", "ap_gaussian_gap_se", "n_text_groups"} <= set(names)
    plasticity = groups.first.locator("option").evaluate_all("all => all.map(o => o.value)")
    assert {"ap_counted", "ap_gaussian_gap"} <= set(plasticity)
    page.select_option("#metric", "ap_overall_se")
    settled(page)
    heads = map_traces(page)["heads"]
    known = [value for row in heads["z"] for value in row if value is not None]
    assert [heads["zmin"], heads["zmax"]] == [min(known), max(known)]


@pytest.mark.parametrize("number", [1, 2])
def test_a_page_of_a_run_without_errors_has_no_trace_of_them(
    browser: Browser, runs: list[FinishedRun], tmp_path: Path, number: int
) -> None:
    path = make_report(runs[number : number + 1]).save(tmp_path / "report.html")
    with browser.new_context(offline=True) as context:
        page = context.new_page()
        page.goto(f"{path.as_uri()}#head=1.2&sure=1")
        page.wait_for_selector(READY)
        expect(page.locator("#sure-line")).to_be_hidden()
        expect(page.locator("#gap-legend")).to_be_hidden()
        assert list(map_traces(page)) == ["heads"]
        assert len(data_of(page, "profile")) == 5
        value = of_head(runs[number].head_metrics, 1, 2)["ap_overall"].iloc[0]
        expect(page.locator('[data-metric="ap_overall"]')).to_have_text(f"{value:.3f}")
        labels = page.locator("#metric optgroup").evaluate_all("all => all.map(o => o.label)")
        assert labels[-1] == "Data"
        text = page.locator("body").inner_text()
        for words in ("±", "95 %", "corrected", "How sure", "Gaussian model", "Other columns"):
            assert words not in text
