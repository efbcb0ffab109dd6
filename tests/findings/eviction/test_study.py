"""The study of evictions: outcomes on disk, statistics, published tables, rules and orders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.export.budget import EVIDENCE
from attention_plasticity.export.division import PERCENTS, prune_curves
from findings.eviction.budgets import RULES, curves, write_orders, write_rules
from findings.eviction.plan import (
    CHOICE,
    COPIES,
    FLAT,
    HALF,
    HEAD,
    ORDERS,
    PLASTICITY,
    RANDOM_ORDER,
    REPORT,
    SMALL,
    Condition,
    Plan,
    choice_phase,
    report_phases,
)
from findings.eviction.prepare import read_heads
from findings.eviction.results import Results, chosen_rule, log_ratios
from findings.eviction.tables import HERE, PAGES, Study
from findings.tables import holm, text_interval, with_tables

ROOT = Path(__file__).parents[3]


def test_outcomes_survive_a_kill_and_other_sizes_are_refused(tmp_path: Path) -> None:
    one, two = (Condition(REPORT, 256, "snapkv", 0.5, name) for name in (FLAT, "own"))
    Results(tmp_path, SMALL).add(one, [(0.1, 0.2, 0.3), (0.4, 0.5, 0.6)])
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"condition": "half of a li')
    results = Results(tmp_path, SMALL)
    assert one in results
    assert two not in results
    results.add(two, [(1.0, 0.0, 0.0)])
    results = Results(tmp_path, SMALL)
    assert results.of(one).tolist() == [0.1, 0.4]
    assert results.of(one, "right").tolist() == [0.3, 0.6]
    assert results.of(two, "kl").tolist() == [1.0]
    with pytest.raises(SystemExit, match="results of other settings"):
        Results(tmp_path, replace(SMALL, following=99))
    published = tmp_path / "published"
    published.mkdir()
    results.publish(published)
    again = Results(published, SMALL)
    assert again.of(one, "loss_change").tolist() == [0.2, 0.5]
    first = (published / "results.csv.gz").read_bytes()
    results.publish(published)
    assert (published / "results.csv.gz").read_bytes() == first


def test_every_condition_is_run_once() -> None:
    plan, rules = Plan(), tuple(RULES)
    phases = [choice_phase(plan, rules), *report_phases(plan, rules, 30, 3)]
    names = [one.name for phase in phases for one in phase]
    assert len(names) == len(set(names))
    for phase in phases:  # one reading of the contexts serves a phase
        assert len({(one.texts, one.context) for one in phase}) == 1
    assert {one.texts for phase in phases for one in phase} == {CHOICE, REPORT, COPIES}


def test_the_rule_with_the_smallest_kl_is_chosen(tmp_path: Path) -> None:
    plan = replace(SMALL, compressions=(0.5,), scorers=("snapkv", "tova"))
    results = Results(tmp_path, plan)
    kl = {FLAT: 1.0, "rule:a": 0.5, "rule:b": 0.25, "rule:c": 0.75}
    for condition in choice_phase(plan, ("a", "b", "c")):
        value = kl.get(condition.allocation, 1.0)
        results.add(condition, [(value, 0.0, 0.0), (3 * value, 0.0, 0.0)])
    assert chosen_rule(results, plan, ("a", "b", "c")) == "b"
    assert np.exp(log_ratios(results, plan, "rule:a")) == pytest.approx(np.full((2, 1), 0.5))


def test_statistics_against_plain_numbers() -> None:
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    found = text_interval(np.array([1.0, 2.0, 3.0, 4.0]))
    half = 3.182446 * np.sqrt(5 / 3) / 2  # Student's quantile with three degrees of freedom
    assert found == pytest.approx((2.5, 2.5 - half, 2.5 + half), rel=1e-5)


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(Plan(), Results(HERE, Plan()), read_heads(HERE))


def test_the_pages_have_the_tables_of_the_published_outcomes(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    tables = dict(study.tables())
    assert sorted(tables) == sorted(name for names in PAGES.values() for name in names)
    for path, names in PAGES.items():
        text = path.read_text(encoding="utf-8")
        assert with_tables(text, {name: tables[name] for name in names}) == text, path


def test_the_chosen_rule(study: Study) -> None:
    assert chosen_rule(study.results, study.plan, tuple(RULES)) == "cube of the value"
    assert json.loads((HERE / "plan.json").read_text()) == study.plan.settings


def test_numbers_in_the_text_of_the_page(study: Study) -> None:
    """Plain means over the rows of the published table."""
    found = study.of(COPIES, 4096, "snapkv", 0.5, "aligned_plasticity", field="right")
    assert round(100 * float(found.mean())) == 63
    equal = study.of(COPIES, 4096, "snapkv", 0.5, FLAT, field="right")
    assert round(100 * float(equal.mean())) == 13
    assert all(f"{number} of 60" in EVIDENCE[name] for name, number in _better(study).items())
    assert _better(study)["aligned_plasticity"] == 55


def _better(study: Study) -> dict[str, int]:
    """In how many of 60 settings a value gives smaller KL than equal budgets, by plain loops."""
    found = {}
    for name in ("aligned_plasticity", "static_error", "ap_aligned", "ap_overall"):
        allocation = name if name == "aligned_plasticity" else f"value:{name}"
        found[name] = 0
        for context in study.plan.contexts:
            for scorer, compression in study.settings():
                own = study.of(REPORT, context, scorer, compression, allocation)
                other = study.of(REPORT, context, scorer, compression, FLAT)
                logs = [np.log(one) - np.log(two) for one, two in zip(own, other, strict=True)]
                found[name] += sum(logs) < 0
    return found


def test_every_published_outcome_is_planned(study: Study) -> None:
    rules = tuple(RULES)
    phases = [choice_phase(study.plan, rules), *report_phases(study.plan, rules, 30, 3)]
    planned = {one.name for phase in phases for one in phase}
    published = set(pd.read_csv(HERE / "results.csv.gz")["condition"])
    assert published <= planned
    missing = sorted(planned - published)
    assert all(name.startswith("jargon-file/7168/random/") for name in missing)


SHAPE = (4, 3)
VALUES = st.lists(
    st.floats(0.01, 1.0), min_size=12, max_size=12, unique_by=lambda one: round(one, 3)
).map(lambda found: np.array(found).reshape(SHAPE))


@settings(max_examples=15)
@given(VALUES, st.sampled_from(sorted(RULES)))
def test_every_rule_keeps_the_total_and_the_order(values: np.ndarray, rule: str) -> None:
    found = curves(values, RULES[rule])
    assert found.shape == (99, *SHAPE)
    assert found.mean(axis=(1, 2)) == pytest.approx(PERCENTS, abs=1e-9)
    assert ((found >= -1e-12) & (found <= 1.0)).all()
    rows = values if "in each layer" in rule else values.reshape(1, -1)
    for own, pruned in zip(rows, found.reshape(99, *rows.shape).swapaxes(0, 1), strict=True):
        assert (np.diff(pruned[:, np.argsort(own)], axis=1) <= 1e-9).all()


def test_the_ramp_of_the_product_is_among_them() -> None:
    values = np.random.default_rng(0).uniform(0.1, 0.9, SHAPE)
    expected = prune_curves(values.ravel(), np.ones(12, bool), "ramp").reshape(99, *SHAPE)
    assert curves(values, RULES["ramp 0.8"]) == pytest.approx(expected, abs=1e-12)


def test_orders_divide_the_same_budgets(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    heads = {name: rng.uniform(0.1, 0.9, SHAPE) for name in ORDERS}
    write_rules(tmp_path, heads[PLASTICITY])
    write_orders(tmp_path, heads, "cube of the value", Plan(random_orders=3))
    own = np.load(tmp_path / f"{PLASTICITY}.npy")
    assert (own == curves(heads[PLASTICITY], RULES["cube of the value"])).all()
    for name in (*ORDERS, f"{RANDOM_ORDER}:0", f"{RANDOM_ORDER}:2"):
        other = np.load(tmp_path / f"{name}.npy")
        for row, expected in zip(other, own, strict=True):
            assert np.sort(row, axis=None) == pytest.approx(np.sort(expected, axis=None))
    for name in ORDERS:
        order = np.argsort(heads[name], axis=None)
        kept = 1.0 - np.load(tmp_path / f"{name}.npy")[49].ravel()
        assert (np.diff(kept[order]) >= -1e-12).all()
        lost = np.load(tmp_path / f"{HALF}:{name}.npy")[93].ravel()
        assert np.flatnonzero(lost).tolist() == sorted(order[:6].tolist())
        assert set(lost.tolist()) == {0.0, 0.94}
    assert (np.load(tmp_path / f"{FLAT}.npy") == PERCENTS[:, None, None]).all()
    alone = np.load(tmp_path / f"{HEAD}:2.1.npy")
    assert alone[74, 2, 1] == 0.75
    assert np.count_nonzero(alone[74]) == 1
