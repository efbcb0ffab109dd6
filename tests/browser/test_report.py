"""The page in a browser: what it shows is what the tables hold, and every control works."""

import re
from urllib.parse import quote, quote_plus

import numpy as np
import pytest
from playwright.sync_api import expect

from attention_plasticity.tables.profiles import head_profiles, profiles_of
from helpers.report_pages import (
    EVIL,
    READY,
    WARNINGS,
    data_of,
    first_rows,
    of_head,
    settled,
    show,
    singles,
)
from helpers.report_runs import BUCKETS, HEADS, LAYERS


@pytest.fixture
def run(runs):
    return runs["bucket"]


@pytest.fixture
def page(page):
    """The shared page with a head of the run `bucket`."""
    show(page, "run=bucket&head=1.2&metric=ap_overall")
    yield page
    assert page.evaluate("window.harmed") is None


def click_map(page, layer, head, number=0):
    """A click in the middle of a head, by the box in which Plotly drew the map."""
    plot = page.locator(".map-plot .nsewdrag").nth(number)
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box
    page.mouse.click(
        box["x"] + (head + 0.5) * box["width"] / HEADS,
        box["y"] + (layer + 0.5) * box["height"] / LAYERS,
    )
    settled(page)


def test_a_click_on_the_map_shows_that_head_in_every_view(page, run):
    click_map(page, 3, 4)
    expect(page.locator("#head-title")).to_have_text("Layer 3 · head 4")
    expect(page.locator("#announcement")).to_contain_text(
        "Layer 3 · head 4: plasticity over a bucket 0."
    )
    drawn = page.evaluate("JSON.parse(JSON.stringify(document.querySelector('.map-plot').data))")
    shown_metric = run.head_metrics[["layer", "q_head", "ap_overall"]]
    for layer, head, value in shown_metric.itertuples(index=False):
        assert drawn[0]["z"][layer][head] == value
    ticks = page.locator(".map-plot .ytick text").evaluate_all(
        "all => all.map(one => [Number(one.textContent), one.getBoundingClientRect().y])"
    )
    assert len(ticks) > 1
    assert [tick[1] for tick in sorted(ticks)] == sorted(y for _, y in ticks)  # layer 0 on top
    row = of_head(run.head_metrics, 3, 4).iloc[0]
    known = run.head_metrics.dropna(axis="columns", how="all")
    for name in known.columns.drop(["layer", "q_head", "k_head", "layer_type"]):
        title = page.locator(f'[data-metric="{name}"]').get_attribute("title") or ""
        shown = float(title.removeprefix(f"{name}: "))
        assert shown == row[name] or (np.isnan(shown) and np.isnan(row[name]))
    cells = of_head(run.bucket_plasticity, 3, 4)
    [heatmap] = data_of(page, "cells")
    assert len(heatmap["z"]) == BUCKETS
    values = singles(cells["plasticity"])
    for q, k, value in zip(cells["q_bucket"], cells["k_bucket"], values, strict=True):
        assert heatmap["z"][k][q] == value
    assert sum(value is not None for line in heatmap["z"] for value in line) == len(cells)
    assert "queries 128–255" in heatmap["text"][0][1]
    profiles = head_profiles(run.bucket_plasticity)
    _, low, high, mean, head = data_of(page, "profile")
    assert head["y"] == singles(of_head(profiles, 3, 4)["plasticity"])
    assert head["x"] == [128 * b + 63.25 for b in range(1, BUCKETS)]
    expected = profiles_of(run, "ap_overall")
    for trace, values in zip((low, high), expected.spread((0.25, 0.75)), strict=True):
        np.testing.assert_allclose(trace["y"], values)
    np.testing.assert_allclose(mean["y"], expected.mean)


def test_arrow_keys_move_over_what_was_captured(page):
    page.locator(".map-plot").focus()
    for key, title in (
        ("ArrowRight", "Layer 1 · head 3"),
        ("ArrowDown", "Layer 3 · head 3"),  # over the head that is missing
        ("ArrowLeft", "Layer 3 · head 2"),
        ("ArrowUp", "Layer 2 · head 2"),
        ("ArrowRight", "Layer 2 · head 4"),
    ):
        page.keyboard.press(key)
        expect(page.locator("#head-title")).to_have_text(title)
    for _ in range(HEADS):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#head-title")).to_have_text("Layer 2 · head 5")


def test_the_search_finds_heads_by_name(page):
    for sought, found in (
        ("l3h4", ["L3 H4"]),
        ("L3 H4", ["L3 H4"]),
        ("3.4", ["L3 H4"]),
        ("layer 3", [f"L3 H{head}" for head in range(HEADS)]),
        ("head 1", [f"L{layer} H1" for layer in range(LAYERS)]),
        ("head 1, layer 3", ["L3 H1"]),
        ("sliding", [f"L1 H{head}" for head in range(HEADS)]),
        ("l2h3", []),
        ("[nonsense", []),
    ):
        page.locator("#head-panel").focus()
        page.keyboard.press("/")
        expect(page.locator("#search")).to_be_focused()
        page.keyboard.type(sought)
        expect(page.locator("#found")).to_have_text(f"{len(found)} of {LAYERS * HEADS - 1} heads")
        assert first_rows(page, 99) == found
        page.keyboard.press("Enter")
        if found:
            layer, head = re.findall(r"\d+", found[0])
            expect(page.locator("#head-title")).to_have_text(f"Layer {layer} · head {head}")
        page.keyboard.press("Escape")
        expect(page.locator("#search")).to_have_value("")


def test_the_table_sorts_and_is_walked_by_keys(page, run):
    ordered = run.head_metrics.sort_values("ap_overall", ascending=False, kind="stable")
    names = [f"L{row.layer} H{row.q_head}" for row in ordered.itertuples()]
    click_map(page, 4, 4)
    assert page.evaluate("document.getElementById('heads').scrollTop") > 0
    page.locator('[data-sort="ap_overall"]').click()
    settled(page)
    assert page.evaluate("document.getElementById('heads').scrollTop") == 0
    assert first_rows(page, 5) == names[:5]
    expect(page.locator("#head-title")).to_have_text("Layer 4 · head 4")
    page.locator('[data-sort="ap_overall"]').press("Enter")
    expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "ascending")
    settled(page)
    page.locator("#heads-table").focus()
    page.keyboard.press("Home")
    expect(page.locator('tr[aria-selected="true"] td').first).to_have_text(names[-1])
    page.keyboard.press("ArrowDown")
    expect(page.locator('tr[aria-selected="true"] td').first).to_have_text(names[-2])
    page.keyboard.press("End")
    expect(page.locator('tr[aria-selected="true"] td').first).to_have_text(names[0])
    active = page.locator("#heads-table").get_attribute("aria-activedescendant")
    assert active == f"head-{ordered.layer.iloc[0]}.{ordered.q_head.iloc[0]}"
    page.locator('[data-sort="head"]').click()


def test_runs_are_switched_and_put_side_by_side(page, runs):
    pair = runs["bucket"], runs[EVIL]
    page.select_option("#beside", label=EVIL)
    settled(page)
    assert page.locator(".map-plot").count() == 2
    traces = data_of(page, "profile")
    other, head = traces[-2:]
    profiles = [head_profiles(run.bucket_plasticity) for run in pair]
    assert head["y"] == singles(of_head(profiles[0], 1, 2)["plasticity"])
    assert other["y"] == singles(of_head(profiles[1], 1, 2)["plasticity"])
    assert other["line"]["dash"] == "dash"
    click_map(page, 4, 1, number=1)
    expect(page.locator("#head-title")).to_have_text("Layer 4 · head 1")
    change = page.locator('tr[aria-selected="true"] td').last.text_content() or ""
    values = [of_head(run.head_metrics, 4, 1)["ap_overall"].iloc[0] for run in pair]
    assert float(change.replace("−", "-")) == pytest.approx(values[0] - values[1], abs=5.1e-4)
    page.select_option("#run", label=EVIL)
    settled(page)
    expect(page.locator("#beside option:checked")).to_have_text("bucket")
    assert data_of(page, "profile")[-1]["y"] == singles(of_head(profiles[1], 4, 1)["plasticity"])
    drawn = [trace for trace in data_of(page, "runs-chart") if trace.get("fill") != "toself"]
    assert len(drawn) == len(runs)
    page.locator("#runs-table button").first.click()
    expect(page.locator("#run")).to_have_value("0")


def test_names_are_shown_as_text(page):
    show(page, f"run={quote(EVIL)}&beside=bucket")
    expect(page.locator("#run option:checked")).to_have_text(EVIL)
    expect(page.locator(".map figcaption span").first).to_have_text(EVIL)
    expect(page.locator("#profile-keys")).to_contain_text("bucket")
    show(page, f"run=bucket&beside={quote(EVIL)}")
    expect(page.locator("#profile-keys")).to_contain_text(EVIL)
    assert "&lt;/script&gt;" in data_of(page, "profile")[-2]["hovertemplate"]
    page.locator("#provenance-panel summary").click()
    expect(page.locator("#provenance-list")).to_contain_text(f"owner/{EVIL}")
    page.locator("#provenance-panel summary").click()


def test_tables_of_the_original_tool_are_shown(page, runs):
    show(page, "run=old&head=3.4")
    value = of_head(runs["old"].head_metrics, 3, 4)["ap_overall"].iloc[0]
    expect(page.locator('[data-metric="ap_overall"]')).to_have_text(f"{value:.3f}")
    assert data_of(page, "profile")[-1]["x"] == list(range(1, BUCKETS))
    expect(page.locator("#profile")).to_have_attribute("data-x", "query bucket")


def test_the_address_brings_the_view_back(page):
    click_map(page, 4, 4)
    page.select_option("#beside", label=EVIL)
    page.wait_for_url(lambda url: f"beside={quote_plus(EVIL)}" in url)
    page.select_option("#metric", "q_R2_total")
    page.select_option("#beside", label="old")
    page.wait_for_url(lambda url: "beside=old" in url)
    address = page.url
    assert "head=4.4" in address
    page.reload()
    page.wait_for_selector(READY)
    expect(page.locator("#head-title")).to_have_text("Layer 4 · head 4")
    expect(page.locator("#metric")).to_have_value("q_R2_total")
    expect(page.locator("#beside option:checked")).to_have_text("old")


def test_every_control_can_be_reached_and_is_named(page):
    unnamed = page.evaluate(
        """[...document.querySelectorAll('select, input, button, [tabindex="0"], [role=img]')]
        .filter(e => e.offsetParent && !e.ariaLabel && !e.getAttribute('aria-label')
            && !e.textContent.trim() && !e.labels?.length).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []
    page.locator("#skip").focus()
    reached = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"run", "beside", "theme", "metric", "search", "heads-table"} <= reached
    assert any("map-plot" in name for name in reached)


def test_warnings_of_the_run_are_shown_and_of_no_other(page):
    lines = page.locator("#warnings li")
    note = "RoPE-aligned plasticity is not known: the tables of this run do not have it."
    assert lines.all_text_contents() == [note, *WARNINGS]
    show(page, "run=old")
    assert lines.all_text_contents() == [note]
    show(page, "run=old&beside=bucket")
    both = [f"old: {note}", *(f"bucket: {text}" for text in (note, *WARNINGS))]
    assert lines.all_text_contents() == both
