"""The tables in LaTeX: their captions, and whether they fit a paper of two columns."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

import attention_plasticity as ap
from report_runs import write_run

WORDS = "a-model_with/many.parts-of-its-name"
LONG = "Ein" + "langername" * 12
WIDE = "MODELWITHMANYWIDELETTERS-WWWWMMMM"
DOCUMENT = r"""
\documentclass[twocolumn]{article}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


def with_sample(run: Path, texts: int | None, pairs: str) -> Path:
    info = json.loads((run / "run.json").read_text())
    info["config"]["pair_sampling"] = pairs
    info["input"].pop("texts", None)
    if texts is not None:
        info["input"]["texts"] = {"count": texts, "digest": str(texts)}
    (run / "run.json").write_text(json.dumps(info))
    return run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with errors and two types of layers, and with long names and warnings."""
    root = tmp_path_factory.mktemp("latex")
    names = ("base", "tuned", WORDS, LONG)
    for seed, name in enumerate(names):
        warnings = [f"Few texts in {LONG} and {WORDS}."] if seed else []
        with_sample(
            write_run(root / str(seed), seed, f"owner/{name}", warnings, position=True),
            12,
            "bucket",
        )
    return root


def latex(root: Path, numbers: Sequence[int], labels: Sequence[str], *scores: str) -> str:
    table = None
    if scores:
        table = pd.DataFrame({"model": labels, **{name: range(len(labels)) for name in scores}})
    runs = [root / str(number) for number in numbers]
    return ap.compare(runs, labels=labels, scores=table).to_latex()


def one_type(root: Path) -> str:
    runs = [ap.open_run(root / str(number)).select(layer_type="full") for number in (0, 1)]
    return ap.compare(runs, labels=["base", "tuned"]).to_latex()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
def test_the_tables_fit_a_paper_of_two_columns(root: Path, tmp_path: Path) -> None:
    tables = [
        one_type(root),
        latex(root, [0, 1], ["base", "tuned"], "RULER", "a long name of a benchmark, all tasks"),
        latex(root, [0, 1, 2, 3], ["step-1000", WORDS, LONG, WIDE], LONG, WIDE),
    ]
    text = "\n\\clearpage\n".join(tables)
    (tmp_path / "paper.tex").write_text(DOCUMENT % text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert done.returncode == 0, log[-2000:]
    assert [line for line in log.splitlines() if line.startswith("Overfull")] == []


def test_wide_tables_span_both_columns_and_long_names_can_be_broken(root: Path) -> None:
    begins = [line for line in one_type(root).splitlines() if line.startswith(r"\begin{table")]
    assert begins == [r"\begin{table*}", r"\begin{table}", r"\begin{table}"]
    text = latex(root, [0, 1, 3], ["base", "tuned", LONG])
    assert text.count(r"\begin{table*}") == text.count(r"\end{table*}") == 1
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    assert "tuned: 1 head was not captured." in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    cells = [row.split(" & ")[0].removeprefix(r"\raggedright ") for row in rows]
    names = [re.split(r"\\allowbreak{}|\\penalty500{}", cell) for cell in cells]
    long = [pieces for pieces in names if "".join(pieces) == LONG]
    assert len(long) == 3  # in the means and in the differences
    assert all(len(piece) <= 6 for pieces in long for piece in pieces)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {},
            "Models: owner/base (a), owner/tuned (b). 12 texts in every run. Key pairs: two keys "
            "of one text and one key bucket (pair sampling: bucket).",
        ),
        (
            {1: (9, "local")},
            "Models: owner/base (a), owner/tuned (b). Texts: 12 (a), 9 (b). Pair sampling: bucket "
            "(a), local (b).",
        ),
        (
            {0: (None, "context"), 1: (None, "context")},
            "Models: owner/base (a), owner/tuned (b). The number of texts is not recorded. Key "
            "pairs: any two earlier keys of one text (pair sampling: context).",
        ),
    ],
)
def test_captions_name_models_texts_and_pairs(
    root: Path, tmp_path: Path, changes: dict[int, tuple[int | None, str]], sentence: str
) -> None:
    runs = []
    for number in (0, 1):
        run = tmp_path / str(number)
        shutil.copytree(root / str(number), run)
        runs.append(with_sample(run, *changes[number]) if number in changes else run)
    text = ap.compare(runs, labels=["a", "b"], force=True).to_latex().replace(r"\allowbreak{}", "")
    captions = [line for line in text.splitlines() if line.startswith(r"\caption")]
    assert len(captions) == 3  # at one position, differences, over a bucket
    assert all(sentence in caption for caption in captions)
    same = ap.compare([runs[0], runs[0]], labels=["base", "again"]).to_latex()
    assert "Model: owner/base." in same
