"""`attention-plasticity demo`: on the sample that comes with the package, and on a known answer."""

from __future__ import annotations

import json
from pathlib import Path

from commands import run


def test_the_demo_ends_with_figures_and_a_page(tmp_path: Path) -> None:
    done = run("demo", "--output_dir", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    results = tmp_path / "demo" / "results"
    for name in ("head_metrics.csv", "run.json", "figures/plasticity.png", "report.html"):
        assert str(results / name) in done.stdout
        assert (results / name).is_file()
    assert "SmolLM2-135M" in (results / "run.json").read_text()
    warnings = json.loads((results / "run.json").read_text())["warnings"]
    assert [warning["kind"] for warning in warnings] == ["large_bias"]
    assert done.stdout.count("Warning") == 1


def test_the_known_answer_is_met(tmp_path: Path) -> None:
    words = ("demo", "--known_answer", "--output_dir", tmp_path / "demo")
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert "Comparison with the known answer" in done.stdout
    assert done.stdout.count("Warning") == 1
    assert "The bias of ap_overall is larger than half its standard error" in done.stdout
    before = (tmp_path / "demo" / "results" / "head_metrics.csv").read_bytes()
    assert run(*words).returncode == 0
    assert (tmp_path / "demo" / "results" / "head_metrics.csv").read_bytes() == before


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    done = run("demo", "--known_answer", "--output_dir", tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {tmp_path / 'dump'}: contains other data; choose another --output_dir\n"
    )
