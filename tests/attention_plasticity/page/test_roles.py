"""Roles, words and bands as the page gets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.page import make_report
from attention_plasticity.page.content import run_content
from attention_plasticity.page.roles import role_words
from attention_plasticity.tables.finished_run import FinishedRun
from qk_toolkit.errors import ConfigError
from report_runs import write_run
from role_runs import BANDS, UNSURE_HEAD, WORDS, add_roles

T_11 = 2.200985  # of a table of Student's t: 97.5 %, 11 degrees of freedom


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", position=True)


def content(run: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    return run_content(FinishedRun.open(run), "x")


def texts_of(tables: dict[str, dict[str, Any]]) -> list[str]:
    found: list[str] = json.loads(tables["texts"]["utf8"].tobytes())
    return found


def test_roles_are_numbers_of_names_and_scores_have_half_widths(run: Path) -> None:
    add_roles(run, scores={"repeated_duplicate": np.nan})
    pd.read_csv(run / "head_roles.csv").iloc[::-1].to_csv(run / "head_roles.csv", index=False)
    about, tables = content(run)
    columns, names = tables["roles"], role_words()["names"]
    table = pd.read_csv(run / "head_roles.csv").iloc[::-1]
    assert [names[number] for number in columns["role"]] == table["role"].tolist()
    assert [names[number] for number in columns["likely"]] == table["likely_role"].tolist()
    np.testing.assert_allclose(columns["far_mass"], table["far_mass"], rtol=1e-6)
    np.testing.assert_allclose(columns["far_mass_half_width"], 0.002 * T_11, rtol=1e-6)
    assert "repeated_duplicate" not in columns
    assert "duplicate_mass" not in columns  # only what the card shows
    assert about["roles"]["has_intervals"]
    assert about["roles"]["thresholds"]["previous_mass"] == 0.4


def test_thresholds_of_the_run_are_those_of_the_page(run: Path) -> None:
    info = json.loads((add_roles(run) / "run.json").read_text())
    info["config"]["role_thresholds"] = {"previous": 0.7, "repeated_induction": 0.9}
    (run / "run.json").write_text(json.dumps(info))
    thresholds = content(run)[0]["roles"]["thresholds"]
    assert thresholds["previous_mass"] == 0.7
    assert thresholds["repeated_induction"] == 0.9
    assert thresholds["induction_excess"] == 0.2


def test_every_head_has_a_text_with_its_numbers(run: Path) -> None:
    _, tables = content(add_roles(run))
    texts, columns = texts_of(tables), tables["roles"]
    place = np.flatnonzero((columns["layer"] == 0) & (columns["q_head"] == 2))[0]
    metrics = pd.read_csv(run / "head_metrics.csv")
    row = metrics[(metrics["layer"] == 0) & (metrics["q_head"] == 2)].iloc[0]
    text, half = texts[columns["text"][place]], 100 * 0.002 * T_11
    share = pd.read_csv(run / "head_roles.csv")["previous_mass"][2]
    start = f"Previous-token head. It puts {100 * share:.1f} ± {half:.1f} % of its attention"
    assert text.startswith(start)
    assert f"plasticity at one position {row['ap_aligned']:.2f} ± " in text
    unsure = (columns["layer"] == UNSURE_HEAD[0]) & (columns["q_head"] == UNSURE_HEAD[1])
    assert texts[columns["text"][unsure][0]].startswith("Unsure, likely a previous-token head")


def test_repeated_tokens_decide_about_unsure_resting_heads(run: Path) -> None:
    _, tables = content(add_roles(run, scores={"role": "unsure"}))
    assert not tables["roles"]["repeated_decide"].any()
    _, tables = content(add_roles(run, scores={"role": "unsure", "repeated_induction": np.nan}))
    resting = pd.read_csv(run / "head_roles.csv")["likely_role"].isin(["far", "sink", "mixed"])
    assert tables["roles"]["repeated_decide"].tolist() == resting.tolist()


def test_words_are_stored_once_and_as_they_are(run: Path) -> None:
    _, tables = content(add_roles(run))
    texts, words = texts_of(tables), tables["words"]
    assert len(texts) == len(set(texts))
    first = slice(0, len(WORDS))
    found = [
        (
            role_words()["kinds"][words["kind"][row]],
            words["distance"][row],
            words["weight"][row],
            texts[words["query"][row]],
            texts[words["key"][row]],
        )
        for row in range(*first.indices(len(words["kind"])))
    ]
    assert tuple(found) == WORDS


def test_long_tokens_are_cut(run: Path) -> None:
    _, tables = content(add_roles(run, tokens={"whale": "w" * 100}))
    assert "w" * 40 + "…" in texts_of(tables)
    assert "w" * 41 not in "".join(texts_of(tables))


def test_no_token_is_in_the_html(run: Path) -> None:
    hostile = "</script><script>alert(1)</script>"
    add_roles(run, tokens={"whale": hostile})
    html = make_report([FinishedRun.open(run)]).html
    assert "alert(1)" not in html
    assert "whale" not in make_report([FinishedRun.open(add_roles(run))]).html


@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        ({"tokens": False}, "the capture left out tokens (capture.tokens: false)"),
        ({"tokens": True}, "the dump has no tokens"),
        (None, "the dump has no tokens"),
    ],
)
def test_a_run_without_words_says_why(
    run: Path, capture: dict[str, Any] | None, reason: str
) -> None:
    about, tables = content(add_roles(run, words=False, capture=capture))
    assert "words" not in tables
    assert about["roles"]["why_no_words"] == reason


def test_bands_have_half_widths(run: Path) -> None:
    table = pd.read_csv(add_roles(run, bands=True) / "head_bands.csv")
    table.assign(n_groups=12).to_csv(run / "head_bands.csv", index=False)
    bands = content(run)[1]["bands"]
    assert bands["band"][:BANDS].tolist() == list(range(BANDS))
    np.testing.assert_allclose(bands["norm_product"][:BANDS], [2, 3, 4, 5])
    np.testing.assert_allclose(bands["norm_product_half_width"], 0.5 * T_11, rtol=1e-6)
    assert np.isnan(bands["wavelength"][BANDS - 1])


def test_runs_without_roles_have_no_table_of_them(run: Path) -> None:
    about, tables = content(run)
    assert about["roles"] is None
    assert not {"roles", "words", "bands", "texts"} & set(tables)


def test_damaged_tables_are_refused(run: Path) -> None:
    table = pd.read_csv(add_roles(run) / "head_roles.csv")
    pd.concat([table, table.head(1)]).to_csv(run / "head_roles.csv", index=False)
    with pytest.raises(ConfigError, match="holds two rows for layer 0, q_head 0"):
        content(run)
    table.assign(role="<script>").to_csv(run / "head_roles.csv", index=False)
    with pytest.raises(ConfigError, match=r"head_roles\.csv: role: unknown role"):
        content(run)
