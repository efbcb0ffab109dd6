"""Roles on the page: the map, the table, the search, and the card "What this head does"."""

from urllib.parse import quote

import numpy as np
from playwright.sync_api import expect

from attention_plasticity.tables.head_roles import COLOURS
from helpers.added_tables import ROLE_OF_LAYER, UNSURE_HEAD
from helpers.report_pages import EVIL, data_of, first_rows, show
from helpers.report_runs import MISSING

T_11 = 2.200985  # of a table of Student's t: 97.5 %, 11 degrees of freedom


def map_colours(page):
    """The colour of every head of the first map, by layer and head."""
    code = """() => {
        const { z, colorscale, zmin, zmax } = document.querySelector('.map-plot').data[0];
        const share = (value) => (value - zmin) / (zmax - zmin);
        const of = (value) => colorscale.findLast(([place]) => place <= share(value))[1];
        return z.map(row => row.map(value => (value === null ? null : of(value))));
    }"""
    return page.evaluate(code)


def test_the_map_has_the_colours_of_likely_roles(page):
    show(page, "run=full&head=0.2&metric=role")
    found = map_colours(page)
    for layer, name in ROLE_OF_LAYER.items():
        for head in range(6):
            assert found[layer][head] == (None if (layer, head) == MISSING else COLOURS[name])
    legend = page.locator("#legend-colours .class").all_text_contents()
    assert legend == [
        *("induction (6)", "previous (5)", "far (5)", "sink (6)", "mixed (6)"),
        "unsure (1), in the colour of the likely role",
    ]


def test_the_table_has_roles_and_sorts_by_them(page):
    show(page, "run=full&head=0.2&metric=role")
    row = page.locator("[id='head-0.3'] .role-cell")
    expect(row).to_have_text("unsure (previous)")
    expect(page.locator("[id='head-0.2'] .role-cell")).to_have_text("previous")
    page.click("[data-sort=role]")
    assert first_rows(page, 2) == ["L1 H0", "L1 H1"]  # induction is the first role
    page.click("[data-sort=role]")
    assert first_rows(page, 1) == ["L4 H0"]  # mixed is the last
    page.click("[data-sort=head]")


def test_the_search_finds_roles(page):
    for query, heads in (
        ("induction", [(1, head) for head in range(6)]),
        ("layer 3, sink", [(3, head) for head in range(6)]),
        ("unsure", [UNSURE_HEAD]),
        ("self", []),
    ):
        page.fill("#search", query)
        assert first_rows(page, 40) == [f"L{layer} H{head}" for layer, head in heads]


def test_the_card_has_the_sentence_and_the_scores(page, runs):
    show(page, "run=full&head=0.2&metric=role")
    row = runs["full"].table("roles").query("layer == 0 and q_head == 2").iloc[0]
    sentence = page.locator("#role-sentence")
    expect(sentence).to_contain_text("Previous-token head. Inside a bin of 64 tokens, ")
    expect(page.locator("#head-role")).to_have_text("previous")
    half = T_11 * row["previous_mass_se"]
    value = row["previous_mass"]
    cells = page.locator("[data-score=previous_mass] td").all_text_contents()
    assert cells == [f"{value:.3f}", f"{value - half:.3f} to {value + half:.3f}", "0.4"]
    assert page.locator("[data-score=induction_excess] td").all_text_contents()[2] == ""
    assert page.locator("[data-score=repeated_induction] td").all_text_contents()[2] == "0.4"
    show(page, f"run=full&head={UNSURE_HEAD[0]}.{UNSURE_HEAD[1]}&metric=role")
    expect(sentence).to_contain_text("Unsure, likely a previous-token head: the 95 % interval of")
    expect(page.locator("#head-role")).to_have_text(
        "unsure: an interval contains a threshold, likely previous"
    )


def test_words_show_spaces(page):
    show(page, "run=full&head=0.2&metric=role")
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


def test_hostile_tokens_do_nothing(page):
    title = page.title()
    show(page, f"run={quote(EVIL)}&head=0.0&metric=role")
    tokens = page.locator(".words .token").all_text_contents()
    assert tokens[0].startswith("</script><script>document.title")
    assert tokens[1].startswith("<img␣src=x␣onerror=")
    assert tokens[3] == "U+202Eabc"
    assert page.locator(".words script, .words img").count() == 0
    assert page.title() == title


def test_bands_are_drawn_over_the_wavelength(page):
    show(page, "run=full&head=0.2&metric=role")
    size, share = data_of(page, "bands")
    np.testing.assert_allclose(size["x"], [1, 10, 100])  # the last band does not turn
    np.testing.assert_allclose(size["y"], [2.2, 3.2, 4.2], rtol=2e-4)
    np.testing.assert_allclose(size["error_y"]["array"], 0.5 * T_11, rtol=2e-4)
    np.testing.assert_allclose(share["y"], [0.25, 0.15, 0.05], rtol=2e-4)
    code = "['#bands', '#bands .main-svg'].map(s => document.querySelector(s).clientWidth)"
    place, drawn = page.evaluate(code)
    assert place == drawn > 300
