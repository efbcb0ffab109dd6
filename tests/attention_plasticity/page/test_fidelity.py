"""Scores without a query on the page."""

from __future__ import annotations

from pathlib import Path

from attention_plasticity.page.content import run_content
from attention_plasticity.page.fidelity import fidelity_content
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.names import FIDELITY_CAUTION
from fidelity_runs import KINDS, QUANTITIES, add_fidelity
from report_runs import write_run


def test_means_and_key_heads_have_a_row_per_score(tmp_path: Path) -> None:
    run = FinishedRun.open(add_fidelity(write_run(tmp_path / "run")))
    found = fidelity_content(run)
    assert found is not None
    assert run_content(run, "label")[0]["fidelity"] == found
    assert found["caution"] == FIDELITY_CAUTION
    assert [score["id"] for score in found["scores"]] == [f"{name}.{kind}" for name, kind in KINDS]
    assert found["scores"][3]["label"].endswith("× ‖v‖")
    table = run.table("fidelity")
    heads = table.groupby(["layer", "k_head"])
    assert found["of"] == f"mean over {heads.ngroups} key heads"
    assert set(found["heads"]) == {f"{layer}.{head}" for layer, head in heads.groups}
    first = table[(table["layer"] == 0) & (table["k_head"] == 1)].iloc[2]
    texts = found["heads"]["0.1"][2]
    halves = [half_width(first[f"{name}_se"], first["n_groups"]) for name in QUANTITIES]
    values = zip([first[name] for name in QUANTITIES], halves, strict=True)
    assert texts == [f"{value:.3f} ± {half:.3f}" for value, half in values]
    own = table[(table["score"] == "gaussian") & (table["value_norm"] == 0)]
    mean = run.fidelity_means["gaussian", 0]["kept_50"]
    half = half_width(mean.standard_error, mean.groups)
    assert found["means"][2][1] == f"{own['kept_50'].mean():.3f} ± {half:.3f}"
    assert found["means"][-1][0] == "–"  # Spearman of the best keys per query


def test_a_run_without_the_table(tmp_path: Path) -> None:
    run = FinishedRun.open(write_run(tmp_path / "run"))
    assert fidelity_content(run) is None
    assert run_content(run, "label")[0]["fidelity"] is None
