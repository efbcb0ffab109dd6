"""The same heads in two models, and their roles, against the rows of the CSV files."""

from collections import Counter

import pytest
from scipy import stats

from attention_plasticity.compare.matched import changed_counts, matched_heads, role_counts
from attention_plasticity.compare.runs import Pair
from helpers.added_tables import add_roles
from helpers.plain_runs import length, opened, rows_of, small_models, values_of, vectors_of

METRIC = "ap_aligned"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two models on the same texts with roles, a third on other texts without roles."""
    found = small_models(tmp_path_factory.mktemp("matched"), 3, "aab")
    for one in found[:2]:
        add_roles(one.run.folder)
    return [opened(one.run.folder, one.label) for one in found]


@pytest.mark.parametrize(("other", "paired"), [(1, True), (2, False)])
def test_differences_and_tests_are_those_of_plain_sums(runs, other, paired):
    table = matched_heads([Pair(runs[other], runs[0])], [METRIC]).set_index(["layer", "q_head"])
    folders = runs[other].run.folder, runs[0].run.folder
    values = [values_of(folder, METRIC) for folder in folders]
    vectors = [vectors_of(folder, METRIC) for folder in folders]
    assert set(table.index) == set(values[0])
    for head in values[0]:
        row, change = table.loc[head], values[0][head] - values[1][head]
        assert (row["value"], row["minus_value"]) == (values[0][head], values[1][head])
        assert row["difference"] == pytest.approx(change, abs=1e-12)
        one, other = (vector[head][1:] for vector in vectors)
        error = length(one - other) if paired else length([*one, *other])
        assert row["se"] == pytest.approx(error, abs=1e-12)
        assert row["p_value"] == pytest.approx(2 * stats.t.sf(abs(change) / error, 11), rel=1e-9)
        low, high = stats.t.interval(0.95, 11, change, error)
        assert (row["low"], row["high"]) == pytest.approx((low, high))


def test_heads_that_changed_are_counted_with_scipys_correction(runs):
    """Each metric of each pair is corrected for its own number of heads."""
    pairs = [Pair(runs[1], runs[0]), Pair(runs[2], runs[0])]
    table = matched_heads(pairs, [METRIC, "ap_phase"])
    counts = changed_counts(table).set_index(["run", "metric"])
    for key, own in table.groupby(["run", "metric"]):
        significant = stats.false_discovery_control(own["p_value"]) <= 0.05
        assert own["changed"].tolist() == significant.tolist()
        row = counts.loc[key]
        assert (row["heads"], row["tested"], row["changed"]) == (29, 29, significant.sum())
        assert row["risen"] == (own["difference"][significant] > 0).sum()
        assert row["risen"] + row["fallen"] == row["changed"]
        assert row["mean_difference"] == pytest.approx(own["difference"].mean())
    assert 0 < counts.loc[("m1", METRIC), "changed"] < 29


def test_roles_are_counted_from_the_rows(runs):
    table = role_counts(runs)
    assert set(table["run"]) == {"m0", "m1"}
    rows = rows_of(runs[0].run.folder, "roles")
    counted, likely = (Counter(row[name] for row in rows) for name in ("role", "likely_role"))
    own = table[table["run"] == "m0"].set_index("role")
    for role in own.index:
        assert own.loc[role, "sure"] == counted[role]
        assert own.loc[role, "likely"] == likely[role]
    assert counted["unsure"] == 1
    # The rows of the helper have scores below all thresholds, except that of one unsure head.
    assert own.loc["previous", "possible"] == 1
    assert own.loc["mixed", "possible"] == 29
    assert own["likely"].sum() == own["heads"].iloc[0] == 29
    assert own["sure"].sum() == 28
