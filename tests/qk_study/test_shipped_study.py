"""The study that comes with the repository: its file, its results, and the page about it."""

import json
import re
from contextlib import chdir
from pathlib import Path

import pandas as pd
import pytest

from findings.rope_scaling.__main__ import CONTEXT, LOSSES, PAGE, PIECES, STUDY, page_tables
from qk_study.figures import wanted_figures
from qk_study.plan import make_plans
from qk_study.reading import read_study

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "study-rope-scaling"


@pytest.fixture(autouse=True)
def in_root():
    with chdir(ROOT):
        yield


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "studies").glob("*.yaml")))
def test_its_file_is_valid(path):
    settings = read_study([str(path)], {})
    assert wanted_figures(settings) is None
    assert len(make_plans(settings)) == len(settings.models)


def test_it_scales_rope_to_the_length_of_the_texts():
    ropes = []
    for plan in make_plans(read_study([STUDY])):
        config = plan.captures[0].config
        assert config.tokenizer.max_length == CONTEXT == 16384
        overrides = config.model.config_overrides or {"rope_parameters": {}}
        ropes.append((overrides["rope_parameters"].get("rope_type"), overrides))
    assert [kind for kind, _ in ropes] == [None, "linear", "dynamic", "yarn"]
    assert {one["rope_parameters"].get("factor") for kind, one in ropes if kind} == {2.0}


def test_the_results_are_those_of_the_file():
    record = json.loads((FOLDER / "study.json").read_text())
    settings = read_study([STUDY])
    assert [one["label"] for one in record["models"]] == [one.label for one in settings.models]
    for plan, one in zip(make_plans(settings), record["models"], strict=True):
        assert {part.kind: part.values for part in plan.parts} == one["parts"]
        assert one["heads"]["analysed"] == 270
        assert one["texts"]["count"] == 2 * PIECES
    losses = pd.read_csv(LOSSES)
    assert losses["label"].unique().tolist() == [one.label for one in settings.models]
    assert losses.groupby("label")["text"].nunique().tolist() == [2 * PIECES] * len(settings.models)


def test_the_page_has_the_tables_of_the_results():
    text = PAGE.read_text(encoding="utf-8")
    found = dict(page_tables(FOLDER))
    for name, table in found.items():
        between = text.split(f"<!-- {name} -->\n", 1)[1].split(f"<!-- end of {name} -->", 1)[0]
        assert between.strip() == table
    tables = re.findall(r"<!-- end of (\w+) -->", text)
    assert tables == ["losses", "means", "lengths", "role_shares"]


def test_the_readme_names_every_file_that_is_kept():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    tables = {path.with_suffix("") for path in (FOLDER / "tables").iterdir()}
    for path in [*tables, *(FOLDER / "figures").glob("*.png")]:
        assert f"`{path.relative_to(FOLDER)}`" in text
