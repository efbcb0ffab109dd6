"""Plasticity by distance, of runs with context pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysed import analyse_together
from attention_plasticity import analyze_head, make_config, open_dump, open_run
from attention_plasticity.numeric.profile import DistanceSums
from dumps import make_dump
from lasting_workers import workers as workers  # a fixture of all tests here


def test_pairs_are_counted_by_their_distances_in_buckets() -> None:
    sums = DistanceSums(np.array([5, 9]), np.array([0, 2, 4]))
    later, earlier = np.array([0, 2, 2]), np.array([0, 0, 0])
    sums.add(0, later, earlier, np.array([0.5, 1.0, 0.0]))
    sums.add(1, later, earlier, np.array([0.25, 0.5, 0.5]))
    found = sums.finish()
    rows = zip(
        found.query_distance, found.key_distance, found.plasticity, found.n_pairs, strict=True
    )
    assert [tuple(map(float, row)) for row in rows] == [
        (1, 4, 0.5, 2),
        (5, 0, 0.5, 1),
        (5, 4, 0.5, 2),
        (9, 0, 0.25, 1),
    ]


def test_no_pair_gives_no_row() -> None:
    assert len(DistanceSums(np.array([1]), np.array([0])).finish().plasticity) == 0


def test_the_table_holds_every_pair_of_the_cells_once(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1))
    result = analyze_head(0, 0, 0, dump, make_config(pair_sampling="context"))
    cells = result.bucket_plasticity
    distances = pd.DataFrame(result.distances)
    cells["query_distance"] = cells["q_bucket"] - cells["k_bucket"]
    for distance, rows in cells.groupby("query_distance"):
        mine = distances[distances["query_distance"] == distance]
        assert mine["n_pairs"].sum() == rows["n_pairs"].sum()
        assert np.average(mine["plasticity"], weights=mine["n_pairs"]) == pytest.approx(
            np.average(rows["plasticity"].fillna(0.0), weights=rows["n_pairs"]), rel=1e-12
        )
    last = int(cells["q_bucket"].max())
    assert (distances["query_distance"] + distances["key_distance"] <= last).all()


def test_only_runs_with_context_pairs_have_the_table(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1)
    runs = {"a": {"pair_sampling": "context"}, "b": {}}
    analyse_together({tmp_path / name: (dump, settings) for name, settings in runs.items()})
    context, plain = open_run(tmp_path / "a"), open_run(tmp_path / "b")
    assert context.has_distances
    assert list(context.distances.columns) == [
        *("layer", "q_head", "k_head"),
        *("query_distance", "key_distance", "plasticity", "n_pairs"),
    ]
    assert not plain.has_distances
    assert not (tmp_path / "b" / "head_distance_plasticity.csv").exists()
