"""How the page fits screens, old browsers and notebooks: a real run, and few of its layers."""

import numpy as np
import pytest
from playwright.sync_api import expect

from attention_plasticity import open_run
from attention_plasticity.page import make_report
from attention_plasticity.page.content import run_content
from attention_plasticity.tables.finished_run import FinishedRun
from helpers.report_pages import READY, new_page, open_report, settled, show, without_errors
from helpers.report_runs import write_run

FEW = [0, 14, 29]  # captured layers of 30
MAP = "document.querySelector('.map-plot')"
TEXTS_THAT_ARE_CUT = """() => [...document.querySelectorAll('.chart, .map-plot')].flatMap(chart => {
    const frame = chart.getBoundingClientRect();
    const outside = text => {
        const box = text.getBoundingClientRect();
        return box.left < frame.left - 1 || box.right > frame.right + 1
            || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
    };
    const texts = [...chart.querySelectorAll('text')].filter(text => text.textContent);
    return texts.filter(outside).map(text => `${chart.id}: ${text.textContent}`);
})"""
NUMBERS_OUTSIDE_CARDS = """() => [...document.querySelectorAll('.card')].flatMap(card => {
    const right = card.getBoundingClientRect().right;
    const outside = part => part.getBoundingClientRect().right > right;
    return [...card.querySelectorAll('.other')].filter(outside).map(part => part.textContent);
})"""
EMPTY_SPACE = """() => {
    const panel = document.getElementById('head-panel').getBoundingClientRect();
    return panel.bottom - document.querySelector('.fill').getBoundingClientRect().bottom;
}"""


@pytest.fixture(scope="module")
def run():
    return open_run("results/smollm2-135m")


@pytest.fixture(scope="module")
def opened(browser, run, tmp_path_factory):
    made = make_report([run, run.select(layers=FEW)], labels=["all", "few"])
    path = made.save(tmp_path_factory.mktemp("layout") / "report.html")
    with open_report(browser, path) as page:
        yield page


@pytest.fixture
def page(opened):
    with without_errors(opened):
        yield opened
        opened.set_viewport_size({"width": 1366, "height": 768})
        settled(opened)


def test_a_map_has_rows_for_captured_layers_only(page):
    show(page, "run=few&head=0.3&metric=ap_aligned")
    assert page.evaluate(f"{MAP}.data[0].z.length") == len(FEW)
    assert page.evaluate(f"{MAP}.layout.yaxis.ticktext") == [str(layer) for layer in FEW]
    lines = page.evaluate(f"{MAP}.layout.shapes.filter(s => s.line.dash).map(s => s.y0)")
    assert lines == [0.5, 1.5]
    expect(page.locator("#legend-note")).to_have_text("dashed lines: layers 1–13, 15–28 left out")
    page.locator(".map-plot").press("ArrowDown")
    expect(page.locator("#head-title")).to_have_text("Layer 14 · head 3")
    box = page.locator(".map-plot .nsewdrag").bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] / 18, box["y"] + box["height"] * 5 / 6)
    expect(page.locator("#head-title")).to_have_text("Layer 29 · head 0")
    settled(page)
    box = page.locator(".map-plot .nsewdrag").bounding_box()  # the text above may have grown
    mark = page.locator(".map-mark").bounding_box()
    assert box
    assert mark
    assert mark["y"] + mark["height"] / 2 == pytest.approx(box["y"] + box["height"] * 5 / 6, abs=2)


def test_no_number_is_cut_and_no_space_is_empty(page):
    for width, height in ((390, 844), (1366, 768)):
        page.set_viewport_size({"width": width, "height": height})
        for address in ("run=few&metric=ap_aligned_drop", "run=all&beside=few&metric=ap_overall"):
            show(page, address)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate(TEXTS_THAT_ARE_CUT) == []
            assert page.evaluate(NUMBERS_OUTSIDE_CARDS) == []
            table = "(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)"
            assert page.evaluate(f"{table}(document.getElementById('heads'))") == 0
            if width > 1080:
                assert page.evaluate(EMPTY_SPACE) < 40


SMALL_TARGETS = """() => [...document.querySelectorAll('button, input, select, summary')]
    .filter(target => target.offsetParent)
    .map(target => (target.closest('label') ?? target))
    .map(target => [target.textContent || target.id, target.getBoundingClientRect()])
    .filter(([, box]) => box.width < 24 || box.height < 24)
    .map(([name]) => name)"""


@pytest.mark.long
def test_fingers_have_large_targets(browser, run, tmp_path):
    few = run.select(layers=FEW)
    report = make_report([run, few], labels=["all", "few"]).save(tmp_path / "report.html")
    phone = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, offline=True
    )
    with phone as context:
        page = new_page(context)
        page.goto(report.as_uri())
        settled(page)
        assert page.evaluate(SMALL_TARGETS) == []
        assert page.evaluate(TEXTS_THAT_ARE_CUT) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        for field in ("metric", "search"):  # phones zoom into fields with smaller text
            size = page.evaluate(f"getComputedStyle(document.getElementById('{field}')).fontSize")
            assert size == "16px"
        box = page.locator("#metric").bounding_box()
        assert box
        assert box["width"] > 0.7 * 390


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return make_report([FinishedRun.open(write_run(tmp_path_factory.mktemp("run")))])


def test_an_old_browser_and_one_without_scripts_say_so(browser, report, tmp_path):
    path = report.save(tmp_path / "report.html")
    with browser.new_context(offline=True) as context:
        page = new_page(context)
        page.add_init_script("delete window.DecompressionStream")
        page.goto(path.as_uri())
        expect(page.locator("#notice")).to_contain_text("cannot be shown: this browser cannot")
    with browser.new_context(offline=True, java_script_enabled=False) as context:
        page = new_page(context)
        page.goto(path.as_uri())
        expect(page.locator(".notice")).to_contain_text("which is switched off here")


def test_a_notebook_frame_shows_the_page(browser, report, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><body>{report._repr_html_()}")
    with browser.new_context(offline=True) as context:
        page = new_page(context)
        page.goto(path.as_uri())
        frame = page.frame_locator("iframe")
        expect(frame.locator(READY)).to_be_attached()
        expect(frame.locator("#run")).to_be_hidden()
        frame.locator(".map-plot").press("ArrowUp")
        expect(frame.locator("#head-title")).to_contain_text("Layer")


def test_a_run_in_logarithmic_buckets_has_a_logarithmic_axis(browser, tmp_path):
    run = write_run(tmp_path / "run", bucket_type="log", min_bucket_size=2)
    path = make_report([FinishedRun.open(run)]).save(tmp_path / "report.html")
    with browser.new_context(offline=True) as context:
        page = new_page(context)
        page.goto(path.as_uri())
        settled(page)
        assert page.evaluate("document.getElementById('profile').layout.xaxis.type") == "log"


def test_the_budget_of_the_key_head_stands_beside_the_head(page, run):
    show(page, "run=all&head=18.7&metric=ap_aligned")
    tables = run_content(run, "x")[1]["key_heads"]
    [row] = np.flatnonzero((tables["layer"] == 18) & (tables["k_head"] == 2))
    kept = [f"{100 * tables[f'kept_{percent}'][row]:.0f} % at {percent} %" for percent in (50, 75)]
    told = f"Key budget: keeps {', '.join(kept)} compression of the cache (key head 2)"
    expect(page.locator("#head-budget")).to_have_text(told)
