"""The results in results/smollm2-135m, and docs/findings-smollm2.md, which describes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import attention_plasticity as ap
from attention_plasticity.plots.all_figures import FIGURES

ROOT = Path(__file__).parents[1]
RUN = ROOT / "results" / "smollm2-135m"
FINDINGS = (ROOT / "docs" / "findings-smollm2.md").read_text(encoding="utf-8")


def test_the_run_is_whole() -> None:
    run = ap.open_run(RUN)
    assert len(run.head_metrics) == 270  # reading compares every table with its hash
    assert len(run.component_weights) == 270 * 64
    assert run.bucket_plasticity["plasticity"].between(0, 1).all()
    assert run.info["heads"] == {"analysed": 270, "not_captured": 0, "failed": 0}
    assert not re.search(r'"/(home|tmp|root|work)', (RUN / "run.json").read_text())
    for name in (*FIGURES, "beyond"):
        assert (RUN / "figures" / f"{name}.png").is_file()


def test_the_page_tells_the_tables_numbers() -> None:
    metrics = ap.open_run(RUN).head_metrics
    level, drop = metrics["ap_overall"].mean(), metrics["ap_drop"].mean()
    row = next(line for line in FINDINGS.splitlines() if line.startswith("| moby-dick-8192 | 270"))
    assert f"| {level:.3f} |" in row
    assert row.endswith(f"| {drop:.3f} |")
    best = metrics.nlargest(1, "ap_overall").iloc[0]
    assert f"| {best.layer:.0f}.{best.q_head:.0f} | {best.ap_overall:.3f} |" in FINDINGS


@pytest.mark.parametrize("name", re.findall(r"<!-- end of (\w+) -->", FINDINGS))
def test_every_table_of_the_page_is_filled(name: str) -> None:
    table = FINDINGS.split(f"<!-- {name} -->")[1].split(f"<!-- end of {name} -->")[0]
    assert table.count("\n|") >= 3
