"""The summary of runs, against plain sums and loops over the rows of their CSV files."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.compare.groups import DIVISIONS, layers_of_part
from attention_plasticity.compare.runs import NamedRun, Pair, can_match, family_pairs, named_runs
from attention_plasticity.compare.summary import SUMMARY_COLUMNS, key_head_summary, summary
from attention_plasticity.tables.head_means import mean_estimate
from helpers.added_tables import add_roles
from helpers.plain_runs import (
    GROUPS,
    STUDENT_11,
    edit_info,
    edit_table,
    head_of,
    length,
    mean,
    mean_vector,
    opened,
    plain_mean,
    rows_of,
    small_models,
    values_of,
    vectors_of,
)
from helpers.report_runs import write_run
from qk_toolkit.errors import ConfigError

METRIC = "ap_aligned"
METRICS = [METRIC, "ap_aligned_drop", "ap_phase"]
WITHOUT_ROPE = {1, 3}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two models on the same texts, a third on others; all with roles and NoPE layers."""
    found = small_models(tmp_path_factory.mktemp("summary"), 3, "aab")
    for one in found:
        add_roles(one.run.folder)
        layers = [{"layer": number, "rope": number not in WITHOUT_ROPE} for number in range(5)]
        edit_info(one.run.folder, input__dump__layers=layers)
    return [opened(one.run.folder, one.label) for one in found]


def row_of(table, run, group, metric, minus=""):
    chosen = (table["run"] == run) & (table["minus"] == minus)
    [place] = np.flatnonzero(chosen & (table["group"] == group) & (table["metric"] == metric))
    return table.iloc[place]


def assert_row(row, value, error, heads):
    assert row["mean"] == pytest.approx(value, abs=1e-12)
    assert row["se"] == pytest.approx(error, abs=1e-12)
    assert row["high"] - row["mean"] == pytest.approx(STUDENT_11 * error, rel=1e-8, abs=1e-12)
    assert row["mean"] - row["low"] == pytest.approx(STUDENT_11 * error, rel=1e-8, abs=1e-12)
    assert (row["df"], row["heads"]) == (11, heads)


@pytest.mark.parametrize("metric", METRICS)
def test_means_are_those_of_the_files(runs, metric):
    table = summary(runs, None, [metric])
    assert tuple(table) == SUMMARY_COLUMNS
    for one in runs:
        assert_row(row_of(table, one.label, "all", metric), *plain_mean(one.run.folder, metric))


@pytest.mark.parametrize(("other", "paired"), [(1, True), (2, False)])
def test_differences_are_those_of_the_same_heads(runs, other, paired):
    table = summary([runs[0], runs[other]], None, [METRIC])
    row = row_of(table, runs[other].label, "all", METRIC, "m0")
    folders = runs[other].run.folder, runs[0].run.folder
    values = [values_of(folder, METRIC) for folder in folders]
    one, zero = (mean_vector(folder, METRIC)[1:] for folder in folders)
    change = mean(values[0][head] - values[1][head] for head in values[0])
    assert_row(row, change, length(one - zero if paired else [*one, *zero]), 29)


def test_only_heads_with_both_values_are_subtracted(tmp_path):
    one, other = small_models(tmp_path, 2, "aa")
    known = {METRIC: lambda table: table[METRIC].mask(table["layer"] == 2)}
    edit_table(other.run.folder, "metrics", lambda table: table.assign(**known))
    other = opened(other.run.folder, "m1")
    row = row_of(summary([one, other], None, [METRIC]), "m1", "all", METRIC, "m0")
    zero, own = (values_of(run.run.folder, METRIC) for run in (one, other))
    assert row["heads"] == len(own) == 24
    assert row["mean"] == pytest.approx(mean(own[head] - zero[head] for head in own), abs=1e-12)


@pytest.mark.parametrize("by", ["layer_type", "rope", "role"])
def test_groups_have_the_means_of_their_heads(runs, by):
    folder = runs[0].run.folder
    roles = {head_of(row): row["likely_role"] for row in rows_of(folder, "roles")}
    group_of = {
        "layer_type": lambda head: "sliding window" if head[0] == 1 else "full attention",
        "rope": lambda head: "NoPE" if head[0] in WITHOUT_ROPE else "RoPE",
        "role": roles.__getitem__,
    }[by]
    table = summary(runs[:1], by, [METRIC])
    groups = {group_of(head) for head in roles}
    assert {group for group in table["group"] if " minus " not in group} == groups
    for group in groups:
        expected = plain_mean(folder, METRIC, lambda head, own=group: group_of(head) == own)
        assert_row(row_of(table, "m0", group, METRIC), *expected)


def test_two_types_of_layers_have_a_difference(runs):
    full, windowed = (
        np.mean([own for head, own in vectors.items() if (head[0] == 1) == kind], axis=0)
        for vectors in [vectors_of(runs[0].run.folder, METRIC)]
        for kind in (False, True)
    )
    table = summary(runs[:1], "layer_type", [METRIC])
    between = row_of(table, "m0", "full attention minus sliding window", METRIC, "m0")
    value, *influences = full - windowed
    assert_row(between, value, length(influences), 29)


def test_tenths_of_the_depth(runs):
    """Five layers: every layer is in two tenths."""
    table = summary(runs[:1], "depth", [METRIC])
    assert table["group"].tolist() == [f"{part}–{part + 10} %" for part in range(0, 100, 10)]
    for part in range(10):
        expected = plain_mean(
            runs[0].run.folder, METRIC, lambda head, own=part // 2: head[0] == own
        )
        assert_row(table.iloc[part], *expected)


def test_every_layer_has_the_part_with_its_middle():
    for layers in (10, 12, 30, 61):
        parts = [layers_of_part(part, 10, layers) for part in range(10)]
        assert [layer for own in parts for layer in own] == list(range(layers))
        for part, own in enumerate(parts):
            assert all(part <= 10 * (layer + 0.5) / layers < part + 1 for layer in own)
    few = [layers_of_part(part, 10, 3) for part in range(10)]  # the layer at the part's middle
    assert few == [[0]] * 3 + [[1]] * 4 + [[2]] * 3


@pytest.mark.parametrize("by", [None, *DIVISIONS])
def test_the_order_of_runs_changes_only_signs(runs, by):
    keys = ["run", "minus", "group", "metric"]
    one = summary(runs, by, pairs=[Pair(runs[1], runs[0])]).set_index(keys)
    other = summary(runs[::-1], by, pairs=[Pair(runs[0], runs[1])]).set_index(keys)
    for key, row in one.iterrows():
        run, minus, group, metric = key
        is_difference = minus not in ("", run)
        twin = other.loc[(minus, run, group, metric) if is_difference else key]
        sign = -1.0 if is_difference else 1.0
        assert row["mean"] == pytest.approx(sign * twin["mean"], abs=1e-12)
        assert row["se"] == pytest.approx(twin["se"], abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("by", [None, "length"])
def test_the_order_of_heads_changes_nothing(runs, by, tmp_path):
    folder = tmp_path / "shuffled"
    folder.mkdir()
    for number, path in enumerate(sorted(runs[0].run.folder.iterdir())):
        if path.suffix == ".csv":
            rows = pd.read_csv(path).sample(frac=1.0, random_state=number)
            rows.to_csv(folder / path.name, index=False, na_rep="nan")
        else:
            (folder / path.name).write_bytes(path.read_bytes())
    pd.testing.assert_frame_equal(
        summary([opened(folder, "m0")], by), summary(runs[:1], by), check_exact=False, atol=1e-12
    )


def test_heads_that_were_sampled_at_random_add_to_the_error(tmp_path):
    [one] = small_models(tmp_path, 1)
    folder, layout = one.run.folder, {"num_q_heads": 6, "num_layers": 5}
    sampled = {"capture": {"capture": {"head_sampling": {"count": 29}}}, "eligible_q_heads": 120}
    edit_info(folder, input__dump=layout | sampled, heads={"analysed": 29})
    run = opened(folder, "m0")
    values, vectors = values_of(folder, METRIC), vectors_of(folder, METRIC)
    heads = len(values)
    middle = mean(values.values())
    spread = sum((value - middle) ** 2 for value in values.values()) / (heads - 1)
    of_texts = length(mean_vector(folder, METRIC)[1:]) ** 2
    between = spread - mean(length(own[1:]) ** 2 for own in vectors.values()) + of_texts
    variance = of_texts + (1 - heads / 120) * between / heads
    row = summary([run], None, [METRIC]).iloc[0]
    assert row["se"] == pytest.approx(math.sqrt(variance))
    assert row["df"] == 11


def test_first_runs_of_families_are_subtracted(runs):
    families, checkpoints = ("a", "a", "b", "", ""), (10.0, 5.0, None, 1.0, 2.0)
    named = [
        NamedRun(f"m{place}", runs[0].run, *given)
        for place, given in enumerate(zip(families, checkpoints, strict=True))
    ]
    pairs = {(pair.run.label, pair.minus.label) for pair in family_pairs(named)}
    assert pairs == {("m0", "m1"), ("m4", "m3")}


def test_wrong_words_are_told(runs):
    with pytest.raises(ConfigError, match=r"by: 'dept': expected one of layer_type, .*depth"):
        summary(runs, "dept")
    with pytest.raises(ConfigError, match=r"metrics: no run has ap_alined.*ap_aligned"):
        summary(runs, None, ["ap_alined"])
    assert [one.label for one in named_runs([runs[0].run, runs[1].run])] == ["m0", "m1"]


def test_runs_without_a_table_have_no_rows(tmp_path, runs):
    plain = opened(write_run(tmp_path / "plain", errors=True), "plain")
    for by in ("length", "fifth", "band", "role"):
        assert set(summary([*runs[:1], plain], by)["run"]) <= {"m0"}
    assert key_head_summary(runs).empty


def test_models_of_other_sizes_differ_by_their_means(runs):
    """Not by heads: the same numbers are other heads there."""
    one, other = runs[:2]
    layout = {"num_layers": 6, "num_q_heads": 6, "num_k_heads": 2}
    info = {**other.run.info, "head_layout": layout}
    other = replace(other, run=replace(other.run, info=info, layers=frozenset({1, 2})))
    assert not can_match(one, other)
    row = row_of(summary([one, other], None, [METRIC]), other.label, "all", METRIC, one.label)
    means = [
        plain_mean(other.run.folder, METRIC, lambda head: head[0] in (1, 2))[0],
        plain_mean(one.run.folder, METRIC)[0],
    ]
    assert row["mean"] == pytest.approx(means[0] - means[1], abs=1e-12)


def test_the_mean_has_the_fewest_groups():
    """The degrees of freedom are those of the head with the fewest groups of texts."""
    shares = [[0.1] * len(GROUPS)] * 2
    assert mean_estimate([1.0, 2.0], shares, [12.0, 5.0]).freedom == 4
