"""Tables of a run as the page gets them, with half widths; profiles of heads and their mean."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from attention_plasticity.metrics import HEAD_METRICS
from attention_plasticity.page.content import run_content
from attention_plasticity.page.payload import pack
from attention_plasticity.page.shown_columns import SCALE, UNKNOWN
from attention_plasticity.tables.attention_masses import row_masses_without_sinks
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import benjamini_hochberg, p_values
from attention_plasticity.tables.profiles import profiles_of
from commands_here import run_here
from helpers import run_tables
from helpers.added_tables import BINS, DISTANT, MASSES, add_attention, add_key_heads, name_layout
from helpers.report_runs import TEXT_GROUPS, write_run
from qk_toolkit.errors import ConfigError

FACTOR = t.ppf(0.975, TEXT_GROUPS - 1)
LEVEL, DROP = "ap_aligned", "ap_aligned_drop"


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "run", position=True)


@pytest.fixture
def run(folder):
    return FinishedRun.open(folder)


def tables_of(folder):
    return run_content(FinishedRun.open(folder), "x")[1]


def with_error(run):
    """The columns of the table of heads whose errors are known."""
    known = run.head_metrics.dropna(axis="columns", how="all")
    return [name for name in HEAD_METRICS.with_error if f"{name}_se" in known]


def test_heads_have_intervals_and_groups(run):
    tables = run_content(run, "x")[1]
    estimates, names = tables["heads"], with_error(run)
    assert {LEVEL, DROP, "ap_phase"} <= set(names)
    for name in names:
        expected = FACTOR * run.head_metrics[f"{name}_se"]
        np.testing.assert_allclose(estimates[f"{name}_half_width"], expected, rtol=1e-6)
        assert set(estimates[f"{name}_groups"]) == {TEXT_GROUPS}
    differs = benjamini_hochberg(p_values(run.head_metrics, DROP, run.influences))
    np.testing.assert_array_equal(estimates[f"{DROP}_differs"], differs)
    kinds = {name: kind for name, kind, _ in pack(tables)[0]["heads"]["columns"]}
    assert {kinds[f"{name}_half_width"] for name in names} == {"f4"}
    assert {kinds[f"{name}_groups"] for name in names} == {"u1"}


def test_masses_without_sinks_are_rounded_to_four_digits(folder):
    table = pd.read_csv(add_attention(folder) / "head_attention.csv")
    table.loc[5, ["mass_1", "mass_1_se"]] = np.nan
    table.iloc[::-1].to_csv(folder / "head_attention.csv", index=False)
    opened = FinishedRun.open(folder)
    about, tables = run_content(opened, "x")
    columns = tables["attention"]
    used = [first for first in BINS if first <= table["q_position"].max()]
    names = ["sinks", *map(str, used)]
    assert [name for name in columns if name.startswith("mass_")] == [f"mass_{n}" for n in names]
    masses, half = row_masses_without_sinks(table, used, opened.geometry)
    for place, first in enumerate(names):
        for name, values in ((f"mass_{first}", masses), (f"half_{first}", half)):
            known = ~np.isnan(values[:, place])
            assert (columns[name][~known] == UNKNOWN).all()
            shown = columns[name][known] / SCALE
            np.testing.assert_allclose(shown, values[known, place], atol=5.1e-5)
    for name in ("n_queries", "n_tokens"):
        np.testing.assert_array_equal(columns[name], table[name])
    kinds = {name: kind for name, kind, _ in pack(tables)[0]["attention"]["columns"]}
    assert {kinds[name] for name in kinds if name.startswith(("mass_", "half_"))} <= {"u1", "u2"}
    assert about["distant_from"] == DISTANT


def test_a_table_without_masses_is_left_out_and_rows_are_single(folder):
    table = pd.read_csv(add_attention(folder) / "head_attention.csv")
    pd.concat([table, table.head(1)]).to_csv(folder / "head_attention.csv", index=False)
    with pytest.raises(ConfigError, match=r"head_attention\.csv: holds two rows for layer 0"):
        tables_of(folder)
    table.assign(**dict.fromkeys(MASSES, 0.0)).to_csv(folder / "head_attention.csv", index=False)
    assert "attention" not in tables_of(folder)


def test_the_share_that_is_kept_is_that_of_the_exported_budget(tmp_path):
    values = [0.3, 0.1, 0.2, 0.4, 0.05, 0.35]
    own = add_key_heads(run_tables.write_run(tmp_path / "run"), {"aligned_plasticity": values})
    heads = len(values) // 3
    run = FinishedRun.open(name_layout(own, 3, 2 * heads, heads))
    done = run_here("export", own, tmp_path / "out", "--to", "kvpress-budget")
    assert done.returncode == 0, done.stderr
    kept = pd.read_csv(tmp_path / "out" / "budget.csv")[["kept_at_50", "kept_at_75"]]
    columns = run_content(run, "x")[1]["key_heads"]
    for percent in (50, 75):
        np.testing.assert_allclose(
            columns[f"kept_{percent}"], kept[f"kept_at_{percent}"], atol=1e-6
        )
    part = run_content(run.select(layers=[1]), "x")[1]["key_heads"]
    np.testing.assert_array_equal(part["kept_50"], columns["kept_50"][columns["layer"] == 1])
    lacking = add_key_heads(own, {"aligned_plasticity": [0.3, np.nan, 0.2, 0.4, 0.1, 0.2]})
    assert "kept_50" not in tables_of(lacking)["key_heads"]


def test_profiles_are_those_of_the_tables(run):
    """Also of a bin without a value, and of a head without influences."""
    bins, influences = run.table("bins").copy(), run.influences
    last = bins["q_bin"].max()
    bins.loc[bins["q_bin"] == last, ["plasticity", "plasticity_se", "pooled", "pooled_se"]] = np.nan
    first = (influences["layer"] == 0) & (influences["q_head"] == 0)
    vars(run)["_tables"]["bins"] = bins
    vars(run)["influences"] = influences[~first & (influences["bin"] != last)]
    about, tables = run_content(run, "x")
    expected = profiles_of(run, LEVEL)
    rows = pd.DataFrame(tables["profiles"])
    places = pd.MultiIndex.from_tuples(expected.heads)
    head = places.get_indexer(pd.MultiIndex.from_frame(rows[["layer", "q_head"]]))
    bucket = np.searchsorted(expected.buckets, rows["q_bucket"])
    for name, grid in (("plasticity", expected.values), ("half_width", expected.half)):
        np.testing.assert_allclose(rows[name], grid[head, bucket], rtol=1e-6)
    assert rows.loc[rows["q_bucket"] == last, "plasticity"].isna().all()
    mean, known = tables["mean_0"], expected.known
    assert last not in mean["q_bucket"]
    np.testing.assert_allclose(mean["plasticity"], known.mean)
    assert np.isnan(mean["half_width"]).all()
    assert about["groups"][0]["means"][LEVEL][1] is None
    cells = pd.DataFrame(tables["cells"]).query("q_bucket != @last and layer > 0")
    errors = bins.query("q_bin != @last and layer > 0")["plasticity_se"]
    np.testing.assert_allclose(cells["half_width"], FACTOR * errors, rtol=1e-6)
    assert not any(name.startswith("group_") for table in tables.values() for name in table)
