"""Budgets of key heads: the files, what is printed, and a dump with planted heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.export.division import RULES, kept_shares
from attention_plasticity.export.kvpress_budget import EVIDENCE
from commands_here import analyze_here, run_here
from export_dumps import provenance
from export_runs import (
    KEY_HEADS,
    VALUES,
    exported,
    give_windows,
    make_run,
    planted_dump,
    refusal,
)
from run_tables import LAYERS

BUDGET = "kvpress-budget"
COLUMNS = (
    "layer k_head value value_se rank rank_low rank_high kept_at_25 kept_at_50 kept_at_75 "
    "kept_at_90 counted filled"
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.mark.parametrize("rule", [None, *RULES])
def test_all_files_have_the_same_numbers(run: Path, tmp_path: Path, rule: str | None) -> None:
    words = () if rule is None else ("--rule", rule)
    out = exported(run, tmp_path / "out", BUDGET, *words)
    assert {path.name for path in out.iterdir()} == {"budget.npy", "budget.csv", "PROVENANCE.json"}
    curves = np.load(out / "budget.npy", allow_pickle=False)
    assert curves.dtype == np.float64
    assert curves.flags.c_contiguous
    assert curves.shape == (99, LAYERS, KEY_HEADS)
    assert curves.mean(axis=(1, 2)) == pytest.approx(np.arange(1, 100) / 100, abs=1e-12)
    table = pd.read_csv(out / "budget.csv")
    assert " ".join(table.columns) == COLUMNS
    assert table["value"].tolist() == VALUES
    assert (table["value_se"] == 0.004).all()
    assert table["rank"].tolist() == [3, 5, 4, 1, 6, 2]
    for percent in (25, 50, 75, 90):
        kept = table[f"kept_at_{percent}"].to_numpy()
        assert kept == pytest.approx(1.0 - curves[percent - 1].ravel(), abs=1e-12)
        own = kept_shares(np.array(VALUES), 1.0 - percent / 100, rule or "cube")
        assert kept == pytest.approx(own, abs=1e-12)
    facts = provenance(out)
    assert facts["heads"] == table.to_dict("records")
    assert facts["evidence"].startswith(EVIDENCE["aligned_plasticity"])
    unmeasured = f"not measured with the rule {rule}" in facts["evidence"]
    assert unmeasured == (rule not in (None, "cube"))
    assert facts["rules"]["rule"].startswith(f"{rule or 'cube'}: ")
    assert facts["rules"]["order"] == "aligned_plasticity"
    assert set(facts["sha256"]) == {"budget.npy", "budget.csv"}


def test_provenance_says_for_which_model_the_file_is(run: Path, tmp_path: Path) -> None:
    facts = provenance(exported(run, tmp_path / "out", BUDGET))
    assert facts["made_by"] == "attention-plasticity export"
    assert facts["format"] == BUDGET
    assert (facts["model"], facts["revision"]) == ("owner/Tiny-1B", "abc")
    assert (facts["num_layers"], facts["num_k_heads"]) == (LAYERS, KEY_HEADS)
    assert (facts["run"], facts["dump"], facts["context"]) == (str(run), "dump", 768)
    assert facts["command"].endswith(f"{run} {tmp_path / 'out'} --to {BUDGET}")


def test_uniform_is_a_flat_curve(run: Path, tmp_path: Path) -> None:
    out = exported(run, tmp_path / "out", BUDGET, "--order", "uniform")
    curves = np.load(out / "budget.npy")
    assert np.ptp(curves, axis=(1, 2)) == pytest.approx(0.0, abs=1e-12)
    assert curves[:, 0, 0] == pytest.approx(np.arange(1, 100) / 100)
    assert pd.read_csv(out / "budget.csv")["value"].isna().all()
    assert provenance(out)["evidence"] == EVIDENCE["uniform"]
    assert "--order: uniform has no values" in refusal(run, "duo", "--order", "uniform")


def test_layers_with_a_window_lose_no_keys(run: Path, tmp_path: Path) -> None:
    give_windows(run, 0)
    done = run_here("export", run, tmp_path / "out", "--to", BUDGET)
    assert "not counted: 2 key heads of layers 0" in done.stdout
    curves = np.load(tmp_path / "out" / "budget.npy")
    assert (curves[:, 0] == 0.0).all()
    assert curves[:, 1:].mean(axis=(1, 2)) == pytest.approx(np.arange(1, 100) / 100, abs=1e-12)
    table = pd.read_csv(tmp_path / "out" / "budget.csv")
    assert table["counted"].tolist() == [0, 0, 1, 1, 1, 1]
    assert (table.loc[:1, "kept_at_90"] == 1.0).all()
    assert table.loc[:1, "rank"].isna().all()
    rules = provenance(tmp_path / "out")["rules"]
    assert rules["not_counted_layers"] == [0]
    assert "lose no keys" in rules["not_counted"]


def test_what_is_printed(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_here("export", run, out, "--to", BUDGET, "--rule", "ramp")
    first, *lines, module, press, last = done.stdout.splitlines()
    assert first == (
        "Tiny-1B: 6 key heads, texts of up to 768 tokens; order aligned_plasticity, rule ramp; "
        "kept at 50 % compression: 0.1 to 0.9 of the keys"
    )
    rows = [line.split() for line in lines if line.split()[:2] == ["1", "1"]]
    assert rows == [["1", "1", "0.4000", "0.0078", "1", "1", "to", "1", "0.9000"]]
    text = "\n".join(lines)
    assert "± (95 %)" in text
    assert "95 % interval of a rank spans 1 of 6 ranks in the median" in text
    assert EVIDENCE["aligned_plasticity"] in text
    assert module == "from attention_plasticity.kvpress import BudgetPress"
    assert press == (
        f'press = BudgetPress(SnapKVPress(), "{out}/budget.npy", compression_ratio=0.5)'
    )
    assert last == str(out)
    assert len(done.stdout.splitlines()) < 24


def test_another_order_says_what_was_measured(run: Path, tmp_path: Path) -> None:
    for order, told in (
        ("static_error", EVIDENCE["static_error"]),
        ("far_mass", "changed the output more than equal budgets"),
        ("received_gini", "Budgets in this order were not measured."),
    ):
        done = run_here("export", run, tmp_path / order, "--to", BUDGET, "--order", order)
        assert done.returncode == 0, done.stderr
        text = " ".join(done.stdout.split())
        assert told in text
        assert EVIDENCE["aligned_plasticity"] not in text


def test_values_without_errors(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", aligned_plasticity_se=np.nan)
    done = run_here("export", run, tmp_path / "out", "--to", BUDGET)
    assert "How sure the ranks are is not known" in done.stdout
    table = pd.read_csv(tmp_path / "out" / "budget.csv")
    assert table["rank_low"].isna().all()
    assert table["rank"].tolist() == [3, 5, 4, 1, 6, 2]
    assert provenance(tmp_path / "out")["heads"][0]["value_se"] is None


def test_a_folder_is_replaced_on_request_and_only_if_it_is_unchanged(
    run: Path, tmp_path: Path
) -> None:
    out = exported(run, tmp_path / "out", BUDGET)
    words = ("export", run, out, "--to", "duo")
    assert "exists; give --overwrite" in run_here(*words).stderr
    (out / "budget.csv").write_text("changed")
    assert "has files that export did not write" in run_here(*words, "--overwrite").stderr
    assert (out / "budget.csv").read_text() == "changed"


def test_planted_heads_of_a_dump(tmp_path: Path) -> None:
    dump, run = planted_dump(tmp_path / "dump"), tmp_path / "run"
    layout = ("--num_layers", 1, "--num_q_heads", 6, "--num_k_heads", 3)
    done = analyze_here("--dataset_local_root", dump, "--output_dir", run, *layout)
    assert done.returncode == 0, done.stderr
    for order in ("static_error", "aligned_plasticity"):
        out = exported(run, tmp_path / order, BUDGET, "--order", order, "--rule", "ramp")
        table = pd.read_csv(out / "budget.csv")
        assert table["rank"].tolist() == [3, 2, 1]
        assert table["kept_at_75"].tolist() == pytest.approx([0.05, 0.25, 0.45])
        if order == "static_error":
            assert table["value"].tolist() == pytest.approx([0.0, 0.25, 0.5], abs=0.05)
    out = exported(run, tmp_path / "gates", "duo", "--share", "0.34")
    gates = np.loadtxt(out / "full_attention_heads.tsv", delimiter="\t", ndmin=2)
    assert gates.tolist() == [[0, 0, 1]]
    message = refusal(dump, BUDGET)
    assert f"{dump}: is a dump; --to {BUDGET} needs a finished run. Make it with" in message
    assert f"attention-plasticity analyze {dump} --output_dir RUN" in message
    done = run_here("export", "hf://datasets/owner/name", tmp_path / "hub", "--to", BUDGET)
    assert "hf://datasets/owner/name: is a dump; --to" in done.stderr  # nothing is fetched
    message = refusal(run, "q-filters")
    assert f"{run}: is a finished run; --to q-filters needs a dump" in message
    assert str(dump) in message
    assert "attention-plasticity capture" in message


def test_a_place_with_neither(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds neither run.json nor tables" in refusal(tmp_path / "empty", BUDGET)
    assert "does not exist" in refusal(tmp_path / "absent", "duo")
