"""Values of key heads from the tables of a run: their columns, errors and windows; refusals."""

import json

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.export.order import ordered_heads
from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.tables.finished_run import FinishedRun
from commands_here import run_here
from helpers.export_runs import LAYOUT, VALUES, drop_heads, make_run, refusal
from helpers.plain_runs import edit_info
from helpers.run_tables import add_errors, write_run

BUDGET = "kvpress-budget"


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def heads_of(run, order="aligned_plasticity", missing="refuse"):
    return ordered_heads(FinishedRun.open(run), order, missing)


def record_reason(run, table, column, where, reason):
    record = {"table": table, "columns": [column], "where": where, "reason": reason}
    edit_info(run, missing=[{**record, "heads": 1, "values": 1}])


def test_columns_of_query_heads_are_means_with_the_errors_of_shared_texts(run):
    add_errors(run)
    heads = pd.read_csv(run / "head_metrics.csv")
    influences = pd.read_csv(run / "head_influences.csv")
    for order in ("ap_pooled", "ap_aligned"):
        found = heads_of(run, order)
        assert "which all heads share" in found.errors_from
        own = heads.groupby(["layer", "k_head"])[order].mean()
        assert found.value == pytest.approx(own.to_numpy())
        chosen = influences[influences["quantity"] == order]
        moved = chosen.groupby(["layer", "k_head"])[list(GROUP_COLUMNS)].mean().to_numpy()
        assert found.standard_error == pytest.approx(np.linalg.norm(moved, axis=1))


def test_an_unknown_order_is_answered_with_the_nearest(run):
    for kind in (BUDGET, "duo"):
        message = refusal(run, kind, "--order", "aligned_plasticty")
        assert "unknown order; did you mean aligned_plasticity?" in message
    message = refusal(run, BUDGET, "--order", "xyz")
    assert "expected a column with a standard error of key_head_metrics.csv or" in message
    assert "unknown order" in refusal(run, BUDGET, "--order", "n_pairs")  # it has no error


def test_runs_without_their_model_or_table_are_refused(run, tmp_path):
    without = edit_info(write_run(tmp_path / "without"), head_layout=LAYOUT)
    assert "has no key_head_metrics.csv" in refusal(without, BUDGET)
    path = make_run(tmp_path / "earlier") / "key_head_metrics.csv"
    pd.read_csv(path).drop(columns="n_q_heads").to_csv(path, index=False, na_rep="nan")
    assert "with the numbers of query heads" in refusal(path.parent, BUDGET)
    assert heads_of(without, "ap_overall").value.shape == (6,)  # the other table has it
    assert heads_of(without, "uniform").counted.all()
    edit_info(run, head_layout={})
    assert "numbers of layers and heads" in refusal(run, BUDGET)
    edit_info(run, head_layout={**LAYOUT, "guessed": True})  # counted from the heads of the dump
    assert "numbers of layers and heads" in refusal(run, "duo")


@pytest.mark.parametrize("kind", ["rows", "query heads", "values", "layers"])
def test_missing_heads_are_refused_or_filled(tmp_path, kind):
    run, place = make_run(tmp_path / "run"), "layer 1: 0"
    expected = [*VALUES[:2], np.mean([*VALUES[:2], *VALUES[3:]]), *VALUES[3:]]
    reason = "not all of its query heads were analysed"
    if kind == "rows":
        drop_heads(run, 1, 0)
    elif kind == "query heads":
        make_run(run, n_q_heads=[2, 2, 1, 2, 2, 2])
        failure = {"layer": 1, "q_head": 1, "k_head": 0, "reason": "l01h01q: has one query"}
        edit_info(run, failures=[failure])
        reason = "a query head failed: l01h01q: has one query"
    elif kind == "values":
        make_run(run, aligned_plasticity=[*VALUES[:2], np.nan, *VALUES[3:]])
        record_reason(run, "key_heads", "aligned_plasticity", {"1": "0"}, "no rotary record")
        reason = "no rotary record"
    else:
        edit_info(run, head_layout={**LAYOUT, "num_layers": 4})
        place = "layer 3: 0-1"
        expected = [*VALUES, *[np.mean(VALUES)] * 2]
    message = refusal(run, BUDGET)
    assert f"{place} ({reason})" in message
    assert "Capture and analyze these heads, or choose another --order, or give" in message
    assert message == refusal(run, "duo")
    found = heads_of(run, missing="mean")
    assert found.value == pytest.approx(np.array(expected))
    filled = np.flatnonzero(found.filled).tolist()
    assert filled == ([6, 7] if kind == "layers" else [2])
    rank, low, high = found.ranks()
    assert not np.isnan(rank).any()
    known = ~found.filled  # a filled head does not make the ranks of others less sure
    assert low[known].tolist() == high[known].tolist() == rank[known].tolist()
    assert np.flatnonzero(np.isnan(low)).tolist() == filled
    done = run_here("export", run, tmp_path / "out", "--to", BUDGET, "--missing", "mean")
    assert done.returncode == 0
    assert f"{place} ({reason}). A key head without a value has the mean" in done.stderr
    assert f" of {len(expected)} ranks in the median" in done.stdout
    facts = json.loads((tmp_path / "out" / "PROVENANCE.json").read_text())
    assert len(facts["rules"]["missing"]["heads"]) == len(filled)
    table = pd.read_csv(tmp_path / "out" / "budget.csv")
    assert np.flatnonzero(table["filled"]).tolist() == filled


def test_all_values_missing_are_refused(tmp_path):
    run = make_run(tmp_path / "run", aligned_plasticity=np.nan)
    for missing in ("refuse", "mean"):
        message = refusal(run, BUDGET, "--missing", missing)
        assert "6 key heads without aligned_plasticity: layers 0-2: 0-1 (" in message
        assert "--missing mean" not in message
    assert "6 key heads without attn_entropy" in refusal(
        run, "duo", "--order", "attn_entropy", "--share", "0.5"
    )


def test_errors_of_query_heads_without_influences_are_independent(run):
    heads = pd.read_csv(run / "head_metrics.csv")
    squares = (heads["ap_aligned_se"] ** 2).groupby([heads["layer"], heads["k_head"]]).sum()
    found = heads_of(run, "ap_aligned")
    assert found.standard_error == pytest.approx(np.sqrt(squares.to_numpy()) / 2)
    assert "independent" in found.errors_from


def test_far_attention_of_key_heads_has_the_influences_of_its_query_heads(run):
    add_errors(run)
    table = pd.read_csv(run / "head_influences.csv")
    rows = table[table["quantity"] == "ap_aligned"].assign(quantity="attn_far_mass")
    pd.concat([table, rows]).to_csv(run / "head_influences.csv", index=False, na_rep="nan")
    found = heads_of(run, "far_mass")
    assert found.influences == pytest.approx(heads_of(run, "ap_aligned").influences)


def test_heads_of_layers_with_chunks_are_not_counted_and_may_be_absent(run):
    for k_head in (0, 1):
        drop_heads(run, 1, k_head)
    edit_info(run, input__dump__layers=[{"layer": 1, "type": "chunked_attention"}])
    assert heads_of(run).counted.tolist() == [True, True, False, False, True, True]
