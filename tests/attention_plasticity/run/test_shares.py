"""Commands that share a folder: other heads, or the same heads at the same time.

The law: the tables are a function of the records, whoever computed them, in whatever order.
"""

import threading

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forked_runs
from attention_plasticity.run import compute
from dumps import add_rotary, make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from runs_here import Here, analyse, compared_info, computed, records, run_info, tables
from waiting import PATIENCE

LAYERS, Q_HEADS, K_HEADS = 2, 4, 2
HEADS = [(layer, head) for layer in range(LAYERS) for head in range(Q_HEADS)]
FAST = {"num_pairs_per_bin": 8, "num_pairs_per_bucket": 8, "bin_size": 256}


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dump")
    made = make_dump(folder, layers=LAYERS, q_heads=Q_HEADS, k_heads=K_HEADS, n=60, d=4)
    return add_rotary(made, LAYERS, 4)


@pytest.fixture(scope="module")
def whole(dump, tmp_path_factory):
    """The folder of one run of all heads."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    analyse(dump, out, **FAST)
    return out


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(compute, "_SECONDS_BETWEEN_CHECKS", 0.02)


def assert_same(out, whole):
    assert tables(out) == tables(whole)
    assert compared_info(out) == compared_info(whole)


@given(
    layers=st.permutations(range(LAYERS)),
    heads=st.permutations(range(Q_HEADS)),
    cut=st.integers(1, Q_HEADS - 1),
)
@settings(max_examples=6)
def test_any_shares_in_any_order_make_the_tables_of_one_run(
    dump, whole, tmp_path_factory, layers, heads, cut
):
    """A share of the query heads of a key head is computed again with the others."""
    out = tmp_path_factory.mktemp("shares") / "out"
    shares = [(layer, sorted(part)) for layer in layers for part in (heads[:cut], heads[cut:])]
    done = set()
    for number, (layer, part) in enumerate(shares):
        analyse(dump, out, engine=Here(), layers=[layer], heads=part, **FAST)
        done |= {(layer, head) for head in part}
        left = [list(head) for head in HEADS if head not in done]
        assert run_info(out)["not_analysed"] == left
        assert len(pd.read_csv(out / "head_metrics.csv")) == len(done)
        assert (number == len(shares) - 1) == (not left)
    assert_same(out, whole)
    assert computed(dump, out, **FAST) == []


def test_shares_in_two_processes_at_the_same_time(dump, whole, tmp_path):
    """The last command has all heads in its tables."""
    shares = ({"layers": [0]}, {"layers": [1]})
    processes = [forked_runs.start(dump, tmp_path, FAST | share) for share in shares]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert forked_runs.computed_heads(tmp_path) == HEADS
    assert_same(tmp_path, whole)


def test_a_head_that_fails_stops_no_other_and_is_tried_again(tmp_path):
    dump = make_dump(tmp_path / "dump", layers=2, q_heads=2, k_heads=1, n=60, d=4)
    out, file = tmp_path / "out", dump / "l00h01q" / "data.parquet"
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    first = analyse(dump, out, layers=[0])
    [failure] = first.failures
    assert (failure.layer, failure.q_head, failure.k_head) == (0, 1, 0)
    assert str(file) in failure.reason
    assert first.info["heads"] == {
        **{"analysed": 1, "failed": 1},
        **{"not_analysed": 2, "not_captured": 0},
    }
    other = analyse(dump, out, layers=[1])  # another command keeps the failure and its reason
    assert other.failures == [failure]
    assert other.info["heads"]["analysed"] == 3
    assert first.has_failures
    assert computed(dump, out) == [(0, 0), (0, 1)]
    file.write_bytes(content)
    again = analyse(dump, out)
    assert again.failures == []
    assert again.info["heads"] == {
        **{"analysed": 4, "failed": 0},
        **{"not_analysed": 0, "not_captured": 0},
    }
    analyse(dump, tmp_path / "new")
    assert_same(out, tmp_path / "new")


# the same heads at the same time


def test_two_commands_on_the_same_heads_make_the_tables_of_one(dump, whole, tmp_path):
    """The first command waits inside a key head until the second has ended."""
    inside, ended = threading.Event(), threading.Event()

    def hold(layer, k_head):
        inside.set()
        assert ended.wait(PATIENCE)

    first, second = Here(hold), Here()
    thread = threading.Thread(
        target=analyse, args=(dump, tmp_path), kwargs={"engine": first, **FAST}
    )
    thread.start()
    assert inside.wait(PATIENCE)
    outcome = analyse(dump, tmp_path, engine=second, **FAST)
    ended.set()
    thread.join()
    assert sorted(second.heads) == HEADS
    assert first.heads == HEADS[:2]  # the others were recorded meanwhile
    assert outcome.info["heads"]["analysed"] == len(HEADS)
    assert_same(tmp_path, whole)


def test_kills_at_any_moment_lose_nothing(dump, whole, tmp_path):
    """A record or a table is there or not, and never a part of it."""
    done = set()
    for moment in (1, 2, 3, 5, 3, 4, 6, 12, 14):
        process = forked_runs.start(dump, tmp_path, FAST, die_at=moment)
        process.join()
        assert process.exitcode == 9, moment
        now = {path.name for path in records(tmp_path)}
        assert done <= now
        done = now
        assert not (tmp_path / "run.json").exists()
    assert len(done) == LAYERS * K_HEADS
    assert computed(dump, tmp_path, **FAST) == []
    assert_same(tmp_path, whole)
