"""Layers and links of the page, and runs with other contexts."""

from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import expect

from attention_plasticity.page import make_report
from attention_plasticity.page.content import run_content
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import head_half_width
from helpers.added_tables import add_attention
from helpers.plain_runs import edit_info, edit_table
from helpers.report_pages import (
    data_of,
    first_rows,
    mean_text,
    open_report,
    settled,
    show,
    without_errors,
)
from helpers.report_runs import HEADS, write_run

WIDE = "one & only/ü"  # a label that a link must escape
HALF = "half-the-context-of-a-model-with-a-long-name"
LEVEL, DROP = "ap_aligned", "ap_aligned_drop"
POSITION = "ap_aligned_drop_position"
MAP = "document.querySelector('.map-plot')"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with late bins of few texts, and a run with half its context."""
    folder = tmp_path_factory.mktemp("views")
    one = add_attention(write_run(folder / "one", position=True))
    edit_table(one, "bin_plasticity", lambda bins: bins.assign(n_texts=20 - bins["q_bin"]))
    far = {DROP: lambda heads: heads[DROP].where(heads.index > 0, -0.9)}
    edit_table(one, "metrics", lambda heads: heads.assign(**far))
    half = add_attention(write_run(folder / "half", seed=1, position=True))
    edit_table(half, "metrics", lambda heads: heads.assign(q_position_max=447))
    edit_info(half, longest_text=448)
    return [FinishedRun.open(run) for run in (one, half)]


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory, runs):
    path = tmp_path_factory.mktemp("page") / "report.html"
    make_report(runs, labels=[WIDE, HALF]).save(path)
    with open_report(browser, path) as page:
        yield page


@pytest.fixture
def page(opened):
    with without_errors(opened):
        show(opened, f"run={quote(WIDE)}&head=1.2&metric={LEVEL}")
        yield opened
        opened.set_viewport_size({"width": 1366, "height": 768})
        settled(opened)


def veiled_layers(page):
    code = f"{MAP}.data.find(trace => trace.name === 'faded')?.z.map(row => row.includes(1)) ?? []"
    return {layer for layer, faded in enumerate(page.evaluate(code)) if faded}


def test_layers_of_one_type_can_be_chosen(page, runs):
    for place, name in enumerate((LEVEL, "ap_phase", POSITION)):
        card = page.locator(".card").nth(place)
        for kind in ("full_attention", "sliding_attention"):
            text = mean_text(runs[0].select(layer_type=kind), name)
            expect(card.locator(f'[data-type="{kind}"] dd')).to_have_text(text)
    assert veiled_layers(page) == set()
    page.select_option("#layers", label="sliding window")
    settled(page)
    windowed = runs[0].select(layer_type="sliding")
    expect(page.locator(".card .number").first).to_have_text(mean_text(windowed, LEVEL))
    expect(page.locator(".card .number").last).to_have_text(str(HEADS))
    assert veiled_layers(page) == {0, 2, 3, 4}
    assert first_rows(page, 99) == [f"L1 H{head}" for head in range(HEADS)]
    expect(page.locator("#profile-keys")).to_contain_text(f"mean of {HEADS} heads, sliding window")
    tables = run_content(runs[0], "x")[1]
    drawn = next(t for t in data_of(page, "profile") if (t.get("name") or "").startswith("mean of"))
    np.testing.assert_allclose(drawn["y"], tables["mean_2"]["plasticity"])
    page.wait_for_url(lambda url: "layers=sliding_attention" in url)
    assert [row.split("H")[0] for row in first_rows(page, 1)] == ["L1 "]
    page.select_option("#layers", "")
    settled(page)
    assert veiled_layers(page) == set()


def test_links_name_runs_and_bad_links_are_explained(page):
    notice = page.locator("#link-notice")
    expect(notice).to_be_hidden()
    page.select_option("#beside", label=HALF)
    page.wait_for_url(lambda url: f"beside={HALF}" in url)
    assert "run=one+%26+only%2F%C3%BC" in page.url
    bad = "run=77&head=99.9&metric=nothing&beside=x&layers=odd&sure=7&haed=1"
    show(page, bad)
    expect(notice).to_be_visible()
    text = notice.text_content() or ""
    for part in bad.split("&")[:-1]:
        assert f"“{part}” (shown instead: " in text
    assert "“haed”" in text
    assert f"“run=77” (shown instead: the run {WIDE})" in text
    assert "(shown instead: the metric RoPE-aligned plasticity)" in text
    expect(page.locator("#run")).to_have_value("0")
    title = page.locator("#head-title").text_content() or ""
    assert f"“head=99.9” (shown instead: {title.lower()})" in text
    page.locator("#link-close").click()
    expect(notice).to_be_hidden()


def test_the_first_head_has_a_reason(page, runs):
    reason = page.locator("#head-reason")
    expect(reason).to_have_text("")  # the link names a head
    show(page, "")
    drops = runs[0].head_metrics[POSITION]
    half = head_half_width(runs[0].head_metrics, POSITION, runs[0].influences)
    best = int(np.nanargmax(drops.abs() - half))
    assert best != drops.argmax()
    low, high = (f"{drops[best] + sign * half[best]:.3f}".replace("-", "−") for sign in (-1, 1))
    expect(reason).to_have_text(
        "Selected at first: the head whose 95 % interval of the drop from position lies farthest "
        f"from 0 ({low} to {high})."
    )
    layer, head = runs[0].head_metrics.loc[best, ["layer", "q_head"]].astype(int)
    expect(page.locator("#head-title")).to_have_text(f"Layer {layer} · head {head}")
    row, box = (
        page.locator(name).bounding_box() or {} for name in ("tr[aria-selected=true]", "#heads")
    )
    assert box["y"] < row["y"] <= box["y"] + box["height"] - row["height"] + 1
    page.locator("#heads").evaluate("box => (box.scrollTop = 0)")
    settled(page)  # rows that are being replaced lose a click
    page.locator("tr.row").first.click()
    expect(reason).to_have_text("")


def test_runs_with_other_contexts_share_an_axis(page):
    page.select_option("#beside", label=HALF)
    settled(page)
    code = "['profile', 'runs-chart'].map(id => document.getElementById(id).layout.xaxis.range[1])"
    assert page.evaluate(code) == pytest.approx([1.01 * 896] * 2)
    expect(page.locator(".card").nth(2)).to_contain_text("do not compare these drops")
