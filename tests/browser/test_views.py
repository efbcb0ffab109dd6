"""Layers, links, filters and images of the page; and how it fits screens."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from attention_plasticity.page import make_report
from attention_plasticity.page.content import run_content
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import head_half_width
from attention_runs import add_attention
from plain_runs import edit_info, edit_table
from report_pages import (
    data_of,
    first_rows,
    mean_text,
    open_report,
    settled,
    show,
    without_errors,
)
from report_runs import HEADS, write_run

WIDE = "one & only/ü"  # a label that a link must escape
HALF = "half-the-context-of-a-model-with-a-long-name"
LEVEL, DROP = "ap_aligned", "ap_aligned_drop"
POSITION = "ap_aligned_drop_position"
MAP = "document.querySelector('.map-plot')"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
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
def opened(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, runs: list[FinishedRun]
) -> Iterator[Page]:
    path = tmp_path_factory.mktemp("page") / "report.html"
    make_report(runs, labels=[WIDE, HALF]).save(path)
    with open_report(browser, path) as page:
        yield page


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    with without_errors(opened):
        show(opened, f"run={quote(WIDE)}&head=1.2&metric={LEVEL}")
        yield opened
        opened.set_viewport_size({"width": 1366, "height": 768})
        settled(opened)


def veiled_layers(page: Page) -> set[int]:
    code = f"{MAP}.data.find(trace => trace.name === 'faded')?.z.map(row => row.includes(1)) ?? []"
    return {layer for layer, faded in enumerate(page.evaluate(code)) if faded}


def test_layers_of_one_type_can_be_chosen(page: Page, runs: list[FinishedRun]) -> None:
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


def test_links_name_runs_and_bad_links_are_explained(page: Page) -> None:
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


def test_the_first_head_has_a_reason(page: Page, runs: list[FinishedRun]) -> None:
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
    page.locator("tr.row").first.click()
    expect(reason).to_have_text("")


def test_filters_compare_metrics(page: Page, runs: list[FinishedRun]) -> None:
    table = runs[0].head_metrics
    layer, overall, level, drop = (table[name] for name in ("layer", "ap_overall", LEVEL, DROP))
    shown = level[(layer == 3) & (table["q_head"] == 1)].item()
    search, problem = page.locator("#search"), page.locator("#search-problem")
    for text, wanted in (
        ("plasticity>0.6", level > 0.6),
        ("drop<0", drop < 0),
        ("l3-4 plasticity>=.5", layer.between(3, 4) & (level >= 0.5)),
        ("layers 0, 3-4, drop ≥ −0.1", layer.isin([0, 3, 4]) & (drop >= -0.1)),
        ("AP_Overall > 0.2 drop<=1e-1", (overall > 0.2) & (drop <= 0.1)),
        ("layer>=3", layer >= 3),
        (f"l3h1 plasticity={shown:.3f}", (layer == 3) & (table["q_head"] == 1)),
        (f"l3h1 plasticity={shown + 0.001:.3f}", layer > 99),
        ("sliding", layer == 1),
        ("l0-2 full attention, plasticity>0.5", layer.isin([0, 2]) & (level > 0.5)),
    ):
        search.fill(text)
        heads = table[wanted]
        expect(page.locator("#found")).to_have_text(f"{len(heads)} of {len(table)} heads")
        names = [f"L{row.layer} H{row.q_head}" for row in heads.itertuples()]
        assert first_rows(page, 8) == names[:8]
        expect(problem).to_have_text("")
    for text, words in (
        ("plasticity>", "“plasticity>” needs a name, a sign and a number"),
        (">0.9", "A comparison needs a name before its sign"),
        ("l3 variance>0.1", "“variance” is not a metric of this run; did you mean “variance from"),
        ("elsewhat>1", "“elsewhat” is not a metric of this run; give a column"),
        ("layer 5-3", "“layer 5-3”: the first number is larger than the last"),
    ):
        search.fill(text)
        expect(problem).to_contain_text(words)
        expect(search).to_have_attribute("aria-invalid", "true")
        assert first_rows(page, 9) == []
    search.fill("plasticity")
    expect(problem).to_have_text(
        "“plasticity” is not understood; try l12h3, layer 3-5, full or plasticity>0.9."
    )
    search.fill("plasticity>7")
    expect(page.locator("#heads-rows")).to_have_text("No head meets all parts of the search")
    search.press("Escape")
    expect(problem).to_have_text("")


def download(page: Page, chart: str) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        page.locator(f'[data-image="{chart}"]').click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def test_charts_are_saved_as_svg_and_png(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    settled(page)
    for chart, name, words in (
        ("profile", "one-only-ü-profile-l1h2", ["plasticity", "query position (tokens)", "texts"]),
        ("attention", "one-only-ü-attention-l1h2", ["share of attention", "layer 1, head 2"]),
        ("map-0", "one-only-ü-map-ap_aligned", ["layer", "head", "bar at the right"]),
        ("runs", "runs-profiles", [HALF]),
    ):
        file, content = download(page, f"{chart}.svg")
        assert file == f"{name}.svg"
        drawn = ElementTree.fromstring(content)
        text = " ".join(drawn.itertext())
        for word in words:
            assert word in text
        width, height = (int(drawn.attrib[side]) for side in ("width", "height"))
        file, content = download(page, f"{chart}.png")
        assert file == f"{name}.png"
        with Image.open(BytesIO(content)) as image:
            assert image.size == (2 * width, 2 * height)
            assert image.convert("RGB").getpixel((3, 3)) == (255, 255, 255)
            assert image.convert("RGB").getcolors(100_000) is not None
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    settled(page)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_runs_with_other_contexts_share_an_axis(page: Page) -> None:
    page.select_option("#beside", label=HALF)
    settled(page)
    code = "['profile', 'runs-chart'].map(id => document.getElementById(id).layout.xaxis.range[1])"
    assert page.evaluate(code) == pytest.approx([1.01 * 896] * 2)
    expect(page.locator(".card").nth(2)).to_contain_text("do not compare these drops")
