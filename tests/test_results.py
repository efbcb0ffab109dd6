"""The results in results/smollm2-135m, and the two pages of findings, which describe them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import attention_plasticity as ap
from attention_plasticity.plots.all_figures import figures_of
from attention_plasticity.tables.intervals import corrected, mean_over_heads

ROOT = Path(__file__).parents[1]
RUN = ROOT / "results" / "smollm2-135m"
FINDINGS, ATTENTION = (
    (ROOT / "docs" / f"findings-{name}.md").read_text(encoding="utf-8")
    for name in ("smollm2", "attention")
)


def test_the_run_is_whole() -> None:
    run = ap.open_run(RUN)
    assert len(run.head_metrics) == 270  # reading compares every table with its hash
    assert len(run.component_weights) == 270 * 64
    assert run.bucket_plasticity["plasticity"].between(0, 1).all()
    assert run.info["heads"] == {"analysed": 270, "not_captured": 0, "failed": 0}
    assert not re.search(r'"/(home|tmp|root|work)', (RUN / "run.json").read_text())
    for name in (*figures_of(run), "distances", "beyond"):
        assert (RUN / "figures" / f"{name}.png").is_file()


def test_the_page_tells_the_tables_numbers() -> None:
    run = ap.open_run(RUN)
    level, drop = (mean_over_heads(run, name) for name in ("ap_overall", "ap_drop"))
    row = next(line for line in FINDINGS.splitlines() if line.startswith("| moby-dick-8192 | 270"))
    assert f"| {level.value:.3f} ± {level.standard_error:.3f} |" in row
    assert row.endswith(f"| {drop.value:.3f} ± {drop.standard_error:.3f} |")
    metrics = run.head_metrics
    best = metrics.loc[corrected(metrics, "ap_overall").idxmax()]
    value = f"{best.ap_overall - best.ap_overall_bias:.3f} ± {best.ap_overall_se:.3f}"
    assert f"| {best.layer:.0f}.{best.q_head:.0f} | {value} |" in FINDINGS


@pytest.mark.parametrize("page", [FINDINGS, ATTENTION], ids=["smollm2", "attention"])
def test_every_table_of_the_pages_is_filled(page: str) -> None:
    names = re.findall(r"<!-- end of ([\w-]+) -->", page)
    assert len(names) >= 6
    for name in names:
        table = page.split(f"<!-- {name} -->")[1].split(f"<!-- end of {name} -->")[0]
        assert table.count("\n|") >= 3, name


def test_the_attention_page_has_the_numbers_of_the_tables() -> None:
    run = ap.open_run(RUN)
    for name in ("ap_overall", "ap_attended"):
        mean = mean_over_heads(run, name)
        assert f"| {mean.value:.3f} ± {mean.standard_error:.3f} |" in ATTENTION
    metrics = run.head_metrics
    most = metrics.loc[metrics["attn_sink_mass"].idxmax()]
    value = f"{most.attn_sink_mass:.2f} ± {most.attn_sink_mass_se:.2f}"
    assert f"| {most.layer:.0f}.{most.q_head:.0f} | {value} |" in ATTENTION
