"""The line of advice, and whether more keys per text make the error of a head smaller."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attention_plasticity import RunnerConfig, open_dump
from attention_plasticity.demo.sample import sample_path
from attention_plasticity.head_analysis import analyze_group
from attention_plasticity.measure.result import HeadResult
from attention_plasticity.tables.advice import advice

LAYER = 0


def test_the_median_error_and_the_texts_for_half_of_it() -> None:
    assert advice([0.010, 0.011, 0.0139, math.nan], texts=12) == (
        "standard error of a head about 0.011 with 12 texts; half of it needs about 48 texts, or "
        "four times the keys per text"
    )


def test_without_errors_or_texts_there_is_no_advice() -> None:
    assert advice([], texts=12) is None
    assert advice([math.nan], texts=12) is None
    assert advice([0.01], texts=0) is None


def errors(dump: Path) -> np.ndarray:
    """(heads,) standard errors of the heads of a layer."""
    opened, config = open_dump(dump), RunnerConfig(bin_size=512)
    found = []
    for k_head in range(3):
        q_heads = range(3 * k_head, 3 * k_head + 3)
        for result in analyze_group(opened, LAYER, k_head, q_heads, config):
            assert isinstance(result, HeadResult)
            found.append(result.metrics["ap_aligned_se"])
    return np.array(found)


def test_a_quarter_of_the_keys_of_every_text_doubles_the_error(tmp_path: Path) -> None:
    thin = tmp_path / "thin"
    shutil.copytree(sample_path(), thin)
    rng = np.random.default_rng(0)
    for file in sorted(thin.glob(f"l{LAYER:02d}h*k/*.parquet")):
        table = pq.read_table(file)
        pq.write_table(table.filter(pa.array(rng.random(len(table)) < 0.25)), file)
    ratio = np.linalg.norm(errors(thin)) / np.linalg.norm(errors(sample_path()))
    assert 1.5 < ratio < 2.7
