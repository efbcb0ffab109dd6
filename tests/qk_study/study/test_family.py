"""The figures and tables of several models, made by the command from finished runs."""

from __future__ import annotations

import json
from contextlib import chdir
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from qk_study.study.command import study
from qk_study.study.family_tables import FAMILY_NAMES
from report_runs import write_run
from role_runs import add_roles

FIGURES = (
    *("lengths", "phase-fifths", "depth", "layer-types", "rope-layers", "role-shares"),
    *("relations", "trajectories", "matched-heads"),
)
MODELS = (
    {"label": "base", "family": "A", "checkpoint": 1000, "phase": "pretraining"},
    {"label": "tuned", "family": "A", "checkpoint": 2000, "phase": "tuning"},
    {"label": "other", "family": "B"},
)


def without_failures(run: Path) -> dict[str, Any]:
    """The content of run.json without the head that failed, because of which a study returns 1."""
    info: dict[str, Any] = json.loads((run / "run.json").read_text())
    info["heads"]["failed"] = 0
    return {**info, "failures": []}


def write_models(folder: Path) -> None:
    for seed, model in enumerate(MODELS):
        run = add_roles(write_run(folder / str(model["label"]), seed, position=True))
        info = without_failures(run)
        info["input"]["dump"]["layers"] = [{"layer": n, "rope": n != 3} for n in range(5)]
        info["input"]["texts"] = {"count": 12, "digest": "d"}
        (run / "run.json").write_text(json.dumps(info))
    scores = "label,ruler\nbase,40.5\ntuned,61.0\nother,66.5\n"
    (folder / "scores.csv").write_text(scores)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family")
    write_models(folder)
    models = [{**model, "run": model["label"]} for model in MODELS]
    content = {"models": models, "scores": "scores.csv", "figures": list(FIGURES)}
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    with chdir(folder):
        assert study(["study.yaml"]) == 0
    return folder / "results" / "study"


def test_every_figure_and_table_is_written(made: Path) -> None:
    drawn = {path.name for path in (made / "figures").iterdir()}
    assert {f"{name}.{end}" for name in FIGURES for end in ("png", "txt")} <= drawn
    for name in FAMILY_NAMES:
        table = pd.read_csv(made / "tables" / f"{name}.csv")
        assert len(table), name
        if name != "matched_heads":
            assert (made / "tables" / f"{name}.md").stat().st_size
            assert (made / "tables" / f"{name}.tex").stat().st_size
    readme = (made / "README.md").read_text()
    assert all(f"`figures/{name}.png`" in readme for name in FIGURES)
    assert "## Failures" not in readme


def test_tables_for_readers_have_the_values_of_the_csv_files(made: Path) -> None:
    lengths = pd.read_csv(made / "tables" / "lengths.csv")
    chosen = (lengths["run"] == "base") & (lengths["layer_type"] == "all")
    rows = lengths[chosen & (lengths["quantity"] == "ap_aligned")].set_index("part")
    row = rows.loc["256–512"]
    cell = f"{row['mean']:.3f} \\[{row['low']:.3f}, {row['high']:.3f}\\]"
    assert cell in (made / "tables" / "lengths.md").read_text()
    counts = pd.read_csv(made / "tables" / "matched_counts.csv").set_index("metric")
    assert set(counts["run"] + counts["minus"]) == {"tunedbase"}  # other is of another family
    changed = counts.loc["ap_aligned"]
    line = f"| tuned minus base | {changed['heads']} | {changed['tested']} | {changed['changed']} |"
    assert line in (made / "tables" / "matched_counts.md").read_text()
    relations = pd.read_csv(made / "tables" / "relations.csv")
    assert set(relations["warning"]) == {"only 3 models: one model can decide this result"}
    trajectories = pd.read_csv(made / "tables" / "trajectories.csv")
    assert set(trajectories["run"]) == {"base", "tuned"}  # other has no checkpoint


def test_what_the_runs_do_not_have_is_named(tmp_path: Path) -> None:
    for seed, name in enumerate(("a", "b")):
        run = write_run(tmp_path / name, seed, errors=True)
        (run / "run.json").write_text(json.dumps(without_failures(run)))
    models = [{"label": name, "run": name} for name in ("a", "b")]
    content = {"models": models, "figures": list(FIGURES)}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    with chdir(tmp_path):
        assert study(["study.yaml"]) == 0
    readme = (tmp_path / "results" / "study" / "README.md").read_text()
    for reason in (
        "lengths (needs plasticity at one position)",
        "rope-layers (needs a model with RoPE and NoPE layers)",
        "role-shares (needs attention columns in a dump)",
        "relations (needs scores)",
        "trajectories (needs two checkpoints of one family)",
        "matched-heads (needs two models of one family and architecture)",
    ):
        assert reason in readme
    assert not (tmp_path / "results" / "study" / "tables" / "lengths.csv").exists()
    depth = pd.read_csv(tmp_path / "results" / "study" / "tables" / "depth.csv")
    assert "ap_overall" in set(depth["metric"])
