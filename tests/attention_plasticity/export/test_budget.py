"""Budgets and gates of key heads: the files, what is printed, and what both formats share."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from attention_plasticity.export.budget import EVIDENCE
from attention_plasticity.export.division import RULES
from commands_here import analyze_here, run_here
from dumps import add_rotary, make_dump
from helpers.export_dumps import provenance
from helpers.export_runs import KEY_HEADS, VALUES, exported, give_windows, make_run, refusal
from helpers.run_tables import LAYERS

BUDGET, DUO = "kvpress-budget", "duo"
COLUMNS = (
    "layer k_head value value_se rank rank_low rank_high kept_at_25 kept_at_50 kept_at_75 "
    "kept_at_90 counted filled"
)
TABLE = np.reshape(VALUES, (LAYERS, KEY_HEADS))


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", static_error=VALUES[::-1])


@pytest.fixture(scope="module")
def analysed(tmp_path_factory):
    """A dump and its analysis."""
    folder = tmp_path_factory.mktemp("analysed")
    dump = make_dump(folder / "dump", layers=1, q_heads=4, k_heads=2, n=300)
    words = ("--num_layers", 1, "--num_q_heads", 4, "--num_k_heads", 2)
    done = analyze_here(add_rotary(dump), "--output_dir", folder / "run", *words)
    assert done.returncode == 0, done.stderr
    return dump, folder / "run"


@pytest.mark.parametrize("rule", [None, *RULES])
def test_all_files_of_budgets_have_the_same_numbers(run, tmp_path, rule):
    words = () if rule is None else ("--rule", rule)
    out = exported(run, tmp_path / "out", BUDGET, *words)
    assert {path.name for path in out.iterdir()} == {"budget.npy", "budget.csv", "PROVENANCE.json"}
    curves = np.load(out / "budget.npy", allow_pickle=False)
    assert (curves.dtype, curves.shape) == (np.float64, (99, LAYERS, KEY_HEADS))
    assert curves.mean(axis=(1, 2)) == pytest.approx(np.arange(1, 100) / 100, abs=1e-12)
    table = pd.read_csv(out / "budget.csv")
    assert " ".join(table.columns) == COLUMNS
    assert table["value"].tolist() == VALUES
    assert (table["value_se"] == 0.004).all()
    assert table["rank"].tolist() == [3, 5, 4, 1, 6, 2]
    for percent in (25, 50, 75, 90):
        kept = table[f"kept_at_{percent}"].to_numpy()
        assert kept == pytest.approx(1.0 - curves[percent - 1].ravel(), abs=1e-12)
    facts = provenance(out)
    assert facts["heads"] == table.to_dict("records")
    assert facts["evidence"].startswith(EVIDENCE["aligned_plasticity"])
    unmeasured = f"not measured with the rule {rule}" in facts["evidence"]
    assert unmeasured == (rule not in (None, "ratio"))
    assert facts["rules"]["rule"].startswith(f"{rule or 'ratio'}: ")
    assert set(facts["sha256"]) == {"budget.npy", "budget.csv"}


def test_uniform_is_a_flat_curve(run, tmp_path):
    out = exported(run, tmp_path / "out", BUDGET, "--order", "uniform")
    curves = np.load(out / "budget.npy")
    assert np.ptp(curves, axis=(1, 2)) == pytest.approx(0.0, abs=1e-12)
    assert curves[:, 0, 0] == pytest.approx(np.arange(1, 100) / 100)
    assert pd.read_csv(out / "budget.csv")["value"].isna().all()
    assert provenance(out)["evidence"] == EVIDENCE["uniform"]
    assert "--order: uniform has no values" in refusal(run, DUO, "--order", "uniform")


def test_layers_with_a_window_lose_no_keys(run, tmp_path):
    give_windows(run, 0)
    done = run_here("export", run, tmp_path / "out", "--to", BUDGET)
    assert "not counted: 2 key heads of layers 0" in done.stdout
    curves = np.load(tmp_path / "out" / "budget.npy")
    assert (curves[:, 0] == 0.0).all()
    assert curves[:, 1:].mean(axis=(1, 2)) == pytest.approx(np.arange(1, 100) / 100, abs=1e-12)
    table = pd.read_csv(tmp_path / "out" / "budget.csv")
    assert table["counted"].tolist() == [0, 0, 1, 1, 1, 1]
    assert table.loc[:1, "rank"].isna().all()
    rules = provenance(tmp_path / "out")["rules"]
    assert rules["not_counted_layers"] == [0]
    assert "lose no keys" in rules["not_counted"]


def test_what_is_printed(run, tmp_path):
    out = tmp_path / "out"
    done = run_here("export", run, out, "--to", BUDGET, "--rule", "ramp")
    first, *lines, _, press, last = done.stdout.splitlines()
    assert first.startswith("Tiny-1B: 6 key heads, texts of up to 768 tokens; order aligned_pl")
    assert first.endswith("rule ramp; kept at 50 % compression: 0.1 to 0.9 of the keys")
    rows = [line.split() for line in lines if line.split()[:2] == ["1", "1"]]
    half = f"{0.004 * student.ppf(0.975, 11):.4f}"  # 12 groups of texts
    assert rows == [["1", "1", "0.4000", half, "1", "1", "1", "0.9000"]]
    assert f'"{out}/budget.npy", compression_ratio=0.5)' in press
    assert last == str(out)


def test_a_dump_that_changed_since_is_told_by_both_formats(analysed, tmp_path):
    dump, run = analysed
    whole = Path(shutil.copytree(dump, tmp_path / "whole"))
    found = {}
    for state in ("before", "after"):
        for kind in (BUDGET, DUO):
            done = run_here("export", run, tmp_path / f"{state}-{kind}", "--to", kind)
            assert done.returncode == 0
            facts = provenance(tmp_path / f"{state}-{kind}")
            found[state, kind] = facts["heads"]
            assert facts["dump_changed"] is (state == "after")
            told = f"{dump}: has changed since the analysis; the values are those of {run}"
            assert (told in " ".join(done.stderr.split())) == (state == "after")
        shutil.copytree(whole / "l00h02q", dump / "l00h01q", dirs_exist_ok=True)
    shutil.copytree(whole, dump, dirs_exist_ok=True)
    for kind in (BUDGET, DUO):
        assert found["before", kind] == found["after", kind]


def test_a_dump_or_a_run_in_place_of_the_other(analysed, tmp_path):
    dump, run = analysed
    message = refusal(dump, BUDGET)
    assert f"{dump}: is a dump; --to {BUDGET} needs a finished run. Make it with" in message
    assert f"attention-plasticity analyze {dump} RUN" in message
    done = run_here("export", "hf://datasets/owner/name", tmp_path / "hub", "--to", BUDGET)
    assert "hf://datasets/owner/name: is a dump; --to" in done.stderr  # nothing is fetched
    message = refusal(run, "q-filters")
    assert f"{run}: is a finished run; --to q-filters needs a dump" in message
    assert str(dump) in message
    assert "attention-plasticity capture" in message
    (tmp_path / "empty").mkdir()
    assert "holds neither run.json nor tables" in refusal(tmp_path / "empty", BUDGET)
    within = shutil.copytree(run, tmp_path / "within" / "run")
    assert f"the folder of an analysis, such as {within}" in refusal(tmp_path / "within", BUDGET)
    assert "does not exist" in refusal(tmp_path / "absent", DUO)
