"""Benchmark scores from CSV files and from results files of lm-evaluation-harness."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from qk_study.reading import read_study
from qk_study.scores import StudyScores, study_scores
from qk_toolkit.errors import ConfigError

LABELS = ("small", "large", "tuned")


def harness_results(accuracy: float, ruler: float, shots: int = 0) -> dict[str, Any]:
    """A results file as lm-evaluation-harness writes it, with a group and a task of RULER."""
    mmlu = {"acc,none": accuracy, "acc_stderr,none": 0.004, "alias": "mmlu"}
    gsm8k = {
        "alias": "gsm8k",
        "exact_match,strict-match": 0.1,
        "exact_match_stderr,strict-match": 0.01,
        "exact_match,flexible-extract": 0.2,
        "exact_match_stderr,flexible-extract": 0.02,
    }
    niah = {
        "4096,none": ruler,
        "4096_stderr,none": "N/A",
        "16384,none": -1.0,
        "16384_stderr,none": "N/A",
    }
    anatomy = {"alias": "  - anatomy", "acc,none": 0.31, "acc_stderr,none": 0.039}
    return {
        "results": {"mmlu": mmlu, "mmlu_anatomy": anatomy, "gsm8k": gsm8k, "niah_single_1": niah},
        "groups": {"mmlu": mmlu},
        "configs": {"gsm8k": {"task": "gsm8k", "num_fewshot": shots}},
        "n-shot": {"mmlu": shots, "gsm8k": 5, "niah_single_1": 0},
        "config": {"model": "hf", "model_args": "pretrained=owner/model", "batch_size": "8"},
        "model_name": "owner/model",
    }


def scores_of(
    folder: Path, scores: Any, results: dict[str, list[Any]] | None = None
) -> StudyScores:
    """The scores of a study whose models have these contents of results files."""
    models = []
    for label in LABELS:
        files = []
        for number, content in enumerate((results or {}).get(label, [])):
            path = folder / f"{label}-{number}.json"
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            files.append(str(path))
        models.append({"label": label, "run": label, **({"results": files} if files else {})})
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({"models": models, "scores": scores}, sort_keys=False))
    found = study_scores(read_study([str(path)], {}))
    assert found is not None
    return found


def csv(folder: Path, text: str) -> str:
    path = folder / "scores.csv"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("column", ["label", "model"])
def test_a_csv_file_with_several_scores(tmp_path: Path, column: str) -> None:
    text = f"{column},ruler,mmlu\nlarge,60,0.5\nsmall,40,\nother,1,1\n"
    found = scores_of(tmp_path, csv(tmp_path, text))
    assert found.table.columns.tolist() == ["model", "ruler", "mmlu"]
    assert found.table["ruler"].tolist()[:2] == [40.0, 60.0]
    assert found.of(["large"])["mmlu"].tolist() == [0.5]
    assert "ruler: no score of tuned." in found.notes
    assert "mmlu: no score of small, tuned." in found.notes
    assert any("1 row of no model of the study: other." in note for note in found.notes)


def test_results_of_the_harness(tmp_path: Path) -> None:
    scores = {
        "MMLU": {"task": "mmlu"},
        "GSM8K": {"task": "gsm8k", "metric": "exact_match,flexible-extract"},
        "RULER 4K": {"task": "niah_single_1", "metric": "4096"},
        "RULER 16K": {"task": "niah_single_1", "metric": "16384,none"},
    }
    results = {"small": [harness_results(0.25, 0.9)], "large": [harness_results(0.5, 1.0, 5)]}
    found = scores_of(tmp_path, scores, results)
    assert found.table["MMLU"].tolist()[:2] == [0.25, 0.5]
    assert found.table["GSM8K"].tolist()[:2] == [0.2, 0.2]
    assert found.table["RULER 4K"].tolist()[:2] == [0.9, 1.0]
    assert found.table["RULER 16K"].isna().all()  # -1 stands for a length that was not run
    rows = found.sources.set_index(["model", "score"])
    assert rows.loc[("small", "MMLU"), "standard_error"] == 0.004
    assert rows.loc[("small", "MMLU"), "metric"] == "acc,none"
    assert rows.loc[("small", "MMLU"), "model_in_file"] == "owner/model"
    assert math.isnan(rows.loc[("small", "RULER 4K"), "standard_error"])
    assert "MMLU: no score of tuned." in found.notes
    assert any("(n-shot) differ: small 0, large 5" in note for note in found.notes)


@pytest.mark.parametrize(
    ("scores", "content", "message"),
    [
        ({"a": {"task": "gsm8k"}}, None, "no metric is chosen; its metrics are: exact_match,st"),
        ({"a": {"task": "mmul"}}, None, "no results file has the task mmul; did you mean mmlu?"),
        ({"a": {"task": "mmlu"}}, "{", "cannot be read as JSON"),
        ({"a": {"task": "t"}}, '{"results": {"t": {"acc,none": "high"}}}', "metrics are: none"),
    ],
)
def test_wrong_results_are_refused(
    tmp_path: Path, scores: Any, content: str | None, message: str
) -> None:
    results = {"small": [harness_results(0.5, 0.5) if content is None else content]}
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        scores_of(tmp_path, scores, results)


def test_results_in_several_files(tmp_path: Path) -> None:
    one, other = harness_results(0.25, 0.9), harness_results(0.25, 0.9)
    del one["results"]["gsm8k"]
    other["results"], other["groups"] = {"gsm8k": other["results"]["gsm8k"]}, {}
    gsm8k = {"task": "gsm8k", "metric": "exact_match,strict-match"}
    found = scores_of(tmp_path, {"M": {"task": "mmlu"}, "G": gsm8k}, {"small": [one, other]})
    assert found.table.iloc[0].tolist() == ["small", 0.25, 0.1]


def test_two_values_of_a_task_are_refused(tmp_path: Path) -> None:
    scores, first = {"a": {"task": "mmlu"}}, harness_results(0.5, 0.5)
    with pytest.raises(ConfigError, match="has this task of small too; leave one file out"):
        scores_of(tmp_path, scores, {"small": [first, harness_results(0.6, 0.5)]})
    other = {"results": {"mmlu": {"acc": 0.5, "acc_stderr": 0.1}}}  # of an earlier version
    with pytest.raises(ConfigError, match=r"different metrics: acc,none in .* acc in "):
        scores_of(tmp_path, scores, {"small": [first], "large": [other]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,a\nsmall,1\n", "expected one column with the labels, label or model, got name, a"),
        ("label,a\nsmall,high\n", "a: expected finite numbers, got 'high'"),
        ("label,a\nsmall,1\nsmall,2\n", "'small' has two rows"),
    ],
)
def test_wrong_csv_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scores_of(tmp_path, csv(tmp_path, text))


def test_a_missing_file_and_a_missing_column_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.csv: does not exist"):
        scores_of(tmp_path, str(tmp_path / "gone.csv"))
    file = csv(tmp_path, "label,ruler,mmlu\nsmall,1,2\n")
    with pytest.raises(ConfigError, match="has no column rulr; did you mean ruler"):
        scores_of(tmp_path, {"rulr": file})
