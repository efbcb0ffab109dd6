"""The card "Where attention goes", the metrics of attention, and pages of runs without them."""

from __future__ import annotations

import numpy as np
import pandas as pd
from playwright.sync_api import Page, expect

from attention_plasticity.tables.attention_masses import HeadMasses, mass_bins, masses_without_sinks
from attention_plasticity.tables.finished_run import FinishedRun
from attention_runs import DISTANT
from report_pages import (
    data_of,
    of_head,
    settled,
    show,
)


def head_masses(run: FinishedRun, table: pd.DataFrame) -> HeadMasses:
    return masses_without_sinks(table, mass_bins(run.table("attention")), run.geometry)


def test_bars_are_the_masses_of_all_queries_or_of_one_bucket(
    page: Page, runs: dict[str, FinishedRun]
) -> None:
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


def test_two_runs_are_compared(page: Page, runs: dict[str, FinishedRun]) -> None:
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


def test_heads_and_runs_without_attention_have_no_card(page: Page) -> None:
    card = page.locator("#attention-panel")
    views = (("run=full&head=4.5", False), ("run=full&head=0.0", True), ("run=bucket", False))
    for address, shown in views:
        show(page, address)
        expect(card).to_be_visible() if shown else expect(card).to_be_hidden()
    show(page, "run=full&head=0.0")
    sizes = "['#attention', '#attention .main-svg'].map(s => document.querySelector(s).clientWidth)"
    place, drawn = page.evaluate(sizes)
    assert place == drawn > 400
