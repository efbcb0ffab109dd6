"""The notebook of examples/ runs as it is."""

import json
import tempfile
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_study.ipynb"


def _cells():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


@pytest.mark.long
def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    """Its cells run one after the other in one namespace."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    namespace = {"__name__": "__main__"}
    for number, cell in enumerate(_cells()):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), namespace)
    metrics = namespace["tiny"].head_metrics
    assert len(metrics) == 8
    assert (metrics["ap_aligned_se"] > 0).all(), "several texts give errors"
    assert namespace["page"].stat().st_size > 5e5
    assert namespace["budgets"][49].mean() == pytest.approx(0.5, abs=0.01)
    assert "complete: True" in capsys.readouterr().out


def test_the_notebook_has_no_outputs():
    """They would be old after the next change."""
    assert not any(cell.get("outputs") for cell in _cells())
