"""Tables of a run, read and checked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.tables.csv_tables import read_table
from qk_toolkit.errors import ConfigError


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bin": math.nan}, "bin: expected integers in the rows of ap_bin"),
        ({"bin": 1.5}, "bin: expected integers in the rows of ap_bin"),
        ({"quantity": "ap_aligned", "bin": math.nan}, "has two rows for ap_aligned"),
        ({"group_03": math.inf}, "group_03: expected numbers from"),
        ({"group_03": "much"}, "group_03: expected numbers"),
    ],
)
def test_damaged_influences_are_refused(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    row = {"layer": 0, "q_head": 0, "k_head": 0, "value": 0.5, "n_groups": 12}
    row |= dict.fromkeys(GROUP_COLUMNS, 0.01)
    rows = [
        {**row, "quantity": "ap_aligned", "bin": math.nan},
        {**row, "quantity": "ap_bin", "bin": 3},
    ]
    path = tmp_path / "head_influences.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    assert len(read_table(path, "influences")) == 2
    pd.DataFrame([rows[0], {**rows[1], **change}]).to_csv(path, index=False)
    with pytest.raises(ConfigError, match=reason):
        read_table(path, "influences")


@pytest.mark.parametrize(
    ("column", "cells", "reason"),
    [
        ("ap_overall", ("True", "False"), "ap_overall: expected numbers, got 'True'"),
        ("layer", ("True", "False"), "layer: expected numbers, got 'True'"),
        ("q_R2_pos", ("", "True"), "q_R2_pos: expected numbers, got 'True'"),
        ("q_R2_pos", ("0.5", "1j"), "q_R2_pos: expected numbers, got '1j'"),
        ("layer", ("0", "1.5"), "layer: expected integers of 0 to 999, got 1.5"),
        ("layer", ("0", "-3"), "layer: expected integers of 0 to 999, got -3"),
        ("q_head", ("0", ""), "q_head: expected integers of 0 to 4095, got nan"),
        ("q_head", ("0", "1" + 30 * "0"), "q_head: expected integers of 0 to 4095, got 1e+30"),
        (
            "ap_overall",
            ("0.5", "inf"),
            "ap_overall: expected numbers from -1e+38 to 1e+38, got inf",
        ),
        ("ap_phase", ("1e308", "0"), "ap_phase: expected numbers from -1e+38 to 1e+38, got 1e+308"),
        ("ap_phase", ("9" * 400, "0"), "ap_phase: expected numbers from -1e+38 to 1e+38, got inf"),
        ("ap_phase_se", ("0.1", "-1"), "ap_phase_se: expected numbers from 0 to 1e+38, got -1"),
        ("d_model", ("64", "inf"), "d_model: expected numbers from 0 to 1e+38, got inf"),
        ("n_text_groups", ("12", "-1"), "n_text_groups: expected numbers from 0 to 1e+38, got -1"),
    ],
)
def test_values_that_no_head_has_are_refused(
    column: str, cells: tuple[str, str], reason: str, tmp_path: Path
) -> None:
    rows = {"layer": ["0", "0"], "q_head": ["0", "1"], "ap_overall": ["0.5", "nan"]}
    rows[column] = list(cells)
    path = tmp_path / "head_metrics.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    with pytest.raises(ConfigError) as caught:
        read_table(path, "head_metrics")
    assert str(caught.value) == f"{path}: {reason}"


def test_the_drift_of_queries_has_any_scale(tmp_path: Path) -> None:
    path = tmp_path / "head_metrics.csv"
    path.write_text("layer,q_head,ap_overall,q_beta_norm\n0,0,0.5,1e300\n0,1,0.5,inf\n")
    assert read_table(path, "head_metrics")["q_beta_norm"].tolist() == [1e300, math.inf]
