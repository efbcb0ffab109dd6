"""The demo's dump: the same bytes every time, and the structure it claims."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attention_plasticity.api import open_run
from attention_plasticity.config import make_config
from attention_plasticity.demo.known_answer import DemoShape, expected_plasticity, make_demo_dump
from attention_plasticity.run.runner import run_analysis
from qk_dump.layout import HeadId
from qk_dump.reader import read_head
from qk_dump.source import open_dump


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo_dump(tmp_path_factory.mktemp("demo"))


def test_the_same_seed_gives_the_same_bytes(demo: Path, tmp_path: Path) -> None:
    small = DemoShape(examples=2, drifts=(1.0, 2.0))
    one, two = (make_demo_dump(tmp_path / name, small) for name in "ab")
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert len(files) == 2 * 6 + 1
    assert all((one / file).read_bytes() == (two / file).read_bytes() for file in files)


def test_it_has_grouped_heads_and_one_windowed_layer(demo: Path) -> None:
    dump = open_dump(demo)
    assert len(dump.query_heads) == 16
    assert len(dump.key_heads) == 8
    windows = [
        read_head(
            dump.files(HeadId(layer, 0, "k")), max_rows=100, seed=0, with_examples=True
        ).sliding_window
        for layer in range(4)
    ]
    assert windows == [None, 1024, None, None]


def test_measured_plasticity_is_the_expected_one(demo: Path, tmp_path: Path) -> None:
    config = make_config(dataset_local_root=str(demo), output_dir=str(tmp_path))
    outcome = run_analysis(config)
    shape = DemoShape()
    cells = open_run(outcome.paths.folder).bucket_plasticity
    for (layer, _), head in cells.groupby(["layer", "q_head"]):
        drift = shape.drifts[layer]
        expected = expected_plasticity(drift, head.q_position.to_numpy(), shape.context)
        assert abs((head.plasticity - expected).mean()) < 0.02
        assert np.abs(head.plasticity - expected).max() < 0.12
    for row in outcome.metrics:
        if shape.drifts[row["layer"]] == 0:
            assert abs(row["ap_drop"]) < 0.01
            assert row["q_R2_total"] < 0.001
    windowed = cells[cells.layer == shape.windowed_layer]
    reach = shape.window // shape.bucket_size
    assert (windowed.q_bucket - windowed.k_bucket).max() == reach
