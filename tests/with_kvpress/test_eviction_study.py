"""The whole study of evictions on a tiny random model: conditions, resuming, tables, figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("kvpress")

from findings.eviction.__main__ import evaluate
from findings.eviction.budgets import RULES
from findings.eviction.plan import (
    CHOICE,
    COPIES,
    ORDERS,
    REPORT,
    SMALL,
    choice_phase,
    report_phases,
)
from findings.eviction.results import Results
from findings.eviction.tables import write_all
from tiny_models import ARCHITECTURES, VOCABULARY

LAYERS, HEADS = 4, 2
PLAN = replace(
    SMALL,
    contexts=(96,),
    middle=96,
    following=4,
    texts=2,
    copied=4,
    random_orders=2,
    head_step=3,
    far=16,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `prepare` makes it, with random texts and values."""
    path, rng = tmp_path_factory.mktemp("study"), np.random.default_rng(0)
    texts = {
        name: rng.integers(8, VOCABULARY, (PLAN.texts, 100)).tolist()
        for name in (CHOICE, REPORT, COPIES)
    }
    (path / "tokens.json").write_text(json.dumps(texts))
    ids = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    values = {name: rng.uniform(0.1, 0.9, len(ids)) for name in ORDERS}
    table = pd.DataFrame(ids, columns=["layer", "k_head"]).assign(**values)
    table.to_csv(path / "key_heads.csv", index=False)
    return path


def test_the_study_continues_and_ends_with_all_tables(folder: Path) -> None:
    model = ARCHITECTURES["llama"].model("sdpa")
    assert not evaluate(model, folder, PLAN, seconds=0.0)
    assert evaluate(model, folder, PLAN)
    lines = (folder / "results.jsonl").read_text()
    half = lines.splitlines(keepends=True)[: lines.count("\n") // 2]
    (folder / "results.jsonl").write_text("".join(half) + '{"condition": "killed in a li')
    assert evaluate(model, folder, PLAN)
    assert (folder / "results.jsonl").read_text() == lines
    rules = tuple(RULES)
    phases = [choice_phase(PLAN, rules), *report_phases(PLAN, rules, LAYERS, HEADS)]
    results = Results(folder, PLAN)
    planned = [one for phase in phases for one in phase]
    assert all(one in results for one in planned)
    assert lines.count("\n") == len(planned)
    assert all((results.of(one) >= -1e-6).all() for one in planned)  # KL
    write_all(folder, PLAN, page=False)
    text = (folder / "tables.md").read_text()
    for name in ("main", "counts", "budgets-96", "copies", "values", "orders", "rules", "alone"):
        assert f"## {name}\n\n| " in text
    assert (folder / "compression-budgets.png").stat().st_size > 10_000
