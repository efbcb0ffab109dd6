"""`attention-plasticity demo`: on the sample that comes with the package, and on a known answer."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from attention_plasticity import open_run
from attention_plasticity.cli import main
from attention_plasticity.demo import known_answer
from attention_plasticity.demo.known_answer import DemoShape, expected_plasticity, make_demo_dump
from attention_plasticity.figures import style
from lasting_workers import workers as workers  # a fixture of all tests here


@pytest.fixture(autouse=True)
def _small_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(style._STYLE, "savefig.dpi", 40)  # faster


def test_the_demo_ends_with_figures_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--output_dir", str(tmp_path / "demo")]) == 0
    told = capsys.readouterr().out
    results = tmp_path / "demo" / "results"
    assert f"Files        {results} (run.json, 13 tables)" in told
    for name in ("figures/plasticity.png", "report.html"):
        assert str(results / name) in told
        assert (results / name).is_file()
    assert "SmolLM2-135M" in (results / "run.json").read_text()
    assert json.loads((results / "run.json").read_text())["warnings"] == []
    assert "Warning" not in told
    assert "Next" not in told
    assert "±: half of the 95 % interval over texts" in told


def test_the_known_answer_is_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With half of the heads of every layer."""
    monkeypatch.setattr(known_answer, "DemoShape", partial(DemoShape, q_heads=2, k_heads=1))
    words = ["demo", "--known_answer", "--output_dir", str(tmp_path / "demo")]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "Comparison with the known answer (plasticity at one position, in the last" in told
    assert "Warning" not in told
    assert "Next" not in told
    assert "Note" not in told
    results = tmp_path / "demo" / "results"
    require_expected_plasticity(results)
    before = (results / "head_metrics.csv").read_bytes()
    heads = {path: path.stat().st_mtime_ns for path in (results / ".heads").rglob("l*h*")}
    lost = min(heads)
    lost.unlink()  # as if the first command had been interrupted
    (results / "run.json").unlink()
    assert main(words) == 0
    assert (results / "head_metrics.csv").read_bytes() == before
    again = {path: path.stat().st_mtime_ns for path in (results / ".heads").rglob("l*h*")}
    assert len(heads) == len(again) == 8
    assert {path for path in heads if heads[path] != again[path]} == {lost}


def require_expected_plasticity(results: Path) -> None:
    """Tables of every head have the plasticity of the formula, up to chance."""
    shape, run = DemoShape(), open_run(results)
    cells = run.bucket_plasticity
    for (layer, _), head in cells.groupby(["layer", "q_head"]):
        drift = shape.drifts[layer]
        expected = expected_plasticity(drift, head.q_position.to_numpy(), shape.context)
        assert abs((head.plasticity - expected).mean()) < 0.02
        assert np.abs(head.plasticity - expected).max() < 0.12
    for row in run.head_metrics.itertuples():
        assert row.ap_phase == 0  # no rotary embedding
        last = np.linspace(0.8 * shape.context, shape.context, 100)
        expected = expected_plasticity(shape.drifts[row.layer], last, shape.context).mean()
        assert abs(row.ap_aligned_last20 - expected) < 0.04
        if shape.drifts[row.layer] == 0:
            assert abs(row.ap_aligned_drop) < 0.04
            assert row.q_R2_total < 0.001
    windowed = cells[cells.layer == shape.windowed_layer]
    reach = shape.window // shape.bucket_size
    assert (windowed.q_bucket - windowed.k_bucket).max() == reach


def test_a_folder_with_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dump").mkdir()
    assert main(["demo", "--known_answer", "--output_dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'dump'}: contains other data; choose another --output_dir\n"
    )


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    small = DemoShape(examples=2, drifts=(1.0, 2.0))
    one, two = (make_demo_dump(tmp_path / name, small) for name in "ab")
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert len(files) == 2 * 6 + 1
    assert all((one / file).read_bytes() == (two / file).read_bytes() for file in files)
