"""The study of evictions: outcomes on disk, the choice of the rule, budgets, published tables."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.export.budget import EVIDENCE
from attention_plasticity.export.division import PERCENTS, prune_curves
from findings.eviction.__main__ import weights_hash
from findings.eviction.budgets import BASELINES, RULES, curves, curves_of, windows_of
from findings.eviction.choice import best_rule, mark, preferred
from findings.eviction.plan import (
    BOTH,
    CHOICE,
    FAR,
    FLAT,
    LAYERS,
    OTHERS,
    PLASTICITY,
    RANDOM,
    REPORT,
    RULER_TASKS,
    SMALL,
    SOURCE,
    STATIC,
    WINDOW,
    Condition,
    Plan,
    choice_conditions,
    copies_in,
    full,
    main_source,
    needles_in,
    report_conditions,
    ruler,
    source_name,
    sources,
)
from findings.eviction.results import Results
from findings.eviction.tables import HERE, NAMES, PAGES, Study
from findings.eviction.values import read_values, write_values
from findings.tables import holm, text_interval, with_tables

ROOT = Path(__file__).parents[3]
SHAPE = (4, 3)


def test_outcomes_survive_a_kill_and_other_sizes_are_refused(tmp_path):
    one, two = (Condition(REPORT, 256, "snapkv", 0.5, name) for name in (FLAT, "own"))
    Results(tmp_path, SMALL).add(one, [(0.1, 0.2, 0.3), (0.4, 0.5, 0.6)])
    with (tmp_path / "outcomes-0.jsonl").open("a") as file:
        file.write('{"condition": "half of a li')
    other = Results(tmp_path, SMALL, part="1")  # another process, while the first one writes
    assert one in other
    other.add(two, [(1.0, 0.0, 0.0)])
    results = Results(tmp_path, SMALL)
    assert results.of(one).tolist() == [0.1, 0.4]
    assert results.of(one, "right").tolist() == [0.3, 0.6]
    assert results.of(two, "kl").tolist() == [1.0]
    with pytest.raises(SystemExit, match="results of other settings"):
        Results(tmp_path, replace(SMALL, following=99))
    path = tmp_path / "published" / "outcomes.csv.gz"
    path.parent.mkdir()
    results.publish(path)
    again = Results(path.parent, SMALL)
    assert again.of(one, "loss_change").tolist() == [0.2, 0.5]
    first = path.read_bytes()
    again.publish(path)
    assert path.read_bytes() == first


def test_conditions_of_a_list_have_the_same_texts_and_come_once():
    plan, rules = Plan(), tuple(RULES)
    lists = [*choice_conditions(plan, rules), *report_conditions(plan, rules[:2])]
    names = [one.name for conditions in lists for one in conditions]
    assert len(names) == len(set(names))
    for conditions in lists:
        assert len({(one.texts, one.context) for one in conditions}) == 1
    assert {conditions[0].texts for conditions in lists} == {
        *(CHOICE, needles_in(CHOICE), REPORT, needles_in(REPORT), copies_in(REPORT), *OTHERS),
        *map(ruler, RULER_TASKS),
    }
    needed = {one.split(f"/{SOURCE}:")[1] for one in names if f"/{SOURCE}:" in one}
    assert needed == {source_name(*one) for one in sources(plan)} - {main_source(plan)}


def outcomes(folder, plan, kl, found):
    """Outcomes of the choice, by rule; all others are those of equal budgets."""
    results = Results(folder, plan)
    for conditions in choice_conditions(plan, tuple(RULES)):
        for one in conditions:
            name = one.allocation.removeprefix("rule:")
            value = kl.get(name, 1.0) if one.texts == CHOICE else 0.1
            right = 1.0 if one == full(one.texts, one.context) else found.get(name, 0.0)
            results.add(one, [(value, 0.0, right), (3.0 * value, 0.0, right)])
    return results


def test_the_rule_with_small_kl_and_many_numbers_is_chosen(tmp_path):
    names = [name for name in RULES if name not in BASELINES]
    kl = {names[0]: 0.5, names[1]: 0.4, "ramp": 0.01}
    one = outcomes(tmp_path / "one", SMALL, kl, {})
    assert mark([one], SMALL, names[0]).log_kl == pytest.approx(np.log(0.5))
    assert best_rule([one], SMALL) == names[1]  # the ramp has no ratio
    two = outcomes(tmp_path / "two", SMALL, kl, {names[0]: 0.9})
    assert mark([two], SMALL, names[0]).needles == pytest.approx(0.9)
    assert best_rule([two], SMALL) == names[0]
    assert preferred([one, two], SMALL) == {
        "all": names[0],
        "model 0": names[1],
        "model 1": names[0],
    }


def test_a_model_that_finds_few_numbers_has_no_task(tmp_path):
    plan = replace(SMALL, answered=1.1)
    found = outcomes(tmp_path, plan, {}, dict.fromkeys(RULES, 0.5))
    assert np.isnan(mark([found], plan, next(iter(RULES))).needles)


def test_statistics_against_plain_numbers():
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    found = text_interval(np.array([1.0, 2.0, 3.0, 4.0]))
    half = 3.182446 * np.sqrt(5 / 3) / 2  # Student's quantile with three degrees of freedom
    assert found == pytest.approx((2.5, 2.5 - half, 2.5 + half), rel=1e-5)


def test_the_hash_of_weights_covers_all_their_files(tmp_path):
    (tmp_path / "b.safetensors").write_bytes(b"two")
    (tmp_path / "a.safetensors").write_bytes(b"one")
    (tmp_path / "config.json").write_bytes(b"{}")
    parts = [hashlib.sha256(one).digest() for one in (b"one", b"two")]
    assert weights_hash(tmp_path) == hashlib.sha256(b"".join(parts)).hexdigest()


VALUES = st.lists(
    st.floats(0.01, 1.0), min_size=12, max_size=12, unique_by=lambda one: round(one, 3)
).map(lambda found: np.array(found).reshape(SHAPE))


@settings(max_examples=15)
@given(VALUES, st.sampled_from(sorted(RULES)))
def test_every_rule_keeps_the_total_and_the_order(values, rule):
    found = curves(values, rule)
    assert found.shape == (99, *SHAPE)
    assert found.mean(axis=(1, 2)) == pytest.approx(PERCENTS, abs=1e-9)
    assert ((found >= 0.0) & (found <= 1.0)).all()
    assert (np.diff(found.reshape(99, -1)[:, np.argsort(values, axis=None)], axis=1) <= 1e-9).all()


def drawn_values(plan):
    rng = np.random.default_rng(0)
    names = [source_name(*one) for one in sources(plan)]
    return {
        name: {one: rng.uniform(0.1, 0.9, SHAPE) for one in (PLASTICITY, STATIC, FAR)}
        for name in names
    }


def test_values_are_read_as_they_were_written(tmp_path):
    values = drawn_values(SMALL)
    write_values(tmp_path / "values.csv", values)
    found = read_values(tmp_path / "values.csv")
    assert list(found) == list(values)
    for name, columns in values.items():
        for one, table in columns.items():
            assert found[name][one] == pytest.approx(table, rel=1e-5)


def test_budgets_of_every_allocation():
    values, rule = drawn_values(SMALL), "100, value"
    own = curves_of(PLASTICITY, values, rule, SMALL)
    assert (own == curves(values[main_source(SMALL)][PLASTICITY], rule)).all()
    shuffled = curves_of(f"{RANDOM}:1", values, rule, SMALL)
    assert np.sort(shuffled[49], axis=None) == pytest.approx(np.sort(own[49], axis=None))
    assert (shuffled != own).any()
    assert (curves_of(FLAT, values, rule, SMALL) == PERCENTS[:, None, None]).all()
    name = source_name("code", SMALL.captured, SMALL.captured_texts)
    other = curves_of(f"{SOURCE}:{name}", values, rule, SMALL)
    assert (other == curves(values[name][PLASTICITY], rule)).all()
    with pytest.raises(ValueError, match="unknown allocation"):
        curves_of("nothing", values, rule, SMALL)


def test_windows_go_to_the_heads_with_the_smallest_values():
    values = drawn_values(SMALL)
    main = values[main_source(SMALL)]
    for order in (PLASTICITY, FAR, BOTH, f"{RANDOM}:0"):
        found = windows_of(Condition(REPORT, 1024, WINDOW, 0.5, order), values, SMALL)
        lost = found[0].ravel()
        assert np.count_nonzero(lost) == 6
        assert set(lost[lost > 0]) == {1.0 - (SMALL.sink + SMALL.recent) / 1024}
        if order in main:
            smallest = np.argsort(main[order], axis=None)[:6]
            assert sorted(np.flatnonzero(lost)) == sorted(smallest)


@pytest.mark.parametrize("order", [STATIC, f"{RANDOM}:0"])
def test_windows_of_layers_go_to_the_layers_with_the_smallest_means(order):
    values = drawn_values(SMALL)
    main = values[main_source(SMALL)]
    condition = Condition(REPORT, 1024, WINDOW, 0.5, f"{LAYERS}:{order}")
    lost = windows_of(condition, values, SMALL)[0]
    assert lost.shape == SHAPE
    assert (lost == lost[:, :1]).all()
    assert np.count_nonzero(lost[:, 0]) == 2
    if order in main:
        smallest = sorted(range(4), key=lambda layer: main[order][layer].sum())[:2]
        assert set(np.flatnonzero(lost[:, 0])) == set(smallest)


@pytest.fixture(scope="module")
def study():
    return Study.read([HERE / name for name in NAMES], Plan())


def test_the_pages_have_the_tables_of_the_published_outcomes(study, monkeypatch):
    monkeypatch.chdir(ROOT)
    tables = dict(study.tables())
    assert sorted(tables) == sorted(name for names in PAGES.values() for name in names)
    for path, names in PAGES.items():
        text = path.read_text(encoding="utf-8")
        assert with_tables(text, {name: tables[name] for name in names}) == text, path


def test_the_default_rule_is_the_chosen_one(study):
    found = preferred([model.results for model in study.models], study.plan)
    values = np.random.default_rng(0).uniform(0.1, 0.9, SHAPE)
    expected = prune_curves(values.ravel(), np.ones(12, bool)).reshape(99, *SHAPE)
    assert curves(values, found["all"]) == pytest.approx(expected, abs=1e-12)
    for model, folder in zip(study.models, NAMES, strict=True):
        assert model.preferred == found
        assert json.loads((HERE / folder / "plan.json").read_text()) == study.plan.settings


def test_the_evidence_of_exports_counts_as_the_outcomes_do(study):
    for name in (PLASTICITY, STATIC):
        better, number = 0, 0
        for model in study.models:
            for context in study.plan.contexts:
                found = model.ratios(context, FLAT, study.plan.compressions, name)
                better += sum(sum(logs) < 0 for logs in found.values())
                number += len(found)
        assert f"{better} of {number}" in EVIDENCE[name]
