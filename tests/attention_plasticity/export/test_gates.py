"""Gates of DuoAttention: which heads keep everything, and what tools make of the file."""

import json

import numpy as np
import pandas as pd
import pytest

from commands_here import run_here
from helpers.export_dumps import provenance
from helpers.export_runs import (
    KEY_HEADS,
    VALUES,
    exported,
    give_roles,
    give_windows,
    make_run,
    refusal,
)
from helpers.run_tables import LAYERS

DUO = "duo"
TABLE = np.reshape(VALUES, (LAYERS, KEY_HEADS))  # in order of size: [2, 4, 3, 0, 5, 1] from 0
NOISE = 1e-6  # which tools add to the gates before they cut them


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", static_error=VALUES[::-1])


def gates_in(folder):
    return np.loadtxt(folder / "full_attention_heads.tsv", dtype=float, delimiter="\t", ndmin=2)


def cut_by_quantile(gates, sparsity, seed):
    """Heads with full attention by the rule of DuoAttention and of a fork of SGLang."""
    noisy = np.clip(gates, 0, 1) + np.random.default_rng(seed).uniform(0, NOISE, gates.shape)
    return noisy >= np.quantile(noisy, sparsity)


def test_gates_are_the_values(run, tmp_path):
    out = exported(run, tmp_path / "out", DUO)
    assert gates_in(out) == pytest.approx(TABLE, abs=1e-9)
    assert json.loads((out / "config.json").read_text()) == {"sink_size": 4, "recent_size": 256}
    facts = provenance(out)
    assert facts["heads"][1] == {
        **{"layer": 0, "k_head": 1, "value": 0.1, "value_se": 0.004},
        **{"gate": 0.1, "copies": 0, "counted": 1, "filled": 0},
    }
    assert "were measured on SmolLM2" in facts["evidence"]
    other = exported(run, tmp_path / "other", DUO, "--order", "static_error")
    assert gates_in(other).ravel() == pytest.approx(VALUES[::-1])


def test_threshold_and_share(run, tmp_path):
    words = ("--threshold", 0.25, "--sink_size", 16, "--recent_size", 100)
    by_threshold = exported(run, tmp_path / "a", DUO, *words)
    by_share = exported(run, tmp_path / "b", DUO, "--share", 0.5)
    expected = (TABLE > 0.25).astype(float).tolist()
    assert gates_in(by_threshold).tolist() == gates_in(by_share).tolist() == expected
    sizes = json.loads((by_threshold / "config.json").read_text())
    assert sizes == {"sink_size": 16, "recent_size": 100}
    assert provenance(by_share)["rules"]["full_attention_heads"] == 3


def test_heads_of_layers_with_a_window_are_full(run, tmp_path):
    give_windows(run, 0)
    found = gates_in(exported(run, tmp_path / "half", DUO, "--share", 0.5))
    assert found.tolist() == [[1, 1], [0, 1], [0, 1]]  # half of the four others
    found = gates_in(exported(run, tmp_path / "values", DUO))
    assert found == pytest.approx(np.vstack([[1, 1], TABLE[1:]]))


@pytest.mark.parametrize("likely", [False, True])
def test_heads_that_copy_keep_everything(run, tmp_path, likely):
    give_roles(run, (2, 0), (0, 1), likely=likely)  # those with the smallest values
    done = run_here("export", run, tmp_path / "share", "--to", DUO, "--share", 0.5)
    assert gates_in(tmp_path / "share").tolist() == [[0, 1], [0, 1], [1, 0]]
    assert "full attention, because they copy: layer 0: 1; layer 2: 0" in done.stdout
    assert "may hurt" not in done.stdout
    assert provenance(tmp_path / "share")["rules"]["copying"]["heads"] == [[0, 1], [2, 0]]
    found = gates_in(exported(run, tmp_path / "threshold", DUO, "--threshold", 0.38))
    assert found.tolist() == [[0, 1], [0, 1], [1, 0]]
    values = gates_in(exported(run, tmp_path / "values", DUO))
    assert sorted(values.ravel())[-2:] == pytest.approx([values[2, 0], values[0, 1]])
    done = run_here("export", run, tmp_path / "w", "--to", DUO, "--share", 0.5, "--window_copying")
    assert gates_in(tmp_path / "w").tolist() == (TABLE > 0.25).tolist()
    assert "a window may hurt these heads, which copy: layer 0: 1; layer 2: 0" in done.stdout
    message = refusal(run, DUO, "--share", 0.2)
    assert "--share: 1 of 6 key heads, but 2 copy and keep full attention" in message
    assert "Give --share 0.34 or more, or --window_copying" in message


def test_heads_whose_role_is_not_known_are_named(run, tmp_path):
    done = run_here("export", run, tmp_path / "a", "--to", DUO, "--share", 0.5)
    assert "whether these heads copy is not known (no roles)" in done.stdout
    assert "hurt them: layer 0: 1; layers 1-2: 0." in done.stdout  # those with a window
    give_roles(run)
    done = run_here("export", run, tmp_path / "b", "--to", DUO, "--share", 0.5)
    assert "not known" not in done.stdout
    roles = pd.read_csv(run / "head_roles.csv")
    resting = roles["layer"] == 2
    roles.loc[resting, ["role", "likely_role"]] = "sink"
    roles.loc[resting, "repeated_induction"] = np.nan
    roles.to_csv(run / "head_roles.csv", index=False, na_rep="nan")
    done = run_here("export", run, tmp_path / "c", "--to", DUO, "--share", 0.5)
    assert "not known (the run has no dump of repeated tokens)" in done.stdout
    assert "hurt them: layer 2: 0. `study`" in done.stdout


def test_equal_values_are_ordered_by_a_second_value(tmp_path):
    equal = [0.3, 0.3, 0.3, 0.4, 0.05, 0.3]
    run = make_run(tmp_path / "run", static_error=equal)  # aligned_plasticity: VALUES
    order = ("--order", "static_error")
    found = gates_in(exported(run, tmp_path / "share", DUO, *order, "--share", 0.5))
    assert found.tolist() == [[1, 0], [0, 1], [0, 1]]
    assert provenance(tmp_path / "share")["rules"]["ties"].endswith("aligned_plasticity")
    values = gates_in(exported(run, tmp_path / "values", DUO, *order))
    assert values == pytest.approx(np.reshape(equal, TABLE.shape), abs=1e-5)
    assert values.ravel().argsort().tolist() == [4, 1, 2, 0, 5, 3]


def test_a_tool_never_decides_by_chance(tmp_path):
    """The cut at a quantile is the same whatever the noise is, also among heads that copy."""
    equal = [0.3, 0.3, 0.3, 1.0, 0.0, 0.3]
    run = give_roles(make_run(tmp_path / "run", far_mass=equal), (0, 1), (2, 0), (1, 0))
    gates = gates_in(exported(run, tmp_path / "out", DUO, "--order", "far_mass"))
    assert ((gates >= 0) & (gates <= 1)).all()
    for sparsity in np.linspace(0.05, 0.95, 19):
        first, *others = (cut_by_quantile(gates, sparsity, seed).tolist() for seed in range(50))
        assert all(other == first for other in others)
    full = cut_by_quantile(gates, 0.5, 0)
    assert full.tolist() == [[False, True], [True, False], [True, False]]


def test_heads_that_nothing_orders_are_refused(tmp_path):
    equal = [0.3, 0.3, 0.2, 0.4, 0.05, 0.35]
    run = make_run(tmp_path / "run", static_error=equal, aligned_plasticity=equal)
    order = ("--order", "static_error")
    message = refusal(run, DUO, *order, "--share", 0.5)
    assert "key heads layer 0: 0-1 have equal values of static_error and of aligned_pl" in message
    assert "chance would decide" in message
    assert "have equal values" in refusal(run, DUO, *order)
    found = gates_in(exported(run, tmp_path / "a", DUO, *order, "--share", 0.34))
    assert found.sum() == 2  # both are on the same side


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--threshold", 0.5, "--share", 0.5), "--threshold: cannot be used together with"),
        (("--threshold", "nan"), "--threshold: expected a number, got nan"),
        (("--order", "ap_aligned_drop"), "ap_aligned_drop are not from 0 to 1, as gates are; give"),
        (("--order", "uniform"), "uniform has no values, and --to duo needs them"),
        (("--rotary", "x"), "--rotary: can only be used with --to triattention or expected-"),
    ],
)
def test_refusals(run, words, message):
    assert message in refusal(run, DUO, *words)
