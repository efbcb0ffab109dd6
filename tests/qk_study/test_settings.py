"""The YAML file of a study: wrong fields are refused with one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from qk_study.figures import wanted_figures
from qk_study.plan import make_plans
from qk_study.reading import read_study
from qk_study.settings import StudySettings
from qk_toolkit.errors import ConfigError

DUMP = {"label": "B", "dump": "dump"}


def read(folder: Path, content: Any, **flags: str) -> StudySettings:
    path = folder / "study.yaml"
    text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
    path.write_text(text)
    return read_study([str(path)], flags)


def checked(folder: Path, content: Any) -> StudySettings:
    """All checks that come before any work."""
    settings = read(folder, content)
    wanted_figures(settings)
    make_plans(settings)
    return settings


def test_defaults(tmp_path: Path) -> None:
    settings = read(tmp_path, {"models": [{"dump": "dumps/one/"}, {"run": "s3://b/runs/two"}]})
    assert settings.output_dir == "results/study"
    assert [model.label for model in settings.models] == ["one", "two"]
    assert wanted_figures(settings) is None
    assert settings.scores == ()
    hub = read(tmp_path, {"models": [{"dump": "hf://datasets/owner/name@branch"}]})
    assert hub.models[0].label == "branch"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"modls": []}, "modls: unknown field; did you mean models?"),
        ({}, "models: is required"),
        (
            {"models": [{"dump": "a", "run": "b"}]},
            "model 1: model: expected exactly one of model, dump and run, got dump and run",
        ),
        ({"models": [{"label": "x"}]}, "got none of them"),
        ({"models": [DUMP, DUMP]}, "model 2: label: 'B' is also that of model 1"),
        ({"models": [{**DUMP, "size": "1B"}]}, "size: expected a number above 0, got '1B'"),
        ({"models": [{"run": "s3://key:secret@bucket/run"}]}, "a URL with a password"),
        (
            {"models": [{"dump": "s3://bucket/dump?X-Amz-Signature=secret"}]},
            "s3://bucket/dump: a URL with '?' cannot be used",
        ),
        (
            {"models": [{"model": "m"}]},
            "model 1: m is a model (no folder here has this name), and its capture needs texts",
        ),
        ({"models": [DUMP], "texts": {"pth": "x"}}, "texts.pth: unknown field; did you mean"),
        ({"models": [DUMP], "figures": ["profile", "mop"]}, "figures: 'mop': unknown figure"),
        ({"models": [DUMP], "title": ""}, "title: expected"),
        ({"models": [DUMP], "analysis": {"output_dir": "x"}}, "tables are in the folders"),
        ({"models": [DUMP], "scores": 3}, "scores: expected a CSV file"),
        ({"models": [DUMP], "scores": {"a": {"tsk": "x"}}}, "scores: a: tsk: unknown field"),
        ({"models": [{**DUMP, "results": [1]}]}, "results: expected the path of a file, got 1"),
        ("models: [{dump: a, dump: b}]", "'dump' is given twice"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(tmp_path, content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_settings_of_a_model_are_merged_with_the_shared_ones(tmp_path: Path) -> None:
    content = {
        "output_dir": "out",
        "texts": {"path": "texts", "max_samples": 8},
        "capture": {"tokenizer": {"max_length": 99}, "model": {"dtype": "float32"}},
        "analysis": {"seed": 3, "layers": "0-2"},
        "models": [
            {
                "label": "A",
                "model": "m",
                "revision": "step-1",
                "capture": {
                    "tokenizer": {"max_length": 50},
                    "model": {"config_overrides": {"rope_parameters": {"factor": 2.0}}},
                },
                "analysis": {"seed": 4},
            },
            {"label": "B", "model": "n"},
        ],
    }
    one, other = make_plans(read(tmp_path, content))
    capture, repeated, analysis = one.parts
    assert repeated.values["model"] == capture.values["model"]
    assert repeated.folder == "out/repeated/a"
    config: Any = capture.config
    assert (config.model.name, config.model.revision, config.model.dtype) == (
        "m",
        "step-1",
        "float32",
    )
    assert config.model.config_overrides == {"rope_parameters": {"factor": 2.0}}
    assert config.tokenizer.max_length == 50
    assert (config.dataset.path, config.dataset.max_samples) == ("texts", 8)
    assert (capture.folder, config.data_root) == ("out/dumps/a", "out/dumps/a")
    settings: Any = analysis.config
    assert (settings.seed, settings.layers, settings.output_dir) == (4, [0, 1, 2], "out/runs/a")
    assert settings.dataset_local_root == "out/dumps/a"
    second: Any = other.parts[0].config
    assert second.tokenizer.max_length == 99
    assert second.model.config_overrides is None
