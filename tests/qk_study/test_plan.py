"""Settings of parts that were begun, compared with those of a later command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from qk_study.plan import ModelPlan, make_plans
from qk_study.reading import read_study
from qk_toolkit.errors import ConfigError


def plan_of(folder: Path, capture: dict[str, Any], analysis: dict[str, Any]) -> ModelPlan:
    content = {
        "output_dir": str(folder / "out"),
        "texts": {"path": "texts"},
        "capture": capture,
        "analysis": analysis,
        "models": [{"label": "A", "model": "m"}],
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    [plan] = make_plans(read_study([str(folder / "study.yaml")], {}))
    return plan


def begin(plan: ModelPlan) -> None:
    """The files that a study leaves when it has begun the parts of a model."""
    for part in plan.parts:
        Path(part.folder).mkdir(parents=True)
        part.write_settings()


def refusal(plan: ModelPlan) -> str:
    try:
        plan.refuse_other_settings()
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        ({"capture": {"head_sampling": {"count": 3}}}, {}, "capture.head_sampling.count (3 then"),
        ({}, {"tokenizer": {"max_length": 9}}, "tokenizer.max_length (null then, 9 now)"),
        ({}, {"model": {"device_map": "cuda"}}, ""),
        ({"capture": {"layers": "0-2"}}, {"capture": {"layers": [2, 1, 0]}}, ""),
    ],
)
def test_other_settings_of_a_capture(
    tmp_path: Path, then: dict[str, Any], now: dict[str, Any], words: str
) -> None:
    begin(plan_of(tmp_path, then, {}))
    told = refusal(plan_of(tmp_path, now, {}))
    assert words in told
    assert bool(told) == bool(words)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"pair_sampling": "context"}, "pair_sampling ('bucket' then, 'context' now)"),
        ({"max_workers": 3, "role_thresholds": {"previous": 0.5}}, ""),
    ],
)
def test_other_settings_of_an_analysis(tmp_path: Path, now: dict[str, Any], words: str) -> None:
    begin(plan_of(tmp_path, {}, {}))
    told = refusal(plan_of(tmp_path, {}, now))
    assert words in told
    assert bool(told) == bool(words)


def test_a_removed_folder_may_be_made_with_other_settings(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {}, {})
    begin(plan)
    Path(plan.captures[0].folder).rmdir()
    changed = plan_of(tmp_path, {"tokenizer": {"max_length": 9}}, {})
    told = refusal(changed)  # the run is of a capture with the settings of then
    assert told.startswith(
        f"A: {plan.captures[0].folder} was captured with other settings: tokenizer"
    )
    assert f"Remove {plan.run} to start again" in told
    Path(plan.run).rmdir()
    assert refusal(changed) == ""


@pytest.mark.parametrize("content", ["", "- 1\n", "{", "unknown: 1\n", "\x00"])
def test_a_damaged_record_is_left_to_the_capture(tmp_path: Path, content: str) -> None:
    plan = plan_of(tmp_path, {}, {})
    begin(plan)
    Path(plan.captures[0].file).write_text(content)
    assert refusal(plan_of(tmp_path, {"tokenizer": {"max_length": 9}}, {})) == ""
