"""Comparison of a head with the slow reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_plasticity.head.result import HeadResult
from attention_plasticity.run.outputs import (
    ATTENTION_COLUMNS,
    BUCKET_COLUMNS,
    COMPONENT_COLUMNS,
    IDS,
    INFLUENCE_COLUMNS,
    METRIC_COLUMNS,
    METRIC_NUMBERS,
)
from reference import Tables, tolerance


def assert_equals_reference(result: HeadResult, expected: Tables) -> None:
    """Check every column of every table of a head."""
    assert set(result.metrics) == set(METRIC_COLUMNS)
    assert result.metrics["layer_type"] == expected.metrics["layer_type"]
    assert_column_equal(METRIC_NUMBERS, [result.metrics], [expected.metrics])
    assert tuple(result.bucket_plasticity.columns) == BUCKET_COLUMNS
    assert_column_equal(
        BUCKET_COLUMNS, result.bucket_plasticity.to_dict("records"), expected.buckets
    )
    assert tuple(result.component_weights.columns) == COMPONENT_COLUMNS
    assert_column_equal(
        COMPONENT_COLUMNS, result.component_weights.to_dict("records"), expected.components
    )
    assert (*IDS, *result.influences) == INFLUENCE_COLUMNS
    assert result.influences["quantity"] == [row["quantity"] for row in expected.influences]
    for name in INFLUENCE_COLUMNS[4:]:
        rtol, atol = tolerance(name)
        right = [row[name] for row in expected.influences]
        np.testing.assert_allclose(
            result.influences[name], right, rtol=rtol, atol=atol, err_msg=name
        )
    assert not result.attention or (*IDS, *result.attention) == ATTENTION_COLUMNS
    for name, values in result.attention.items():
        rtol, atol = tolerance(name)
        right = [row[name] for row in expected.attention]
        np.testing.assert_allclose(values, right, rtol=rtol, atol=atol, err_msg=name)


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
