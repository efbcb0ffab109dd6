"""Intervals on the page, groups of texts, and pages of runs without them."""

import numpy as np
import pandas as pd
from playwright.sync_api import expect

from attention_plasticity.page.content import run_content
from attention_plasticity.tables.intervals import benjamini_hochberg, head_half_width, p_values
from helpers.report_pages import FEW, data_of, mean_text, of_head, settled, show, with_half
from helpers.report_runs import REASON, TEXT_GROUPS

LEVEL, DROP, FIRST = "ap_aligned", "ap_aligned_drop", "ap_aligned_first20"


def map_traces(page):
    """Traces of the first map by name; the heads themselves have no name."""
    code = "JSON.parse(JSON.stringify(document.querySelector('.map-plot').data))"
    return {trace.get("name", "heads"): trace for trace in page.evaluate(code)}


def faded_heads(page):
    z = map_traces(page)["faded"]["z"]
    return {(layer, head) for layer, row in enumerate(z) for head, one in enumerate(row) if one}


def half_of(run, metric, layer, head):
    """Half of the 95 % interval of a metric of a head."""
    halves = head_half_width(run.head_metrics, metric, run.influences)
    table = run.head_metrics.assign(half=halves)
    return float(of_head(table, layer, head)["half"].iloc[0])


def unsure_heads(run, metric):
    table = run.head_metrics
    values, half = table[metric], head_half_width(table, metric, run.influences)
    wide = 2 * half > values.quantile(0.75) - values.quantile(0.25)
    if metric == DROP:
        differs = benjamini_hochberg(p_values(table, DROP, run.influences))
        wide = np.isfinite(half) & ~differs
    return set(zip(table["layer"][wide], table["q_head"][wide], strict=True))


def test_plus_minus_is_half_of_the_interval_everywhere(page, runs):
    expect(page.locator("#subtitle")).to_contain_text("±: half of the 95 % interval")
    for card, name in enumerate((LEVEL, "ap_phase", "ap_aligned_drop_position")):
        expect(page.locator(".card .number").nth(card)).to_have_text(mean_text(runs["full"], name))
    pooled = mean_text(runs["full"], "ap_pooled")
    expect(page.locator(".card").nth(1)).to_contain_text(f"over a bin of 64 tokens: {pooled}")
    expect(page.locator(".card .number").nth(3)).not_to_contain_text("±")
    row = of_head(runs["full"].head_metrics, 1, 2).iloc[0]
    level = with_half(row[LEVEL], half_of(runs["full"], LEVEL, 1, 2))
    expect(page.locator("#head-facts")).to_contain_text(f"RoPE-aligned plasticity {level}")
    announced = f"Layer 1 · head 2: RoPE-aligned plasticity {level}"
    expect(page.locator("#announcement")).to_have_text(announced)
    cell = page.locator(f'[data-metric="{LEVEL}"]')
    expect(cell).to_have_text(level)
    title = f"{LEVEL}: {row[LEVEL]}; interval from {TEXT_GROUPS} groups of texts"
    expect(cell).to_have_attribute("title", title)
    expect(page.locator('[data-metric="ap_overall"]')).to_have_text(f"{row['ap_overall']:.3f}")
    expect(page.locator('tr[aria-selected="true"] td').nth(1)).to_have_text(level)
    assert f"<b>{level}</b> RoPE-aligned plasticity" in map_traces(page)["heads"]["text"][1][2]
    cells = of_head(runs["full"].table("bins"), 1, 2)
    first = cells[(cells["q_bin"] == 1) & (cells["k_bin"] == 0)].iloc[0]
    ratio = half_of(runs["full"], LEVEL, 1, 2) / row[f"{LEVEL}_se"]  # of the same number of groups
    value = with_half(first["plasticity"], first["plasticity_se"] * ratio)
    assert f"<b>{value}</b>" in data_of(page, "cells")[0]["text"][0][1]


def test_the_profile_of_bins_has_bands_of_intervals(page, runs):
    tables = run_content(runs["full"], "x")[1]
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
    expect(keys).to_contain_text("this head, RoPE-aligned, 95 % interval")
    expect(keys).to_contain_text("mean of heads, 95 % interval")
    expect(page.locator("#profile-note")).to_have_text("intervals over texts")
    page.locator("#profile .nsewdrag").first.hover(position={"x": 150, "y": 120})
    expect(page.locator("#profile .hoverlayer")).to_contain_text("95 % interval: ")
    value, half = rows["plasticity"][0], rows["half_width"][0]
    text = f"<br>95 % interval: {value - half:.3f} to {value + half:.3f}".replace("-", "−")
    assert data_of(page, "profile")[-1]["text"][0] == text


def test_the_switch_fades_heads_with_wide_intervals(page, runs):
    unsure = unsure_heads(runs["full"], LEVEL)
    heads = len(runs["full"].head_metrics)
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
    switch.focus()
    page.keyboard.press("Space")
    settled(page)
    assert "faded" not in map_traces(page)
    assert page.locator("tr.faded").count() == 0


def test_uncertain_drops_are_faded_at_first(page, runs):
    expect(page.locator("#sure")).not_to_be_checked()
    page.select_option("#metric", DROP)
    settled(page)
    expect(page.locator("#sure")).to_be_checked()
    unsure = unsure_heads(runs["full"], DROP)
    assert 0 < len(unsure) < len(runs["full"].head_metrics)
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


def test_the_switch_is_disabled_with_a_reason(page):
    for address, reason in (
        ("run=full&metric=q_R2_total", "“variance from position” has no interval"),
        (f"run=few&metric={LEVEL}", f"the values of this run have no intervals: {FEW}"),
        ("run=bucket&metric=ap_overall", "the values of this run have no intervals"),
    ):
        show(page, f"{address}&sure=1")
        expect(page.locator("#sure")).to_be_disabled()
        expect(page.locator("#sure")).not_to_be_checked()
        expect(page.locator("#sure-words")).to_have_text(f"Not available: {reason}.")
        assert "faded" not in map_traces(page)


def test_a_missing_value_has_its_reason(page):
    show(page, f"run=full&head=0.4&metric={FIRST}")
    row = page.locator(f'#metrics tr:has([data-metric="{FIRST}"])')
    expect(row.locator(".meaning")).to_have_text(f"missing: {REASON}")
    expect(row.locator(".value").first).to_contain_text("–")
    text = map_traces(page)["heads"]["text"]
    assert "missing: no bin with key pairs is in &lt;this&gt; fifth" in text[0][4]
    assert "missing" not in text[0][3]
    show(page, f"run=full&head=0.3&metric={FIRST}")
    expect(row.locator(".meaning")).to_contain_text("in the first fifth of the longest text")
    expect(page.locator("#cards")).not_to_contain_text("missing")
