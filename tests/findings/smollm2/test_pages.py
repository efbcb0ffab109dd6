"""The tables of the pages about roles and attention are those of the published run."""

from __future__ import annotations

from pathlib import Path

import attention_plasticity as ap
from findings.smollm2 import attention, roles
from findings.tables import cells, with_tables

ROOT = Path(__file__).parents[3]
RUN = ROOT / "results" / "smollm2-135m"


def test_the_tables_of_heads_are_those_of_the_published_run() -> None:
    run = ap.open_run(RUN)
    metrics = run.head_metrics
    gap = metrics["ap_attended"] - metrics["ap_aligned"]
    shown = metrics.assign(plasticity=cells(run, "ap_aligned"))
    heads = run.table("roles").merge(shown, on=["layer", "q_head"], suffixes=("", "_of_metrics"))
    heads["fast"] = roles._fast_share(run, heads)
    tables = {
        "findings-attention": {
            "attention-layers": attention._layers(run, metrics),
            "far-heads": attention._heads(run, metrics["attn_far_mass"]),
            "sink-heads": attention._heads(run, metrics["attn_sink_mass"]),
            "attended-heads": attention._heads(run, gap),
            "correlations": attention._correlations(metrics),
        },
        "findings-roles": {
            "roles": roles._roles(run, heads),
            "role-heads": roles._role_heads(heads),
            "induction-heads": roles._induction(heads),
            "role-bands": roles._bands(heads),
        },
    }
    for page, found in tables.items():
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert with_tables(text, found) == text, page
