"""Tables of several runs as CSV, Markdown and LaTeX: what is written can be read back."""

import io
import math
import re

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from attention_plasticity.compare.summary import summary
from attention_plasticity.compare.writers import (
    PACKAGES,
    Table,
    csv_text,
    latex_table,
    latex_text,
    markdown_table,
    number_words,
    print_table,
    summary_table,
    table_files,
)
from helpers.plain_runs import small_models

SIGNS = r"a_% & # $ ~ ^ \ { } -- < > | ` [x] * … ± †"
WORDS = [word for sign in map(chr, range(33, 127)) for word in (sign, 2 * sign, f"a{sign}b{sign}")]
WORDS += ["&amp;", "&#42;", "<b>", "[x](y)", "![x](y)", "1.", "---", ":-:", "\\|", "a\\", "`|`"]
WORDS += [SIGNS, "ü…±†漢", "\\textbackslash", "%%"]
"""Every printable sign of ASCII alone, doubled and in words, and signs that belong together."""
TABLE = Table(
    "Means of 3 runs & <more>.",
    ("run", "plasticity", "drop, last_part"),
    ((SIGNS, "0.481 [0.470, 0.492]", "-0.012 [-0.020, -0.004]"), ("b", "0.500 ± 0.010", "–")),
    "[ ]: 95 % interval.",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return small_models(tmp_path_factory.mktemp("writers"), 2, "aa")


def cells_of(markdown):
    """The cells of the first table of a Markdown text, as a reader sees them."""
    rows = []
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "table_close":
            break
        elif token.type == "inline" and rows:
            rows[-1].append("".join(child.content for child in token.children or []))
    return rows


def test_csv_has_every_number(runs):
    frame = summary(runs, "layer_type")
    read = pd.read_csv(io.StringIO(csv_text(frame)), keep_default_na=False, na_values=["nan"])
    pd.testing.assert_frame_equal(read, frame, check_exact=True)


def test_texts_of_csv_are_no_formulas():
    frame = pd.DataFrame({"run": ["=1+1", "+a", "-b", "@c", "a-b"], "mean": [-1.0] * 5})
    read = pd.read_csv(io.StringIO(csv_text(frame)))
    assert read["run"].tolist() == ["'=1+1", "'+a", "'-b", "'@c", "a-b"]
    assert read["mean"].tolist() == [-1.0] * 5


def test_any_names_are_cells_of_markdown():
    lines = tuple((word, f"{word}1") for word in WORDS)
    table = Table("", ("run", "value"), lines)
    assert cells_of(markdown_table(table)) == [["run", "value"], *map(list, lines)]


def test_cells_have_the_values_of_the_frame(runs):
    frame = summary(runs, None, ["ap_aligned", "ap_phase"])
    table = summary_table(frame, "c", headings={"ap_phase": "phase", "ap_aligned": "level"})
    assert table.headings == ("run", "phase", "level")
    assert [line[0] for line in table.lines] == ["m0", "m1", "m1 minus m0"]
    for line, run in zip(table.lines, ("m0", "m1", "m1"), strict=True):
        chosen = frame[(frame["run"] == run) & ((frame["minus"] != "") == (" minus " in line[0]))]
        row = chosen.set_index("metric").loc["ap_phase"]
        value, low, high = (float(text) for text in re.findall(r"-?\d\.\d+", line[1]))
        assert (value, low, high) == pytest.approx((row["mean"], row["low"], row["high"]), abs=6e-4)


@pytest.mark.parametrize(
    ("numbers", "form", "words"),
    [
        ((0.4812, 0.4704, 0.492), "interval", "0.481 [0.470, 0.492]"),
        ((-0.0001, -0.01, 0.01), "interval", "0.000 [-0.010, 0.010]"),
        ((-0.00083, -0.00095, -0.00071), "half", "-0.00083 ± 0.00012"),
        ((math.nan, 0.0, 0.0), "half", "–"),
    ],
)
def test_numbers_in_words(numbers, form, words):
    assert number_words(*numbers, form=form) == words


def test_latex_has_balanced_environments_and_true_minus_signs():
    text = latex_table(TABLE, "means")
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    opened, closed = (re.findall(rf"\\{name}{{(\w+\*?)}}", text) for name in ("begin", "end"))
    assert sorted(opened) == sorted(closed)
    assert r"$-$0.012 [$-$0.020, $-$0.004] \\" in text
    assert r"\label{tab:means}" in text
    rows = [line for line in text.splitlines() if line.endswith(r" \\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [2, 2, 2]
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(rf"\{rule}") == 1
    assert r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}" in text


def test_no_sign_of_a_name_is_a_command():
    known = r"\\(textasciicircum|text\w+|ldots|dag|ddag)\{\}|\$\\pm\$|\\[&%$#_{}]"
    for word in WORDS:
        plain = latex_text(word)
        for command in (r"\allowbreak{}", r"\textbackslash{}", r"\textasciitilde{}", "{[}", "{*}"):
            plain = plain.replace(command, "")
        assert not re.search(r"[\\&%$#_{}~^]", re.sub(known, "", plain)), word


def test_files_of_a_table():
    frame = pd.DataFrame({"run": ["a"], "mean": [0.5]})
    assert list(table_files("means", frame, [])) == ["means.csv"]
    files = table_files("role_shares", frame, [TABLE, TABLE], "study-role_shares")
    assert list(files) == ["role_shares.csv", "role_shares.md", "role_shares.tex"]
    assert files["role_shares.tex"].startswith(PACKAGES)
    labels = re.findall(r"\\label\{(.*)\}", files["role_shares.tex"])
    assert labels == ["tab:study-role-shares", "tab:study-role-shares-2"]
    assert files == table_files("role_shares", frame, [TABLE, TABLE], "study-role_shares")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_digit_is_cut_on_a_terminal(width):
    shown = io.StringIO()
    print_table(TABLE, Console(file=shown, width=width))
    text = " ".join(shown.getvalue().split())
    for line in TABLE.lines:
        for cell in line[1:]:
            assert cell in text
    assert TABLE.note in text
