"""Small dumps that ask for much: refused in one line before anything is sized by their claims."""

import resource
import tracemalloc
from typing import Any

import numpy as np
import pytest

from attention_plasticity import ToolkitError, make_config, open_dump
from attention_plasticity.head_analysis import analyze_group
from attention_plasticity.read.layout import MOST_BUCKETS
from attention_plasticity.run.plan import estimate, make_plan
from commands import analyze as run_command
from dumps import head_rows, make_dump
from head_pairs import analyze, write_pair
from qk_dump.heads import MOST_DIMENSIONS

Rows = dict[str, Any]


def rows_in(buckets, n, d=4, **changes):
    """Rows of one text that fill so many buckets."""
    rows = head_rows(n=n, d=d, examples=1)
    return {**rows, "bucket": np.arange(n) * buckets // n, "position": np.arange(n), **changes}


def refusal(root, **settings):
    """What the analysis says, which the dry run must say as well."""
    with pytest.raises(ToolkitError) as caught:
        analyze(root, **settings)
    told = str(caught.value)
    assert "\n" not in told
    config = make_config(num_q_heads=1, num_k_heads=1, **settings)
    dump = open_dump(root)
    assert told in estimate(dump, make_plan(dump, config), config).problems
    return told


@pytest.mark.parametrize("side", ["q", "k"])
def test_a_head_of_too_many_buckets_is_refused(tmp_path, side):
    """In little memory."""
    number, n = (10_000, 40_000) if side == "q" else (MOST_BUCKETS + 1, 3000)
    many, few = rows_in(number, n), rows_in(8, 60)
    write_pair(tmp_path, *((many, few) if side == "q" else (few, many)))
    tracemalloc.start()
    told = refusal(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
    assert told.startswith(f"{tmp_path / f'l00h00{side}'}: holds {number:,} buckets; ")
    assert "at most 1,024" in told
    assert "larger min_bucket_size" in told


def test_as_many_buckets_as_allowed_may_lie_far_apart(tmp_path):
    rows = rows_in(MOST_BUCKETS, 2 * MOST_BUCKETS, 2)
    rows["bucket"] = rows["bucket"] * 10**12 + 5
    rows["example_id"] = np.full(len(rows["bucket"]), 2**63 - 1)
    write_pair(tmp_path, rows, rows)
    cells = MOST_BUCKETS * (MOST_BUCKETS - 1) // 2
    assert len(analyze(tmp_path).bucket_plasticity) == cells
    dump, config = open_dump(tmp_path), make_config()
    found = estimate(dump, make_plan(dump, config), config)
    assert found.problems == ()


def test_many_buckets_of_wide_vectors_are_refused(tmp_path):
    width = 1024
    queries, keys = rows_in(400, 1200, width), rows_in(8, 60, width)
    write_pair(tmp_path, queries, keys)
    told = refusal(tmp_path)
    assert "400 query buckets of 1,024 dimensions" in told
    assert "larger min_bucket_size" in told
    assert width < MOST_DIMENSIONS


@pytest.mark.parametrize("sampling", ["bucket", "local"])
def test_more_pairs_than_can_be_held_are_refused(tmp_path, sampling):
    make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, n=2000, context=8192)
    told = refusal(tmp_path, pair_sampling=sampling, num_pairs_per_bucket=10**6)
    assert "num_pairs_per_bucket 1,000,000" in told
    assert "64 key buckets" in told


def test_a_head_of_too_many_shards_is_refused_and_the_others_come_out(tmp_path):
    dump = open_dump(make_dump(tmp_path, layers=1, q_heads=2, k_heads=1, n=60))
    for number in range(10_001):
        (tmp_path / "l00h01q" / f"{number}.parquet").touch()
    told = f"{tmp_path / 'l00h01q'}: holds 10,002 Parquet files; a head may have at most 10,000."
    config = make_config()
    (problem,) = estimate(dump, make_plan(dump, config), config).problems
    found = analyze_group(dump, 0, 0, (0, 1), config)
    assert [head.q_head for head in found.heads] == [0]
    [failure] = found.failures
    assert problem == failure.reason
    assert problem.startswith(told)


def test_a_head_that_does_not_fit_is_told_what_to_lower(tmp_path):
    def in_very_little_memory():
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    rows = rows_in(6, 60, MOST_DIMENSIONS)  # covariances of 6 × 128 MiB
    write_pair(tmp_path / "dump", rows, rows)
    words = ("--dataset_local_root", tmp_path / "dump", "--output_dir", tmp_path / "out")
    done = run_command(*words, preexec_fn=in_very_little_memory)
    assert done.returncode == 1
    assert "out of memory; lower max_workers, max_tokens_per_head" in done.stdout
    assert "internal error" not in done.stdout
