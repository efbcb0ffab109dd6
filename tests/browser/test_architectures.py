"""Runs of other architectures, layers of many types, and selected layers on the page."""

import pytest
from playwright.sync_api import expect

from attention_plasticity.page import make_report
from attention_plasticity.tables.finished_run import FinishedRun
from helpers.plain_runs import edit_info, edit_table
from helpers.report_pages import open_report, show, without_errors
from helpers.report_runs import HEADS, write_run

MAP = "document.querySelector('.map-plot')"
MANY = ["full_attention", "sliding_attention", "chunked_attention", "mamba", "odd<b>&_attention"]
LABELS = ["base", "checkpoint", "wide", "grouped", "many", "some", "others", "old"]


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """A run, another checkpoint of its model, other architectures, and selected layers."""
    folder = tmp_path_factory.mktemp("architectures")
    paths = [
        write_run(folder / name, seed, warnings=["Few texts."])
        for seed, name in enumerate(("base", "checkpoint", "wide", "grouped", "many", "old"))
    ]
    _, _, wide, grouped, many, old = paths
    edit_table(wide, "metrics", lambda heads: heads.assign(d_model=16))
    edit_info(grouped, head_layout__num_k_heads=3)
    types = {"layer_type": lambda heads: heads["layer"].map(dict(enumerate(MANY)))}
    edit_table(many, "metrics", lambda heads: heads.assign(**types))
    newer = ["layer_type", "sliding_window"]
    edit_table(old, "metrics", lambda heads: heads.drop(columns=newer))
    runs = [FinishedRun.open(path) for path in paths]
    runs[5:5] = [runs[0].select(layers="1,3"), runs[0].select(layers="0")]
    path = make_report(runs, labels=LABELS).save(folder / "report.html")
    with open_report(browser, path) as page:
        yield page


@pytest.fixture
def page(opened):
    with without_errors(opened):
        show(opened, "run=base&head=1.2&metric=ap_overall")
        yield opened


def test_heads_are_compared_only_within_an_architecture(page):
    assert page.locator("#beside option").all_text_contents() == [
        *("none", "checkpoint", "wide (means only)", "grouped (means only)"),
        *("many (means only)", "some", "others", "old"),
    ]
    for label, reason in (
        ("wide", "heads of layer 0 have 12 dimensions in base and 16 in wide"),
        ("grouped", "base has 2 key heads per layer and grouped 3"),
        ("many", "layer 2 has the type full attention in base and chunked attention in many"),
    ):
        show(page, f"run=base&beside={label}")
        expect(page.locator("#subtitle")).to_contain_text(
            f"Only means are compared: {reason}, so their heads do not correspond"
        )
        assert page.locator(".map-plot").count() == 1
    show(page, "run=base&beside=checkpoint")
    expect(page.locator("#subtitle")).not_to_contain_text("Only means")
    assert page.locator(".map-plot").count() == 2


def test_selected_layers_are_named(page):
    show(page, "run=some&head=1.2")
    expect(page.locator("#subtitle")).to_contain_text("along the context; layers 1, 3 only")
    expect(page.locator("#warnings li").last).to_have_text("whole run: Few texts.")
    texts = page.evaluate(f"{MAP}.data[0].text.map(row => row[0])")
    assert [text.split(",")[0] for text in texts] == ["layer 1", "layer 3"]
    expect(page.locator("#legend-note")).to_have_text("dashed line: layer 2 left out")
    card = page.locator(".card").last
    expect(card.locator(".number")).to_have_text(str(2 * HEADS))
    expect(card).to_contain_text("layers 1, 3 only")
    expect(page.locator("#runs-table")).to_contain_text("some layers 1, 3 only")
    show(page, "run=base&beside=some&head=0.1")
    expect(page.locator("#profile-keys")).to_contain_text("some: not selected")
    code = "document.querySelectorAll('.map-plot')[1].data[0].text.map(row => row[0])"
    assert ["not selected" in text for text in page.evaluate(code)] == [True, False] * 2 + [True]
    show(page, "run=some&beside=others")
    expect(page.locator("#subtitle")).to_contain_text("some and others have no layer in common")
    assert page.locator(".map-plot").count() == 1
