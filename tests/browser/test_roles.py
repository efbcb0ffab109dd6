"""Roles on the page: the map, the table, the search, and the card "What this head does"."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect

from attention_plasticity.page import make_report
from attention_plasticity.roles import RESTING
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_roles import COLOURS, DARK_COLOURS
from report_pages import READY, data_of, first_rows, open_report, settled, show, without_errors
from report_runs import MISSING, write_run
from role_runs import ROLE_OF_LAYER, UNSURE_HEAD, add_roles

HOSTILE = "</script><script>document.title = 'attacked'</script>"
IMAGE = "<img src=x onerror=\"document.title='attacked'\">"
REVERSED = "\u202eabc"
T_11 = 2.200985  # of a table of Student's t: 97.5 %, 11 degrees of freedom


def role_on_texts(table: pd.DataFrame) -> pd.Series[str]:
    """The roles of a run without scores on repeated tokens."""
    return table["role"].mask(table["likely_role"].isin(RESTING), "unsure")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
    """Runs with words and bands, without words, without roles, with hostile tokens, and without
    scores on repeated tokens."""
    folder = tmp_path_factory.mktemp("roles")
    full = add_roles(write_run(folder / "full", position=True), bands=True)
    bands = pd.read_csv(full / "head_bands.csv").assign(n_groups=12)
    bands.to_csv(full / "head_bands.csv", index=False)
    no_words = add_roles(
        write_run(folder / "no-words", position=True), words=False, capture={"tokens": False}
    )
    tokens = {" the": HOSTILE, "\n": IMAGE, "whale": REVERSED}
    hostile = add_roles(write_run(folder / "hostile"), tokens=tokens)
    unknown = dict.fromkeys(("repeated_induction", "repeated_duplicate", "repeated_previous"), nan)
    texts = add_roles(write_run(folder / "texts"), scores={**unknown, "role": role_on_texts})
    folders = (full, no_words, write_run(folder / "old", position=True), hostile, texts)
    return [FinishedRun.open(run) for run in folders]


@pytest.fixture(scope="module")
def opened(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, runs: list[FinishedRun]
) -> Iterator[Page]:
    report = make_report(runs, labels=["full", "no-words", "old", "hostile", "texts"])
    path = report.save(tmp_path_factory.mktemp("page") / "report.html")
    with open_report(browser, path) as page:
        yield page


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    with without_errors(opened):
        show(opened, "run=full&head=0.2&metric=role")
        yield opened
        opened.fill("#search", "")


def map_colours(page: Page) -> list[list[str | None]]:
    """The colour of every head of the first map, by layer and head."""
    code = """() => {
        const { z, colorscale, zmin, zmax } = document.querySelector('.map-plot').data[0];
        const share = (value) => (value - zmin) / (zmax - zmin);
        const of = (value) => colorscale.findLast(([place]) => place <= share(value))[1];
        return z.map(row => row.map(value => (value === null ? null : of(value))));
    }"""
    found: list[list[str | None]] = page.evaluate(code)
    return found


@pytest.mark.parametrize(("theme", "colours"), [("light", COLOURS), ("dark", DARK_COLOURS)])
def test_the_map_has_the_colours_of_likely_roles(
    page: Page, theme: str, colours: dict[str, str]
) -> None:
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    settled(page)
    found = map_colours(page)
    for layer, name in ROLE_OF_LAYER.items():
        for head in range(6):
            assert found[layer][head] == (None if (layer, head) == MISSING else colours[name])
    page.emulate_media(color_scheme="light")
    settled(page)
    legend = page.locator("#legend-colours .class").all_text_contents()
    assert legend == [
        *("induction (6)", "previous (5)", "far (5)", "sink (6)", "mixed (6)"),
        "unsure (1), in the colour of the likely role",
    ]


def test_unsure_heads_are_faded_and_can_be_shown(page: Page) -> None:
    faded = "document.querySelector('.map-plot').data.find(t => t.name === 'faded')?.z"
    layer, head = UNSURE_HEAD
    expected = [
        [1 if (row, column) == UNSURE_HEAD else None for column in range(6)] for row in range(5)
    ]
    assert page.evaluate(faded) == expected
    expect(page.locator("#sure")).to_be_checked()
    expect(page.locator("#sure-words")).to_contain_text("1 of 29 heads")
    expect(page.locator(f"[id='head-{layer}.{head}']")).to_have_class("row faded")
    page.uncheck("#sure")
    settled(page)
    assert page.evaluate(faded) is None


def test_repeated_tokens_decide_about_roles_on_texts(page: Page) -> None:
    show(page, "run=texts&head=3.0&metric=role")
    legend = page.locator("#legend-colours .class").all_text_contents()
    assert legend == [
        *("induction (6)", "previous (5)", "far (0)", "sink (0)", "mixed (0)"),
        "unsure (18), in the colour of the likely role",
    ]
    expect(page.locator("#sure-words")).to_contain_text("or repeated tokens are not known: 18 of")
    words = "unsure: repeated tokens decide, likely sink"
    expect(page.locator("#head-role")).to_have_text(words)
    assert f"<b>{words}</b>" in page.evaluate(
        "document.querySelector('.map-plot').data[0].text[3][0]"
    )
    expect(page.locator("[id='head-3.0'] .role-cell")).to_have_text("unsure (sink)")
    expect(page.locator("#role-sentence")).to_contain_text(
        "Unsure: repeated tokens decide; likely a sink head"
    )
    page.fill("#search", "role:unsure")
    expect(page.locator("#found")).to_have_text("18 of 29 heads")
    show(page, "run=texts&head=0.3&metric=role")  # its interval contains a threshold
    expect(page.locator("#head-role")).to_have_text("unsure, likely previous")


def test_the_map_tells_the_role_of_a_head(page: Page) -> None:
    text = "document.querySelector('.map-plot').data[0].text"
    texts = page.evaluate(text)
    assert texts[3][0].endswith("<b>sink</b> role")
    assert texts[UNSURE_HEAD[0]][UNSURE_HEAD[1]].endswith("<b>unsure, likely previous</b> role")
    assert "What heads do" in page.locator("#metric optgroup").evaluate_all(
        "all => all.map(o => o.label)"
    )


def test_the_table_has_roles_and_sorts_by_them(page: Page) -> None:
    row = page.locator("[id='head-0.3'] .role-cell")
    expect(row).to_have_text("unsure (previous)")
    expect(page.locator("[id='head-0.2'] .role-cell")).to_have_text("previous")
    page.click("[data-sort=role]")
    assert first_rows(page, 2) == ["L1 H0", "L1 H1"]  # induction is the first role
    page.click("[data-sort=role]")
    assert first_rows(page, 1) == ["L4 H0"]  # mixed is the last
    page.click("[data-sort=head]")


@pytest.mark.parametrize(
    ("query", "heads"),
    [
        ("role:induction", [(1, head) for head in range(6)]),
        ("ROLE: far", [(2, head) for head in range(6) if head != 3]),
        ("role=sink head 2-3", [(3, 2), (3, 3)]),
        ("role:unsure", [UNSURE_HEAD]),
        ("role:previous layer 0", [(0, head) for head in range(6) if head != UNSURE_HEAD[1]]),
        ("head 0, role:far role:mixed", [(2, 0), (4, 0)]),
        ("role:self", []),
    ],
)
def test_the_search_finds_roles(page: Page, query: str, heads: list[tuple[int, int]]) -> None:
    page.fill("#search", query)
    expect(page.locator("#search-problem")).to_have_text("")
    assert first_rows(page, 40) == [f"L{layer} H{head}" for layer, head in heads]


def test_roles_join_comparisons(page: Page, runs: list[FinishedRun]) -> None:
    metrics = runs[0].head_metrics
    page.fill("#search", "role:sink plasticity>0.3")
    wanted = metrics[(metrics["layer"] == 3) & (metrics["ap_aligned"] > 0.3)]["q_head"]
    assert first_rows(page, 40) == [f"L3 H{head}" for head in wanted]


@pytest.mark.parametrize(
    ("run", "query", "problem"),
    [
        ("full", "role:indution", "“role:indution” is not a role; the roles are induction, "),
        ("full", "role:", "“role:” is not a role; the roles are induction, duplicate, "),
        ("full", "far", "“far” is a role; did you mean role:far?"),
        ("old", "role:far", "This run has no roles; they need a dump with attention columns"),
    ],
)
def test_a_wrong_role_is_explained(page: Page, run: str, query: str, problem: str) -> None:
    show(page, f"run={run}")
    page.fill("#search", query)
    expect(page.locator("#search-problem")).to_contain_text(problem)
    assert page.locator("tr.row").count() == 0


def test_the_help_names_the_filter(page: Page) -> None:
    page.click("[data-help=heads]")
    expect(page.locator("#glossary-words")).to_contain_text("role:induction, role:unsure")
    page.keyboard.press("Escape")
    page.click("[data-help=role]")
    terms = page.locator("#glossary dt").all_text_contents()
    assert {"Role", "Unsure role", "Words", "Rotary band"} <= set(terms)
    page.keyboard.press("Escape")


def test_the_card_has_the_sentence_and_the_scores(page: Page, runs: list[FinishedRun]) -> None:
    row = runs[0].table("roles").query("layer == 0 and q_head == 2").iloc[0]
    sentence = page.locator("#role-sentence")
    expect(sentence).to_contain_text("Previous-token head. It puts ")
    expect(sentence).to_contain_text(f"{100 * row['previous_mass']:.1f}")
    expect(page.locator("#head-role")).to_have_text("previous")
    half = T_11 * row["previous_mass_se"]
    value = row["previous_mass"]
    cells = page.locator("[data-score=previous_mass] td").all_text_contents()
    assert cells == [f"{value:.3f}", f"{value - half:.3f} to {value + half:.3f}", "0.4"]
    assert page.locator("[data-score=induction_excess] td").all_text_contents()[2] == ""
    assert page.locator("[data-score=repeated_induction] td").all_text_contents()[2] == "0.4"
    show(page, f"run=full&head={UNSURE_HEAD[0]}.{UNSURE_HEAD[1]}&metric=role")
    expect(sentence).to_contain_text("Unsure, likely a previous-token head: the 95 % interval of")
    expect(page.locator("#head-role")).to_have_text("unsure, likely previous")


def test_words_show_spaces(page: Page) -> None:
    lists = page.locator(".word-list")
    assert lists.evaluate_all("all => all.map(l => l.dataset.kind)") == ["strongest", "typical"]
    rows = page.locator(".words tbody tr")
    texts = rows.evaluate_all("all => all.map(r => [...r.cells].map(c => c.textContent))")
    assert texts == [
        ["␣the", "⏎", "1", "0.875"],
        ["nan", "whale first token", "40", "0.750"],
        ["⇥sea", "no text", "7", "0.125"],
    ]
    expect(page.locator("#no-words")).to_be_hidden()


def test_hostile_tokens_do_nothing(page: Page) -> None:
    title = page.title()
    show(page, "run=hostile&head=0.0&metric=role")
    tokens = page.locator(".words .token").all_text_contents()
    assert tokens[0].startswith("</script><script>document.title")
    assert tokens[1].startswith("<img␣src=x␣onerror=")
    assert tokens[3] == "U+202Eabc"
    assert page.locator(".words script, .words img").count() == 0
    assert page.title() == title


def test_a_run_without_words_says_why(page: Page) -> None:
    show(page, "run=no-words&head=0.2&metric=role")
    expect(page.locator("#role-panel")).to_be_visible()
    expect(page.locator("#no-words")).to_have_text(
        "Words are not shown: the capture left out tokens (capture.tokens: false)."
    )
    expect(page.locator(".word-list")).to_have_count(0)
    expect(page.locator("#bands-figure")).to_be_hidden()


def test_bands_are_drawn_over_the_wavelength(page: Page) -> None:
    size, share = data_of(page, "bands")
    np.testing.assert_allclose(size["x"], [1, 10, 100])  # the last band does not turn
    np.testing.assert_allclose(size["y"], [2.2, 3.2, 4.2], rtol=1e-6)
    np.testing.assert_allclose(size["error_y"]["array"], 0.5 * T_11, rtol=1e-6)
    np.testing.assert_allclose(share["y"], [0.25, 0.15, 0.05], rtol=1e-5)
    code = "['#bands', '#bands .main-svg'].map(s => document.querySelector(s).clientWidth)"
    place, drawn = page.evaluate(code)
    assert place == drawn > 300
    with page.expect_download() as download:
        page.click('[data-image="bands.svg"]')
    assert download.value.suggested_filename == "full-bands-l0h2.svg"


def test_runs_without_roles_are_as_before(
    page: Page, browser: Browser, runs: list[FinishedRun], tmp_path: Path
) -> None:
    page.select_option("#run", label="old")
    settled(page)
    assert page.locator("#metric").input_value() == "ap_aligned"  # it has no roles
    expect(page.locator("#role-panel")).to_be_hidden()
    expect(page.locator("#head-role")).to_have_text("")
    expect(page.locator("[data-sort=role]")).to_have_count(0)
    path = make_report(runs[2:3]).save(tmp_path / "report.html")
    with open_report(browser, path) as alone:
        alone.wait_for_selector(READY)
        assert "What this head does" not in alone.locator("body").inner_text()


def test_a_run_without_roles_beside_one_with_them(page: Page) -> None:
    show(page, "run=full&beside=old&head=0.2&metric=role")
    second = "document.querySelectorAll('.map-plot')[1].data[0].z.flat().every(v => v === null)"
    assert page.evaluate(second)
    expect(page.locator("#legend-note")).to_contain_text("no role")
    show(page, "run=full&beside=no-words&head=0.2&metric=role")
    assert page.locator("[data-score=previous_mass] td").count() == 4


def test_a_link_keeps_the_map_of_roles(page: Page) -> None:
    page.wait_for_function("location.hash.includes('metric=role')")
    expect(page.locator("#link-notice")).to_be_hidden()
    show(page, "run=old&metric=role")
    expect(page.locator("#link-problem")).to_contain_text("metric=role")


@pytest.mark.parametrize("width", [1366, 420])
def test_the_card_fits_any_width(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 768})
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.set_viewport_size({"width": 1366, "height": 768})
    settled(page)
