"""Gates of key heads from the values of a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attention_plasticity.export.duo import gates
from export_dumps import provenance
from export_runs import KEY_HEADS, VALUES, drop_heads, exported, give_windows, make_run, refusal
from run_tables import LAYERS

TABLE = np.reshape(VALUES, (LAYERS, KEY_HEADS))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", static_error=VALUES[::-1])


def gates_in(folder: Path) -> np.ndarray:
    return np.loadtxt(folder / "full_attention_heads.tsv", dtype=float, delimiter="\t", ndmin=2)


def test_gates_are_the_values(run: Path, tmp_path: Path) -> None:
    out = exported(run, tmp_path / "out", "duo")
    assert gates_in(out) == pytest.approx(TABLE)
    assert json.loads((out / "config.json").read_text()) == {"sink_size": 4, "recent_size": 256}
    facts = provenance(out)
    assert facts["format"] == "duo"
    assert (facts["num_layers"], facts["num_k_heads"]) == (LAYERS, KEY_HEADS)
    assert facts["heads"][1] == {
        **{"layer": 0, "k_head": 1, "value": 0.1, "value_se": 0.004},
        **{"gate": 0.1, "counted": 1, "filled": 0},
    }
    assert "was not measured" in facts["evidence"]
    other = exported(run, tmp_path / "other", "duo", "--order", "static_error")
    assert gates_in(other).ravel() == pytest.approx(VALUES[::-1])


def test_threshold_and_share(run: Path, tmp_path: Path) -> None:
    words = ("--threshold", 0.25, "--sink_size", 16, "--recent_size", 100)
    by_threshold = exported(run, tmp_path / "a", "duo", *words)
    by_share = exported(run, tmp_path / "b", "duo", "--share", 0.5)
    expected = (TABLE > 0.25).astype(float).tolist()
    assert gates_in(by_threshold).tolist() == gates_in(by_share).tolist() == expected
    sizes = json.loads((by_threshold / "config.json").read_text())
    assert sizes == {"sink_size": 16, "recent_size": 100}
    assert provenance(by_share)["rules"]["full_attention_heads"] == 3


def test_layers_with_a_window_have_the_gate_1(run: Path, tmp_path: Path) -> None:
    give_windows(run, 0)
    found = gates_in(exported(run, tmp_path / "half", "duo", "--share", 0.5))
    assert found.tolist() == [[1, 1], [0, 1], [0, 1]]  # half of the four others
    found = gates_in(exported(run, tmp_path / "values", "duo"))
    assert found == pytest.approx(np.vstack([[1, 1], TABLE[1:]]))


def test_a_missing_head_has_the_mean(run: Path, tmp_path: Path) -> None:
    drop_heads(run, 2, 1)
    out = exported(run, tmp_path / "out", "duo", "--missing", "mean")
    assert gates_in(out)[2, 1] == pytest.approx(np.mean(VALUES[:5]), abs=1e-6)
    facts = provenance(out)
    assert facts["rules"]["missing"]["heads"] == [[2, 1]]
    assert facts["heads"][5]["filled"] == 1
    assert facts["heads"][5]["value_se"] is None


def test_gates_of_equal_values_come_in_the_order_of_heads() -> None:
    values = np.array([0.2, 0.9, 0.2, 0.2])
    assert gates(values, None, 0.5).tolist() == [1, 1, 0, 0]
    assert gates(values, None, 0.0).tolist() == [0, 0, 0, 0]
    assert gates(values, None, 1.0).tolist() == [1, 1, 1, 1]
    assert gates(values, 0.9, None).tolist() == [0, 1, 0, 0]
    assert gates(values * 2 - 0.6, None, None) == pytest.approx(np.array([0, 1, 0, 0]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--recent_size", 0), "--recent_size: expected an integer of at least 1, got '0'"),
        (("--threshold", 0.5, "--share", 0.5), "--threshold: cannot be used together with"),
        (("--share", 1.5), "--share: expected a number from 0 to 1, got '1.5'"),
        (("--threshold", "nan"), "--threshold: expected a number, got 'nan'"),
        (("--sink_size", -3), "--sink_size: expected an integer of at least 0, got '-3'"),
        (("--order", "attn_entropy"), "attn_entropy are not from 0 to 1, as gates are; give"),
        (("--rule", "ramp"), "--rule: can only be used with --to kvpress-budget"),
        (("--rotary", "x"), "--rotary: can only be used with --to triattention or expected-"),
    ],
)
def test_refusals(run: Path, words: tuple[object, ...], message: str) -> None:
    assert message in refusal(run, "duo", *words)
