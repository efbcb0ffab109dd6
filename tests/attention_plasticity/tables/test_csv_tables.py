"""Tables of a run, read and checked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attention_plasticity.columns import GROUP_COLUMNS
from attention_plasticity.tables.csv_tables import read_table
from qk_toolkit.errors import ConfigError


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"q_bucket": math.nan}, "q_bucket: expected integers in the rows of ap_bucket"),
        ({"q_bucket": 1.5}, "q_bucket: expected integers in the rows of ap_bucket"),
        ({"quantity": "ap_overall", "q_bucket": math.nan}, "has two rows for ap_overall"),
        ({"group_03": math.inf}, "group_03: expected finite numbers"),
        ({"group_03": "much"}, "group_03: expected numbers"),
    ],
)
def test_damaged_influences_are_refused(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    row = {"layer": 0, "q_head": 0, "k_head": 0, "value": 0.5, "bias": 0.0, "n_groups": 12}
    row |= dict.fromkeys(GROUP_COLUMNS, 0.01)
    rows = [
        {**row, "quantity": "ap_overall", "q_bucket": math.nan},
        {**row, "quantity": "ap_bucket", "q_bucket": 3},
    ]
    path = tmp_path / "head_influences.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    assert len(read_table(path, "influences")) == 2
    pd.DataFrame([rows[0], {**rows[1], **change}]).to_csv(path, index=False)
    with pytest.raises(ConfigError, match=reason):
        read_table(path, "influences")
