"""Why values of a head are missing: one head for every reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from attention_plasticity import HeadError
from attention_plasticity.head.aligned_columns import FEW_BIN_TEXTS
from attention_plasticity.head.plasticity_columns import (
    COUNTING_OFF,
    EMPTY_FIFTH,
    NO_CELL_COUNTS,
    NO_CELL_PAIRS,
    NO_COUNTS,
    NO_EARLIER_KEYS,
    NO_PAIRS,
    NO_QUERY_BUCKET,
)
from attention_plasticity.head.position_columns import (
    FEW_QUERIES,
    NO_RESIDUALS,
    NOT_TESTED,
    ONE_DIMENSION,
    ONE_POSITION,
)
from attention_plasticity.head.values import FEW_GROUPS, HeadValues
from dumps import head_rows
from head_pairs import analyze, small_head, write_pair
from qk_dump.manifest import DumpManifest, write_manifest
from reference_checks import assert_reasons_are_complete


def several(**changes: Any) -> dict[str, Any]:
    """600 rows of eight texts."""
    return {**head_rows(n=600, d=4, examples=8, seed=1), **changes}


def one_text(rows: dict[str, Any]) -> dict[str, Any]:
    return {**rows, "example_id": np.zeros_like(rows["example_id"])}


def own_texts(rows: dict[str, Any]) -> dict[str, Any]:
    return {**rows, "example_id": np.arange(len(rows["example_id"]))}


def own_texts_before(rows: dict[str, Any], bucket: int) -> dict[str, Any]:
    """Keys of early buckets are of different texts, those of late buckets of the usual ones."""
    early = rows["bucket"] < bucket
    return {**rows, "example_id": np.where(early, np.arange(len(early)) + 8, rows["example_id"])}


def flat(rows: dict[str, Any], dimensions: slice) -> dict[str, Any]:
    vectors = rows["vectors"].copy()
    vectors[:, dimensions] = 1.0
    return {**rows, "vectors": vectors}


def chosen(rows: dict[str, Any], which: Any) -> dict[str, Any]:
    return {name: values[which] for name, values in rows.items()}


def without_rope(dump: Path) -> Path:
    """Say that the layer has no RoPE, so that plasticity at one position is known."""
    layer = {"layer": 0, "type": "full_attention", "rope": False}
    write_manifest(dump, DumpManifest(layers=[layer]))
    return dump


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, str]]] = {
    "one position": (
        lambda: (several(position=np.full(600, 900)), several()),
        {},
        {"q_mae_ratio": ONE_POSITION},
    ),
    "constant queries": (
        lambda: (flat(several(), slice(None)), several()),
        {},
        {"q_resid0_skew": NO_RESIDUALS, "q_noise_med_ks_p": NO_RESIDUALS},
    ),
    "three queries": (
        lambda: (chosen(several(), slice(3)), several()),
        {},
        {"q_resid0_kurt": FEW_QUERIES, "q_noise_med_abs_kurt": FEW_QUERIES},
    ),
    "one dimension": (
        lambda: (head_rows(n=200, d=1, examples=8), head_rows(n=200, d=1, examples=8, seed=2)),
        {},
        {"q_noise_med_ks_p": ONE_DIMENSION, "q_noise_med_abs_skew": ONE_DIMENSION},
    ),
    "one bucket": (
        lambda: (small_head(1, bucket=np.zeros(60, int)), small_head(2)),
        {},
        {"ap_overall": NO_QUERY_BUCKET, "ap_drop": NO_QUERY_BUCKET, "ap_drop_se": NO_QUERY_BUCKET},
    ),
    "keys after the queries": (
        lambda: (several(bucket=np.ones(600, int)), several(bucket=np.full(600, 3))),
        {},
        {"ap_overall": NO_EARLIER_KEYS, "ap_counted": NO_EARLIER_KEYS},
    ),
    "keys of different texts": (
        lambda: (several(), own_texts(several())),
        {},
        {"ap_overall": NO_PAIRS, "ap_overall_bias": NO_PAIRS},
    ),
    "late queries": (
        lambda: (chosen(several(), several()["bucket"] >= 5), several()),
        {},
        {
            "ap_first20": EMPTY_FIFTH,
            "ap_drop": "there is no plasticity in the first fifth of the context",
        },
    ),
    "one text": (
        lambda: (one_text(several()), one_text(several())),
        {},
        {"ap_overall_se": FEW_GROUPS, "ap_counted": NO_COUNTS, "ap_gaussian_gap_se": NO_COUNTS},
    ),
    "pairs in late buckets only": (
        lambda: (
            chosen(several(), several()["bucket"] <= 2),
            own_texts_before(several(), bucket=3),
        ),
        {},
        {"ap_overall": NO_PAIRS},
    ),
    "no pairs and no counts": (
        lambda: (several(), own_texts(several())),
        {"counting": False},
        {"ap_counted": NO_PAIRS},
    ),
    "no counts": (
        lambda: (several(), several()),
        {"counting": False},
        {"ap_counted": COUNTING_OFF, "ap_gaussian_gap": COUNTING_OFF},
    ),
    "no errors": (
        lambda: (several(), several()),
        {"error_bars": False},
        {
            "ap_overall_se": "error_bars is off",
            "ap_counted": "error_bars is off",
            "n_text_groups": "error_bars is off",
        },
    ),
    "one sequence": (
        lambda: (several(), several()),
        {"single_example": True},
        {"ap_overall_se": "single_example is set", "n_text_groups": "single_example is set"},
    ),
}


@pytest.mark.parametrize(("heads", "settings", "reasons"), CASES.values(), ids=CASES)
def test_every_missing_value_has_its_reason(
    tmp_path: Path,
    heads: Callable[[], Any],
    settings: dict[str, Any],
    reasons: dict[str, str],
) -> None:
    result = analyze(without_rope(write_pair(tmp_path, *heads())), **settings)
    assert {name: result.missing[name] for name in reasons} == reasons
    assert_reasons_are_complete(result)


def test_cells_of_bins_have_reasons(tmp_path: Path) -> None:
    """Keys of early bins are of different texts, and few texts reach the last bin."""
    queries, keys = several(), own_texts_before(several(), bucket=2)
    queries["example_id"] = np.where(queries["bucket"] == 7, 0, queries["example_id"])
    result = analyze(without_rope(write_pair(tmp_path, queries, keys)), bin_size=128)
    bins, missing = result.bins, result.missing_bins
    early = sum(number < 2 for number in bins["k_bin"])
    assert missing["plasticity"] == missing["pooled"] == {NO_CELL_PAIRS: early}
    late = sum(q == 7 and k >= 2 for q, k in zip(bins["q_bin"], bins["k_bin"], strict=True))
    assert missing["pooled_se"] == {NO_CELL_PAIRS: early, FEW_BIN_TEXTS: late}
    assert missing["plasticity_counted"] == {NO_CELL_PAIRS: early, NO_CELL_COUNTS: late}
    assert_reasons_are_complete(result)


def test_a_dimension_that_is_not_tested_is_named(tmp_path: Path) -> None:
    """The test uses one dimension, which is constant; skewness uses all of them."""
    rows = several()
    for place in (1, 2, 3):
        result = analyze(
            write_pair(tmp_path / str(place), flat(rows, slice(place, place + 1)), several()),
            normality_max_dims=1,
        )
        if "q_noise_med_ks_p" in result.missing:
            assert result.missing["q_noise_med_ks_p"] == NOT_TESTED
            assert "q_noise_med_abs_skew" not in result.missing
            return
    pytest.fail("no constant dimension was tested")


def test_queries_without_the_id_of_their_text(tmp_path: Path) -> None:
    file = write_pair(tmp_path, several(), several()) / "l00h00q" / "data.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["example_id"]), file)
    result = analyze(tmp_path)
    assert result.missing["ap_overall_se"] == "the queries have no usable example_id"
    assert_reasons_are_complete(result)


def test_queries_that_are_too_large_are_refused_with_a_line(tmp_path: Path) -> None:
    vectors = np.where(several()["vectors"] > 0, 3e38, -3e38).astype(np.float32)
    with pytest.raises(HeadError, match="The queries are too large or too small"):
        analyze(write_pair(tmp_path, several(vectors=vectors), several()))


def test_nan_without_a_reason_is_a_defect() -> None:
    values = HeadValues()
    with pytest.raises(AssertionError, match="ap_overall is NaN without a reason"):
        values.add({"ap_overall": float("nan")})
    values.add({"sliding_window": float("nan")})
    assert values.missing == {}
