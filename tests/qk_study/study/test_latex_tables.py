"""All tables of a study in one document of LaTeX: they compile, and they fit the page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml

from qk_study.study.command import study
from report_runs import write_run
from role_runs import add_roles

DOCUMENT = r"""
\documentclass[twocolumn]{article}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""
SIGNS = r"_ % & # $ ~ ^ \ { }"
LONG = "SmolLM3-3B-checkpoints/stage_1-step_4,720,000".replace(",", ".")
MODELS: tuple[dict[str, Any], ...] = (
    {"label": SIGNS, "family": f"family {SIGNS}", "checkpoint": 0, "phase": "pre-training"},
    {"label": "dynamic-ntk-16k", "family": f"family {SIGNS}", "checkpoint": 4_720_000},
    {"label": LONG, "family": "WWMM-MMWW-WWMM", "size": 1.7e9, "phase": f"phase of {LONG}"},
)
TABLES = {
    *("models", "means", "fifths", "differences", "key_heads", "lengths", "depth", "relations"),
    *("trajectories", "layer_kinds", "band_shares", "role_shares", "role_scores", "role_changes"),
    "matched_counts",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of a study that has all of them."""
    folder = tmp_path_factory.mktemp("latex")
    for seed in range(len(MODELS)):
        run = add_roles(write_run(folder / str(seed), seed, position=True), bands=True)
        info = json.loads((run / "run.json").read_text())
        info["heads"]["failed"], info["failures"] = 0, []
        info["input"]["dump"]["layers"] = [{"layer": n, "rope": n != 3} for n in range(5)]
        info["input"]["texts"] = {"count": 12, "digest": "d"}
        (run / "run.json").write_text(json.dumps(info))
    models = [{**model, "run": str(seed)} for seed, model in enumerate(MODELS)]
    scores = "label,a_score % & #,ruler-16k_of-many-words\n"
    scores += "".join(f"{model['label']},{40 + n},{60 - n * n}\n" for n, model in enumerate(MODELS))
    (folder / "scores.csv").write_text(scores)
    content = {"models": models, "scores": "scores.csv", "figures": "none"}
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    with chdir(folder):
        assert study(["study.yaml"]) == 0
    return folder / "results" / "study" / "tables"


def test_every_table_has_captions_and_labels(made: Path) -> None:
    files = {path.stem: path.read_text() for path in made.glob("*.tex")}
    assert files.keys() >= TABLES - {"key_heads"}
    labels: list[str] = []
    for name, text in files.items():
        floats = text.count(r"\begin{table")
        assert floats == text.count(r"\caption{") == text.count(r"\end{table") >= 1, name
        labels += re.findall(r"\\label\{(.*)\}", text)
    assert len(set(labels)) == len(labels)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
def test_all_tables_compile_and_fit_the_page(made: Path, tmp_path: Path) -> None:
    inputs = [rf"\input{{{path}}}" for path in sorted(made.glob("*.tex"))]
    (tmp_path / "paper.tex").write_text(DOCUMENT % "\n\\clearpage\n".join(inputs))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert done.returncode == 0, log[-2000:]
    assert [line for line in log.splitlines() if line.startswith("Overfull")] == []
