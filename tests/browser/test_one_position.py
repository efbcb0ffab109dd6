"""Plasticity at one position on the page, first, and runs without it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Page, expect

from attention_plasticity.page.content import run_content
from attention_plasticity.tables.finished_run import FinishedRun
from report_pages import (
    data_of,
    mean_text,
    of_head,
    show,
)
from report_runs import BIN_SIZE

POSITION, BUCKET = "plasticity at one position", "plasticity over a bucket"


def titles(page: Page) -> list[str]:
    return page.locator(".card h2").all_text_contents()


def test_it_is_shown_first_with_the_part_of_the_phase(
    page: Page, runs: dict[str, FinishedRun]
) -> None:
    assert page.locator("#metric").input_value() == "ap_aligned"
    assert titles(page)[:3] == [
        "Plasticity at one position",
        "Rotary phase",
        "Drop over the context",
    ]
    for place, name in enumerate(("ap_aligned", "ap_phase", "ap_aligned_drop")):
        expect(page.locator(".card .number").nth(place)).to_have_text(mean_text(runs["full"], name))
    pooled = mean_text(runs["full"], "ap_pooled")
    expect(page.locator(".card").nth(1)).to_contain_text(f"over a bin of 64 tokens: {pooled}")
    columns = page.locator("[data-sort]").evaluate_all("all => all.map((one) => one.dataset.sort)")
    assert columns == ["head", "ap_aligned", "ap_aligned_drop", "ap_phase", "role"]
    expect(page.locator("#head-facts")).to_contain_text("is rotary phase")


def test_profile_and_cells_are_those_of_bins(page: Page, runs: dict[str, FinishedRun]) -> None:
    show(page, "run=full&head=1.2")
    rows = of_head(pd.DataFrame(run_content(runs["full"], "x")[1]["profiles"]), 1, 2)
    traces = {trace.get("name"): trace for trace in data_of(page, "profile")}
    np.testing.assert_allclose(traces["layer 1, head 2, 95 % interval"]["y"], rows["plasticity"])
    pooled = traces["over a bin, with rotary phase, 95 % interval"]
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


def test_a_run_over_a_bucket_is_named_beside_one_at_one_position(
    page: Page, runs: dict[str, FinishedRun]
) -> None:
    show(page, "run=full&beside=bucket")
    assert titles(page)[0] == "Plasticity over a bucket"
    assert page.locator("#metric").input_value() == "ap_overall"
    for run, number in ((runs["full"], ".number"), (runs["bucket"], ".number .other")):
        text = f"{run.head_metrics['ap_overall'].mean():.3f}"
        expect(page.locator(f".card {number}").first).to_contain_text(text)
    expect(page.locator("#subtitle")).to_contain_text(
        "Plasticity over a bucket is compared, because bucket has none at one position"
    )
    expect(page.locator("#profile")).to_have_attribute("data-y", "plasticity")
    names = page.locator("#runs-table th").all_text_contents()
    assert POSITION in names
    assert BUCKET in names
    expect(page.locator("#runs-note")).to_contain_text("over a bucket: bucket, hostile")
