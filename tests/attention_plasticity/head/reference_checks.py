"""Comparison of a head with the slow reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attention_plasticity.head.result import HeadResult
from attention_plasticity.head.role_columns import DECIDING
from attention_plasticity.metrics import (
    ATTENTION_BY_BUCKET,
    BUCKET_PLASTICITY,
    COMPONENT_WEIGHTS,
    HEAD_METRICS,
    HEAD_NUMBERS,
    IDS,
    INFLUENCES,
)
from reference import Tables, tolerance

BINNED = (
    *("ap_aligned", "ap_pooled", "ap_phase", "ap_bin", "kernel_R2"),
    *("band_share", "unturned_share", *DECIDING),
)
"""Beginnings of what the reference does not compute; `one_position`, `test_bands` and
`test_role_influences` do."""


def assert_equals_reference(
    result: HeadResult, expected: Tables, *, without: tuple[str, ...] = ()
) -> None:
    """Check every column of every table of a head, and that missing values have a reason.

    `without` are beginnings of further columns that are not compared.
    """
    left_out = (*BINNED, *without)
    assert set(result.metrics) == set(HEAD_METRICS.names)
    assert result.metrics["layer_type"] == expected.metrics["layer_type"]
    numbers = tuple(name for name in HEAD_NUMBERS if not name.startswith(left_out))
    assert_column_equal(numbers, [result.metrics], [expected.metrics])
    assert tuple(result.bucket_plasticity.columns) == BUCKET_PLASTICITY.names
    assert_column_equal(
        BUCKET_PLASTICITY.names, result.bucket_plasticity.to_dict("records"), expected.buckets
    )
    assert tuple(result.component_weights.columns) == COMPONENT_WEIGHTS.names
    assert_column_equal(
        COMPONENT_WEIGHTS.names, result.component_weights.to_dict("records"), expected.components
    )
    assert (*IDS, *result.influences) == INFLUENCES.names
    names = result.influences["quantity"]
    known = [place for place, name in enumerate(names) if not name.startswith(left_out)]
    rows = [row for row in expected.influences if not row["quantity"].startswith(left_out)]
    assert [names[place] for place in known] == [row["quantity"] for row in rows]
    for name in INFLUENCES.names[4:]:
        rtol, atol = tolerance(name)
        right = [row[name] for row in rows]
        found = [result.influences[name][place] for place in known]
        np.testing.assert_allclose(found, right, rtol=rtol, atol=atol, err_msg=name)
    assert not result.attention or (*IDS, *result.attention) == ATTENTION_BY_BUCKET.names
    for name, values in result.attention.items():
        rtol, atol = tolerance(name)
        right = [row[name] for row in expected.attention]
        np.testing.assert_allclose(values, right, rtol=rtol, atol=atol, err_msg=name)

    assert_reasons_are_complete(result)


def assert_reasons_are_complete(result: HeadResult) -> None:
    """Check that every missing value has a reason, and that known values have none."""
    missing = [name for name in HEAD_NUMBERS if name != "sliding_window"]  # NaN: no window
    missing = [name for name in missing if math.isnan(result.metrics[name])]
    assert sorted(result.missing) == sorted(missing)
    assert all(result.missing.values())
    for content, missing_cells in (
        (result.buckets, result.missing_cells),
        (result.bins, result.missing_bins),
    ):
        cells = {name: sum(reasons.values()) for name, reasons in missing_cells.items()}
        empty = {name: np.count_nonzero(np.isnan(values)) for name, values in content.items()}
        assert cells == {name: number for name, number in empty.items() if number}


def assert_column_equal(columns: tuple[str, ...], rows: list[Any], expected: list[Any]) -> None:
    """Check some columns of a table."""
    assert len(rows) == len(expected)
    for name in columns:
        found, right = [row[name] for row in rows], [row[name] for row in expected]
        if all(isinstance(value, int) for value in right):
            assert found == right, name
        else:
            rtol, atol = tolerance(name)
            np.testing.assert_allclose(found, right, rtol=rtol, atol=atol, err_msg=name)
