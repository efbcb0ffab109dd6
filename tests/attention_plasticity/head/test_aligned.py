"""Plasticity at one position: against counts at one position, and laws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attention_plasticity as ap
from one_position import counted_at_one_position, tapped_dump


@pytest.mark.parametrize(
    ("model_type", "layers", "sampling"),
    [
        ("llama", [1, 2], "bucket"),  # halves
        ("llama", [1], "context"),
        ("llama", [1], "local"),
        ("glm", [0, 2], "bucket"),  # interleaved, half of the dimensions
        ("stablelm", [0, 2], "bucket"),  # halves, half of the dimensions
        ("smollm3", [3], "bucket"),  # no rotary embedding
    ],
)
def test_it_is_what_queries_of_one_position_count(
    tmp_path: Path, model_type: str, layers: list[int], sampling: str
) -> None:
    dump = tapped_dump(tmp_path / "dump", model_type, layers)
    config = ap.make_config(num_pairs_per_bucket=24, pair_sampling=sampling)
    found, counted, overall = [], [], []
    for layer, q_head in dump.query_heads:
        result = ap.analyze_head(layer, q_head, dump=dump, config=config)
        row = result.metrics
        found.append(row["ap_aligned"] - row["ap_aligned_bias"])
        overall.append(row["ap_overall"] - row["ap_overall_bias"])
        counted.append(counted_at_one_position(dump, layer, q_head, result.k_head, config))
        if model_type == "smollm3":
            assert row["ap_phase"] == row["ap_phase_se"] == 0
    differences = np.abs(np.subtract(found, counted))
    assert differences.mean() <= 0.01
    assert differences.max() <= 0.05
    if model_type == "llama":
        assert np.abs(np.subtract(overall, counted)).mean() > 0.1
