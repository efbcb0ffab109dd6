"""`attention-plasticity demo`: on the sample that comes with the package."""

import json
from functools import partial

import pytest

from attention_plasticity import config
from attention_plasticity.cli import main
from attention_plasticity.figures import style
from attention_plasticity.tables.finished_run import FinishedRun
from lasting_workers import workers as workers  # a fixture of all tests here


@pytest.fixture(autouse=True)
def _small_figures(monkeypatch):
    monkeypatch.setitem(style._STYLE, "savefig.dpi", 40)  # faster


def test_the_demo_ends_with_figures_and_a_page(tmp_path, capsys, monkeypatch):
    """With a third of its heads."""
    monkeypatch.setattr(config, "make_config", partial(config.make_config, heads=[0, 1, 2]))
    assert main(["demo", "--output_dir", str(tmp_path / "demo")]) == 0
    told = capsys.readouterr().out
    results = tmp_path / "demo" / "results"
    assert f"Files        {results} (run.json, 13 tables)" in told
    for name in ("figures/plasticity.png", "report.html"):
        assert str(results / name) in told
        assert (results / name).is_file()
    assert "SmolLM2-135M" in (results / "run.json").read_text()
    assert json.loads((results / "run.json").read_text())["warnings"] == []
    roles = FinishedRun.open(results).table("roles")
    assert roles["repeated_groups"].eq(16).all()
    assert set(roles["role"]) == {"far", "sink", "mixed", "self"}  # none is unsure
    assert "Warning" not in told
    assert "Next" not in told
    assert "±: half of the 95 % interval over texts" in told
