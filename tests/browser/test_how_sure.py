"""Intervals on the page, groups of texts, and pages of runs without them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect

from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.page import make_report
from attention_plasticity.page.content import run_content
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import benjamini_hochberg, head_half_width, p_values
from report_pages import (
    READY,
    data_of,
    first_rows,
    mean_text,
    of_head,
    open_report,
    open_runs,
    settled,
    show,
    with_half,
    without_errors,
)
from report_runs import REASON, TEXT_GROUPS, write_run

LEVEL, DROP, FIRST = "ap_aligned", "ap_aligned_drop", "ap_aligned_first20"
FEW = "the rows come from fewer than 4 groups of texts"


def forget_errors(folder: Path) -> None:
    """Change a run as if its dump had three texts."""
    metrics = pd.read_csv(folder / "head_metrics.csv")
    errors = [name for name in metrics if name.endswith("_se")]
    metrics = metrics.assign(**dict.fromkeys(errors, np.nan), n_text_groups=3)
    metrics.to_csv(folder / "head_metrics.csv", index=False)
    influences = pd.read_csv(folder / "head_influences.csv")
    influences[list(GROUP_COLUMNS)] = np.nan
    influences.assign(n_groups=3).to_csv(folder / "head_influences.csv", index=False, na_rep="nan")
    info = json.loads((folder / "run.json").read_text())
    record = {"table": "head_metrics", "columns": errors, "reason": FEW, "heads": 29}
    info["missing"] = [{**record, "where": {str(layer): "0-5" for layer in range(5)}}]
    (folder / "run.json").write_text(json.dumps(info))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
    """A run with intervals, one of three texts, and one without plasticity at one position."""
    folder = tmp_path_factory.mktemp("how_sure")
    sure, few = (write_run(folder / name, position=True) for name in ("sure", "few"))
    forget_errors(few)
    return [FinishedRun.open(run) for run in (sure, few, write_run(folder / "bucket"))]


@pytest.fixture(scope="module")
def opened(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, runs: list[FinishedRun]
) -> Iterator[Page]:
    named = dict(zip(("sure", "few", "bucket"), runs, strict=True))
    with open_runs(browser, tmp_path_factory.mktemp("page"), named) as page:
        yield page


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    with without_errors(opened):
        show(opened, f"run=sure&head=1.2&metric={LEVEL}")
        yield opened


def map_traces(page: Page) -> dict[str, dict[str, Any]]:
    """Traces of the first map by name; the heads themselves have no name."""
    code = "JSON.parse(JSON.stringify(document.querySelector('.map-plot').data))"
    return {trace.get("name", "heads"): trace for trace in page.evaluate(code)}


def faded_heads(page: Page) -> set[tuple[int, int]]:
    z = map_traces(page)["faded"]["z"]
    return {(layer, head) for layer, row in enumerate(z) for head, one in enumerate(row) if one}


def half_of(run: FinishedRun, metric: str, layer: int, head: int) -> float:
    """Half of the 95 % interval of a metric of a head."""
    halves = head_half_width(run.head_metrics, metric, run.influences)
    table = run.head_metrics.assign(half=halves)
    return float(of_head(table, layer, head)["half"].iloc[0])


def unsure_heads(run: FinishedRun, metric: str) -> set[tuple[int, int]]:
    table = run.head_metrics
    values, half = table[metric], head_half_width(table, metric, run.influences)
    wide = 2 * half > values.quantile(0.75) - values.quantile(0.25)
    if metric == DROP:
        differs = benjamini_hochberg(p_values(table, DROP, run.influences))
        wide = np.isfinite(half) & ~differs
    return set(zip(table["layer"][wide], table["q_head"][wide], strict=True))


def test_plus_minus_is_half_of_the_interval_everywhere(page: Page, runs: list[FinishedRun]) -> None:
    expect(page.locator("#subtitle")).to_contain_text("±: half of the 95 % interval")
    for card, name in enumerate((LEVEL, "ap_phase", DROP)):
        expect(page.locator(".card .number").nth(card)).to_have_text(mean_text(runs[0], name))
    expect(page.locator(".card .number").nth(3)).not_to_contain_text("±")
    row = of_head(runs[0].head_metrics, 1, 2).iloc[0]
    level = with_half(row[LEVEL], half_of(runs[0], LEVEL, 1, 2))
    expect(page.locator("#head-facts")).to_contain_text(f"plasticity at one position {level}")
    announced = f"Layer 1 · head 2: plasticity at one position {level}"
    expect(page.locator("#announcement")).to_have_text(announced)
    cell = page.locator(f'[data-metric="{LEVEL}"]')
    expect(cell).to_have_text(level)
    expect(cell).to_have_attribute("title", f"{LEVEL}: {row[LEVEL]}")
    expect(page.locator('[data-metric="ap_overall"]')).to_have_text(f"{row['ap_overall']:.3f}")
    expect(page.locator('tr[aria-selected="true"] td').nth(1)).to_have_text(level)
    assert f"<b>{level}</b> plasticity" in map_traces(page)["heads"]["text"][1][2]
    cells = of_head(runs[0].table("bins"), 1, 2)
    first = cells[(cells["q_bin"] == 1) & (cells["k_bin"] == 0)].iloc[0]
    ratio = half_of(runs[0], LEVEL, 1, 2) / row[f"{LEVEL}_se"]  # of the same number of groups
    value = with_half(first["plasticity"], first["plasticity_se"] * ratio)
    assert f"<b>{value}</b>" in data_of(page, "cells")[0]["text"][0][1]


def test_how_sure_lists_values_with_halves_of_intervals_and_groups(
    page: Page, runs: list[FinishedRun]
) -> None:
    page.locator("#all-metrics").check()
    for name in (LEVEL, DROP, "ap_phase"):
        value = of_head(runs[0].head_metrics, 1, 2)[name].iloc[0]
        texts = [*with_half(value, half_of(runs[0], name, 1, 2)).split(" ± "), str(TEXT_GROUPS)]
        expect(page.locator(f'[data-sure="{name}"] td')).to_have_text(texts)
    expect(page.locator('[data-sure="ap_overall"]')).to_have_count(0)
    expect(page.locator('#metrics [data-metric$="_se"]')).to_have_count(0)
    page.locator("#all-metrics").uncheck()
    expect(page.locator(f'[data-sure="{LEVEL}"]')).to_be_hidden()


def test_the_table_and_the_map_are_ordered_by_the_value(
    page: Page, runs: list[FinishedRun]
) -> None:
    table = runs[0].head_metrics
    best = table.sort_values(DROP, ascending=False)
    page.locator(f'[data-sort="{DROP}"]').click()
    settled(page)
    assert first_rows(page, 5) == [f"L{row.layer} H{row.q_head}" for row in best[:5].itertuples()]
    page.locator('[data-sort="head"]').click()
    page.select_option("#metric", DROP)
    settled(page)
    z = map_traces(page)["heads"]["z"]
    shown = [z[layer][head] for layer, head in zip(table["layer"], table["q_head"], strict=True)]
    np.testing.assert_allclose(shown, table[DROP])


def test_the_profile_of_bins_has_bands_of_intervals(page: Page, runs: list[FinishedRun]) -> None:
    tables = run_content(runs[0], "x")[1]
    rows = of_head(pd.DataFrame(tables["profiles"]), 1, 2)
    traces = {trace.get("name"): trace for trace in data_of(page, "profile")}
    for name, table in (
        ("interval of the head", rows),
        ("interval of the mean", pd.DataFrame(tables["mean_0"])),
    ):
        high, low = (table["plasticity"] + sign * table["half_width"] for sign in (1, -1))
        outline = [*high, *low[::-1], high[0]]
        assert traces[name]["y"][-1] is None
        np.testing.assert_allclose(traces[name]["y"][:-1], outline, rtol=1e-6)
        x = table["q_position"]
        np.testing.assert_allclose(traces[name]["x"][:-1], [*x, *x[::-1], x[0]], rtol=1e-6)
    keys = page.locator("#profile-keys")
    expect(keys).to_contain_text("this head, at one position, 95 % interval")
    expect(keys).to_contain_text("mean of heads, 95 % interval")
    expect(page.locator("#profile-note")).to_have_text("intervals over texts")
    page.locator("#profile .nsewdrag").first.hover(position={"x": 150, "y": 120})
    expect(page.locator("#profile .hoverlayer")).to_contain_text("95 % interval: ")
    value, half = rows["plasticity"][0], rows["half_width"][0]
    text = f"<br>95 % interval: {value - half:.3f} to {value + half:.3f}".replace("-", "−")
    assert data_of(page, "profile")[-1]["text"][0] == text


def test_the_profile_of_buckets_has_none(page: Page) -> None:
    show(page, "run=bucket&head=1.2")
    assert [trace for trace in data_of(page, "profile") if trace.get("fill") == "toself"] == []
    expect(page.locator("#profile-keys")).not_to_contain_text("95 % interval")
    expect(page.locator("#profile-note")).to_have_text("")


def test_bins_of_few_texts_are_not_drawn(
    browser: Browser, tmp_path: Path, runs: list[FinishedRun]
) -> None:
    last = runs[0].table("bins")["q_bin"].max()
    bins = runs[0].table("bins").copy()
    values = ["plasticity", "plasticity_se", "pooled", "pooled_se"]
    bins.loc[bins["q_bin"] == last, [*values, "n_texts"]] = [np.nan] * 4 + [2]
    influences = runs[0].influences
    assert influences is not None
    run = replace(runs[0])
    vars(run)["_tables"]["bins"] = bins
    vars(run)["influences"] = influences[influences["bin"] != last]
    path = make_report([run]).save(tmp_path / "report.html")
    with open_report(browser, path) as page, without_errors(page):
        page.wait_for_selector(READY)
        expect(page.locator("#profile-note")).to_contain_text(
            "bins with fewer than 4 texts, or too few pairs of keys, are not drawn"
        )
        traces = data_of(page, "profile")
        assert traces[-1]["y"][-1] is None
        assert None not in traces[-1]["y"][:-1]
        mean = next(one for one in traces if one.get("name", "").startswith("mean of heads"))
        assert len(mean["y"]) == len(traces[-1]["y"]) - 1
        [strip] = [trace for trace in traces if trace.get("name") == "texts"]
        assert strip["z"][0][-1] == 2
        assert all(row[last] is None for row in data_of(page, "cells")[0]["z"])
        expect(page.locator("#cells-note")).to_contain_text("or fewer than 4 texts")


def test_the_switch_fades_heads_with_wide_intervals(page: Page, runs: list[FinishedRun]) -> None:
    unsure = unsure_heads(runs[0], LEVEL)
    heads = len(runs[0].head_metrics)
    assert 0 < len(unsure) < heads
    switch = page.locator("#sure")
    expect(switch).not_to_be_checked()
    expect(page.get_by_label("How sure")).to_have_count(1)
    expect(page.locator("#sure-words")).to_contain_text(f"{len(unsure)} of {heads} heads")
    expect(page.locator("#sure-words")).to_contain_text("(interquartile range, 0.")
    assert "faded" not in map_traces(page)
    assert page.locator("tr.faded").count() == 0
    switch.focus()
    page.keyboard.press("Space")
    settled(page)
    assert faded_heads(page) == unsure
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
    page.select_option("#metric", DROP)
    settled(page)
    assert faded_heads(page) == unsure_heads(runs[0], DROP)
    switch.focus()
    page.keyboard.press("Space")
    settled(page)
    assert "faded" not in map_traces(page)
    assert page.locator("tr.faded").count() == 0


def test_uncertain_drops_are_faded_at_first(page: Page, runs: list[FinishedRun]) -> None:
    expect(page.locator("#sure")).not_to_be_checked()
    page.select_option("#metric", DROP)
    settled(page)
    expect(page.locator("#sure")).to_be_checked()
    unsure = unsure_heads(runs[0], DROP)
    assert 0 < len(unsure) < len(runs[0].head_metrics)
    assert faded_heads(page) == unsure
    expect(page.locator("#sure-words")).to_have_text(
        "Fade heads whose drop does not differ from 0, with a correction for the number of heads "
        f"(false discovery rate 5 %): {len(unsure)} of 29 heads."
    )
    assert "sure=" not in page.url
    page.locator("#sure").uncheck()
    page.wait_for_url(lambda url: "sure=0" in url)
    assert "faded" not in map_traces(page)
    show(page, page.url.split("#")[1])
    expect(page.locator("#sure")).not_to_be_checked()


def test_the_switch_is_kept_in_the_address(page: Page) -> None:
    show(page, f"run=sure&metric={LEVEL}&sure=1")
    expect(page.locator("#sure")).to_be_checked()
    assert "faded" in map_traces(page)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("run=sure&metric=q_R2_total", "“variance from position” has no interval"),
        (f"run=few&metric={LEVEL}", f"the values of this run have no intervals: {FEW}"),
        ("run=bucket&metric=ap_overall", "the values of this run have no intervals"),
    ],
)
def test_the_switch_is_disabled_with_a_reason(page: Page, address: str, reason: str) -> None:
    show(page, f"{address}&sure=1")
    expect(page.locator("#sure")).to_be_disabled()
    expect(page.locator("#sure")).not_to_be_checked()
    expect(page.locator("#sure-words")).to_have_text(f"Not available: {reason}.")
    assert "faded" not in map_traces(page)


def test_runs_with_and_without_intervals_side_by_side(page: Page) -> None:
    show(page, f"run=few&beside=sure&metric={LEVEL}&sure=1")
    names = page.evaluate("document.querySelectorAll('.map-plot')[1].data.map(t => t.name)")
    assert "faded" not in names  # the switch is disabled
    show(page, f"run=sure&beside=few&metric={LEVEL}&sure=1")
    expect(page.locator("#sure-words")).to_contain_text("heads of sure.")
    assert "faded" in map_traces(page)
    assert len(data_of(page, "runs-chart")) == 4  # one run of three has a band


def test_a_missing_value_has_its_reason(page: Page) -> None:
    show(page, f"run=sure&head=0.4&metric={FIRST}")
    row = page.locator(f'#metrics tr:has([data-metric="{FIRST}"])')
    expect(row.locator(".meaning")).to_have_text(f"missing: {REASON}")
    expect(row.locator(".value").first).to_contain_text("–")
    text = map_traces(page)["heads"]["text"]
    assert "missing: no bin with key pairs is in &lt;this&gt; fifth" in text[0][4]
    assert "missing" not in text[0][3]
    show(page, f"run=sure&head=0.3&metric={FIRST}")
    expect(row.locator(".meaning")).to_contain_text("in the first fifth of the longest text")
    expect(page.locator("#cards")).not_to_contain_text("missing")


def test_a_card_without_a_value_has_the_reason(
    browser: Browser, tmp_path: Path, runs: list[FinishedRun]
) -> None:
    table = runs[1].head_metrics.assign(**{DROP: np.nan})
    heads = {str(layer): "0-99" for layer in set(table["layer"])}
    missing = {"table": "head_metrics", "columns": [DROP], "reason": "too short", "heads": 9}
    run = replace(runs[1], info={**runs[1].info, "missing": [{**missing, "where": heads}]})
    vars(run)["_tables"]["head_metrics"] = table
    path = make_report([run]).save(tmp_path / "report.html")
    with open_report(browser, path) as page:
        expect(page.locator(".card", has_text="Drop over")).to_contain_text("missing: too short")
        expect(page.locator(".card", has_text="Plasticity").first).not_to_contain_text("missing")


def test_the_menu_of_colours_is_short_and_grows_on_demand(page: Page) -> None:
    options = page.locator("#metric option")
    assert options.count() < 25
    names = options.evaluate_all("all => all.map(o => o.value)")
    assert LEVEL in names
    assert "q_resid0_skew" not in names
    page.select_option("#metric", label=options.last.text_content())
    expect(page.locator("#metric")).to_have_value(LEVEL)
    page.select_option("#metric", "q_resid0_skew")
    settled(page)
    assert not [name for name in names if name.endswith("_se")]


def test_a_page_of_a_run_without_errors_has_no_trace_of_them(
    browser: Browser, runs: list[FinishedRun], tmp_path: Path
) -> None:
    path = make_report(runs[2:]).save(tmp_path / "report.html")
    with browser.new_context(offline=True) as context:
        page = context.new_page()
        page.goto(f"{path.as_uri()}#head=1.2&sure=1")
        page.wait_for_selector(READY)
        expect(page.locator("#sure-line")).to_be_hidden()
        assert list(map_traces(page)) == ["heads"]
        assert len(data_of(page, "profile")) == 5
        value = of_head(runs[2].head_metrics, 1, 2)["ap_overall"].iloc[0]
        expect(page.locator('[data-metric="ap_overall"]')).to_have_text(f"{value:.3f}")
        labels = page.locator("#metric optgroup").evaluate_all("all => all.map(o => o.label)")
        assert labels[-1] == "Data"
        text = page.locator("body").inner_text()
        for words in ("±", "95 %", "How sure", "Other columns"):
            assert words not in text
