"""Rotary bands of tiny models with several rope types: captures before and after RoPE agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import qk_sniffer
from attention_plasticity import analyze_head, open_dump
from attention_plasticity.measure.result import HeadResult
from qk_dump.heads import HeadId
from qk_dump.reader import read_head
from rope_types import model_of
from tiny_models import VOCABULARY


def captured(root: Path, rope_type: str, *, pre_rope: bool) -> HeadResult:
    model = model_of(rope_type)
    tokens = torch.randint(8, VOCABULARY, (5, 24), generator=torch.Generator().manual_seed(1))
    how = {"sampler": "all", "tokens": False, "pre_rope": pre_rope}
    with torch.no_grad(), qk_sniffer.tap(model, layers=[1], **how) as tapped:
        model(input_ids=tokens)
    return analyze_head(1, 1, dump=open_dump(tapped.save(root)))


@pytest.mark.parametrize("rope_type", ["default", "linear", "yarn", "llama3", "proportional"])
def test_captures_before_and_after_rope_agree(tmp_path: Path, rope_type: str) -> None:
    """YaRN has a factor on cos and sin, `proportional` has bands that do not turn."""
    after = captured(tmp_path / "after", rope_type, pre_rope=False)
    before = captured(tmp_path / "before", rope_type, pre_rope=True)
    for table in ("bands", "kernel"):
        one, other = after.tables[table], before.tables[table]
        assert one.keys() == other.keys()
        for name in one:
            if name != "kernel_phase":  # of an amplitude near zero
                assert other[name] == pytest.approx(one[name], rel=1e-3, abs=1e-6, nan_ok=True)
    dump = open_dump(tmp_path / "after")
    rows = [
        read_head(dump.require_files(HeadId(1, head, kind)), max_rows=10_000)
        for head, kind in ((1, "q"), (after.k_head, "k"))
    ]
    q, k = (one.vectors.astype(np.float64).reshape(5, 24, -1) for one in rows)
    scale = q.shape[-1] ** -0.5
    for place in range(7):  # bins of one distance, with every pair
        steps = place + 1
        logits = scale * np.einsum("tnd,tnd->tn", q[:, steps:], k[:, :-steps])
        assert after.tables["kernel"]["n_pairs"][place] == logits.size
        assert after.tables["kernel"]["mean_logit"][place] == pytest.approx(
            logits.mean(), rel=1e-4, abs=1e-6
        )
