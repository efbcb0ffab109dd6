"""The workflows run the commands that a developer runs, on every supported Python."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]


def _job(name: str) -> dict[str, Any]:
    """The only job of a workflow."""
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    [job] = yaml.safe_load(text)["jobs"].values()
    return dict(job)


def _commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_changes_are_checked_on_every_supported_python() -> None:
    job = _job("ci")
    assert _commands(job) == [".ci/run"]
    assert (ROOT / ".ci" / "run").is_file()
    versions = job["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={versions[0]}"


def test_everything_is_tested_at_night() -> None:
    assert _commands(_job("nightly")) == ["make test-all"]
    assert "\ntest-all:" in (ROOT / "Makefile").read_text(encoding="utf-8")
