"""Counts of plasticity at one position, and the published tables of the pages."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import attention_plasticity as ap
from findings.smollm2 import counts
from findings.smollm2.counts import Rows, count_head, split_drop
from findings.smollm2.heads import head_tables
from findings.smollm2.phase import phase_tables
from findings.smollm2.roles import role_tables
from findings.tables import with_tables
from helpers.simulated_rope import equal_cells, split


def _rows(seed, share):
    """Rows of six texts of 48 tokens, of which some positions are kept."""
    rng = np.random.default_rng(seed)
    text, position = np.nonzero(rng.random((6, 48)) < share)
    vectors = rng.normal(size=(len(text), 3)) + np.stack(
        [np.cos(position), np.sin(position), np.ones(len(text))], axis=1
    )
    return Rows(vectors, position, text)


def test_the_count_is_that_of_plain_loops(monkeypatch):
    """All pairs of keys are used, so nothing is drawn for the count at one position."""
    monkeypatch.setattr(counts, "KEY_PAIRS", 10**6)
    queries, keys = _rows(0, 0.5), _rows(1, 0.4)
    exact, *_ = count_head(queries, keys, np.random.default_rng(0), size=16)
    assert exact.value == pytest.approx(_counted(queries, keys, leave_out=-1))
    without = [_counted(queries, keys, leave_out=text) for text in range(6)]
    error = np.sqrt(5 / 6 * sum((value - np.mean(without)) ** 2 for value in without))
    assert exact.error == pytest.approx(error)


def _counted(queries, keys, leave_out):
    pairs = [
        (i, j)
        for i, j in combinations(range(len(queries.text)), 2)
        if queries.position[i] == queries.position[j]
        and leave_out not in (queries.text[i], queries.text[j])
    ]
    bins = []
    for query_bin in (1, 2):
        cells = []
        for key_bin in range(query_bin):
            differ = []
            for a, b in combinations(range(len(keys.text)), 2):
                if keys.text[a] != keys.text[b] or keys.text[a] == leave_out:
                    continue
                if not keys.position[a] // 16 == keys.position[b] // 16 == key_bin:
                    continue
                w = keys.vectors[a] - keys.vectors[b]
                for i, j in pairs:
                    if queries.position[i] // 16 == query_bin:
                        wins = [float(w @ queries.vectors[row]) > 0 for row in (i, j)]
                        differ.append(wins[0] != wins[1])
            cells.append(2 * np.mean(differ))
        bins.append(np.mean(cells))
    return float(np.mean(bins))


def test_a_head_that_only_turns_has_plasticity_over_a_bin_alone():
    """All queries at a position are equal; the winner changes with the position."""
    keys = _rows(1, 0.4)
    turning = _rows(0, 0.5)
    vectors = np.stack([np.cos(turning.position), np.sin(turning.position)], axis=1)
    queries = Rows(vectors, turning.position, turning.text)
    flat = Rows(keys.vectors[:, :2], keys.position, keys.text)
    exact, over, *_ = count_head(queries, flat, np.random.default_rng(0), size=16)
    assert exact.value == 0
    assert over.value == pytest.approx(1, abs=0.1)


def test_the_parts_of_the_drop_are_those_of_loops():
    """In 20 bins every fifth has four, and in 16 bins some bins are in two fifths."""
    values = np.random.default_rng(3).random((20, 20))
    cells = [values[None, query, :query] for query in range(1, 20)]
    drop, position, distance = split_drop(cells)[:, 0]
    expected = split(equal_cells(values), range(1, 4), range(16, 20))
    assert position == pytest.approx(expected["ap_aligned_drop_position"])
    assert distance == pytest.approx(expected["ap_aligned_drop_distance"])
    assert drop == pytest.approx(expected["ap_aligned_drop"])
    few = split_drop(cells[:15])[:, 0]
    assert few[0] == pytest.approx(few[1] + few[2])
    weights = np.r_[1, 1, 0.2], np.r_[0.2, 1, 1, 1]  # of bins 1 to 3, and of bins 12 to 15
    means = [np.mean(own) for own in cells]
    first, last = (
        np.average(means[:3], weights=weights[0]),
        np.average(means[11:15], weights=weights[1]),
    )
    assert few[0] == pytest.approx(first - last)


ROOT = Path(__file__).parents[3]
RUN = ROOT / "results" / "smollm2-135m"
OTHER_RUNS = {"levels"}
"""Tables that need more runs than the published one."""


def test_the_tables_of_heads_are_those_of_the_published_run():
    run, counts = ap.open_run(RUN), pd.read_csv(RUN / "head_counts.csv")
    pages = {
        "findings-smollm2": [*head_tables({}, run), *role_tables(run)],
        "plasticity": phase_tables(run, counts),
    }
    for page, tables in pages.items():
        found = {name: table for name, table in tables if name not in OTHER_RUNS}
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert with_tables(text, found) == text, page
