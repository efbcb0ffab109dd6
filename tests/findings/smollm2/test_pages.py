"""The tables of the pages are those of the published run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import attention_plasticity as ap
from findings.smollm2.heads import attention_tables, head_tables
from findings.smollm2.phase import phase_tables
from findings.smollm2.roles import role_tables
from findings.tables import with_tables

ROOT = Path(__file__).parents[3]
RUN = ROOT / "results" / "smollm2-135m"
OTHER_RUNS = {"levels", "levels-bucket", "attended"}
"""Tables that need more runs than the published one."""


def test_the_tables_of_heads_are_those_of_the_published_run() -> None:
    run, counts = ap.open_run(RUN), pd.read_csv(RUN / "head_counts.csv")
    pages = {
        "findings-smollm2": head_tables({}, run),
        "findings-attention": attention_tables(run, run),
        "findings-roles": role_tables(run),
        "plasticity": phase_tables(run, counts),
    }
    for page, tables in pages.items():
        found = {name: table for name, table in tables if name not in OTHER_RUNS}
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert with_tables(text, found) == text, page
