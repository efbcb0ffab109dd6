"""Cards of the page: attention, one position, key heads and baselines."""

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import expect

from attention_plasticity.page.content import run_content
from attention_plasticity.tables.attention_masses import mass_bins, masses_without_sinks
from attention_plasticity.tables.intervals import half_width
from helpers.added_tables import DISTANT
from helpers.report_pages import data_of, mean_text, of_head, settled, show, with_half
from helpers.report_runs import BIN_SIZE


def head_masses(run, table):
    return masses_without_sinks(table, mass_bins(run.table("attention")), run.geometry)


def test_bars_are_the_masses_of_all_queries_or_of_one_bucket(page, runs):
    table = runs["full"].table("attention")
    bins = mass_bins(table)
    bars, mean = data_of(page, "attention")
    of_all = head_masses(runs["full"], table)
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
    chosen = head_masses(runs["full"], table[table["q_bucket"] == 3])
    bars, mean = data_of(page, "attention")
    np.testing.assert_allclose(bars["y"], chosen.values[place], atol=1e-4)
    np.testing.assert_allclose(bars["error_y"]["array"], chosen.half[place], atol=1e-4)
    del mean["y"][1]  # the gap between the first four tokens and the distances
    np.testing.assert_allclose(mean["y"], chosen.values.mean(axis=0), atol=1e-4)
    expect(keys).not_to_contain_text("upper bound")
    page.locator("#attention .nsewdrag").hover(position={"x": 100, "y": 120})
    expect(page.locator("#attention .hoverlayer")).to_contain_text("95 % interval: ")
    page.select_option("#attention-queries", "")


def test_two_runs_are_compared(page, runs):
    show(page, "run=other&beside=full&head=1.2")
    bars, _, other = data_of(page, "attention")
    for run, trace in ((runs["other"], bars), (runs["full"], other)):
        rows = of_head(run.table("attention"), 1, 2)
        np.testing.assert_allclose(trace["y"], head_masses(run, rows).values[0], atol=1e-4)
    assert [bars["error_y"]["visible"], other["error_y"]["visible"]] == [False, True]
    expect(page.locator("#attention-keys")).to_contain_text("same head, full")
    for name in ("attn_sink_mass", "attn_far_mass"):
        expect(page.locator(f'[data-fact="{name}"] .other')).to_contain_text("±")
    show(page, "run=full&beside=bucket&head=1.2")
    expect(page.locator("#attention-keys")).to_contain_text("bucket: not known")


def test_heads_and_runs_without_attention_have_no_card(page):
    card = page.locator("#attention-panel")
    views = (("run=full&head=4.5", False), ("run=full&head=0.0", True), ("run=bucket", False))
    for address, shown in views:
        show(page, address)
        expect(card).to_be_visible() if shown else expect(card).to_be_hidden()
    show(page, "run=full&head=0.0")
    sizes = "['#attention', '#attention .main-svg'].map(s => document.querySelector(s).clientWidth)"
    place, drawn = page.evaluate(sizes)
    assert place == drawn > 400


POSITION, BUCKET = "RoPE-aligned plasticity", "plasticity over a bucket"


def test_profile_and_cells_are_those_of_bins(page, runs):
    show(page, "run=full&head=1.2")
    rows = of_head(pd.DataFrame(run_content(runs["full"], "x")[1]["profiles"]), 1, 2)
    traces = {trace.get("name"): trace for trace in data_of(page, "profile")}
    pooled = traces["over a bin, with rotary phase"]
    np.testing.assert_allclose(pooled["y"], rows["pooled"])
    assert "95 % interval: " in pooled["text"][0]
    assert "interval over a bin" in traces
    expect(page.locator("#profile")).to_have_attribute("data-y", POSITION)
    cells = of_head(runs["full"].table("bins"), 1, 2)
    first = cells[(cells["q_bin"] == 3) & (cells["k_bin"] == 1)].iloc[0]
    (shown,) = data_of(page, "cells")
    assert shown["z"][1][3] == pytest.approx(first["plasticity"], rel=1e-5)
    assert f"over a bin: {first['pooled']:.3f}<br>" in shown["text"][1][3]
    assert f"queries {3 * BIN_SIZE}–{4 * BIN_SIZE - 1}" in shown["text"][1][3]
    expect(page.locator("#cells-note")).to_contain_text(f"{POSITION} per query bin and key bin")


def test_a_run_over_a_bucket_is_named_beside_one_at_one_position(page, runs):
    show(page, "run=full&beside=bucket")
    expect(page.locator(".card h2").first).to_have_text("Plasticity over a bucket")
    assert page.locator("#metric").input_value() == "ap_overall"
    for run, number in ((runs["full"], ".number"), (runs["bucket"], ".number .other")):
        text = f"{run.head_metrics['ap_overall'].mean():.3f}"
        expect(page.locator(f".card {number}").first).to_contain_text(text)
    expect(page.locator("#subtitle")).to_contain_text(
        "Plasticity over a bucket is compared, because bucket has no RoPE-aligned plasticity"
    )
    expect(page.locator("#profile")).to_have_attribute("data-y", "plasticity")
    names = page.locator("#runs-table th").all_text_contents()
    assert POSITION in names
    assert BUCKET in names
    expect(page.locator("#runs-note")).to_contain_text("over a bucket: bucket")


def test_the_key_head_of_the_selected_head_is_marked(page, runs):
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
    budget = run_content(run, "x")[1].get("key_heads", {})
    assert ("kept_50" in budget) == ("Key budget" in page.locator("#head-budget").inner_text())
    text = with_half(row["aligned_plasticity"], float(half))
    assert text in current.locator("td").all_text_contents()


def test_a_run_without_these_tables_has_no_card_of_them(page):
    show(page, "run=bucket")
    for name in ("key-heads", "role", "attention"):
        expect(page.locator(f"#{name}-panel")).to_be_hidden()


WORDS = ("random weights", "shuffled tokens")
CARDS = {
    "RoPE-aligned plasticity": "ap_aligned",
    "Rotary phase": "ap_phase",
    "Drop from position": "ap_aligned_drop_position",
}


def shown_on_cards(run, page):
    for title, metric in CARDS.items():
        lines = page.locator(".card", has=page.get_by_role("heading", name=title, exact=True))
        rows = lines.locator(".baselines div")
        expect(rows).to_have_count(len(WORDS))
        for row, words in zip(rows.all(), WORDS, strict=True):
            value = mean_text(run.baselines[words][0], metric)
            assert row.inner_text().replace("\n", " ") == f"{words} {value}"
            assert row.get_attribute("title") == "baseline, 8 texts"


def lines(page):
    """The lines of baselines in the profile, by their first words."""
    traces = [trace for trace in data_of(page, "profile") if "dash" in trace.get("line", {})]
    return {trace["name"].split(",")[0]: trace["y"] for trace in traces}


def test_cards_and_profile_show_the_baselines(page, runs):
    run = runs["full"]
    show(page, "run=full")
    shown_on_cards(run, page)
    bins = run.baselines["random weights"][0].table("bins")["q_bin"].nunique()
    assert [len(lines(page)[words]) for words in WORDS] == [bins, bins]
    bands = [trace["name"] for trace in data_of(page, "profile") if trace.get("fill") == "toself"]
    assert {f"interval, {words}" for words in WORDS} <= set(bands)
    for words in WORDS:
        expect(page.locator("#profile-keys")).to_contain_text(f"{words}, mean of heads")
