"""Comparison of a head with the slow reference."""

import math

import numpy as np

from attention_plasticity.metrics import BUCKET_PLASTICITY, COMPONENT_WEIGHTS, HEAD_METRICS, TABLES
from reference import tolerance


def assert_equals_reference(result, expected, loosest=(0.0, 0.0)):
    """Check every column that the seeds define, and that missing values have a reason."""
    assert tuple(result.metrics) == HEAD_METRICS.names
    assert result.metrics["layer_type"] == expected.metrics["layer_type"]
    numbers = tuple(name for name in expected.metrics if name != "layer_type")
    _assert_equal(numbers, [result.metrics], [expected.metrics], loosest)
    for found, names, rows in (
        (result.bucket_plasticity, BUCKET_PLASTICITY.names, expected.buckets),
        (result.component_weights, COMPONENT_WEIGHTS.names, expected.components),
    ):
        assert tuple(found.columns) == names
        _assert_equal(names, found.to_dict("records"), rows, loosest)
    assert_reasons_are_complete(result)


def _assert_equal(columns, rows, expected, loosest):
    assert len(rows) == len(expected)
    for name in columns:
        found, right = [row[name] for row in rows], [row[name] for row in expected]
        if all(isinstance(value, int) for value in right):
            assert found == right, name
        else:
            rtol, atol = (max(pair) for pair in zip(tolerance(name), loosest, strict=True))
            np.testing.assert_allclose(found, right, rtol=rtol, atol=atol, err_msg=name)


def assert_reasons_are_complete(result):
    """Check that every missing value of a head has a reason, and that known values have none."""
    rows = {"head_metrics": result.metrics}
    if "drift" in result.tables:
        rows["drift"] = {name: value for name, (value,) in result.tables["drift"].items()}
    assert set(result.missing) <= set(rows)
    for table, row in rows.items():
        metrics = TABLES[table].by_name
        missing = {name for name, value in row.items() if metrics[name].is_missing(value)}
        reasons = result.missing.get(table, {})
        assert set(reasons) == missing
        assert all(reasons.values())


def influences_of(result):
    """Rows of the table of influences by quantity and bin; None: of the whole head."""
    table = result.tables["influences"]
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    return {
        (row["quantity"], None if math.isnan(row["bin"]) else int(row["bin"])): row for row in rows
    }


def assert_quantity(result, name, expected, atol, kind="head_metrics"):
    """Check value, error, influences and groups of a column with errors, in all tables."""
    row = result.metrics
    if kind != "head_metrics":
        row = {column: values[0] for column, values in result.tables[kind].items()}
    found = [row[name], row[f"{name}_se"]]
    np.testing.assert_allclose(found, expected[:2], rtol=0, atol=atol, err_msg=name)
    influences = influences_of(result).get((name, None))
    assert (influences is None) == math.isnan(expected.value), name
    if influences is not None:
        assert_influences(influences, expected, atol)


def assert_influences(row, expected, atol):
    """Check a row of the table of influences."""
    name = f"{row['quantity']} {row['bin']}"
    assert row["n_groups"] == expected.groups, name
    groups = [row[f"group_{g:02d}"] for g in range(16)]
    np.testing.assert_allclose(groups, expected.influences, rtol=0, atol=atol, err_msg=name)
    np.testing.assert_allclose(row["value"], expected.value, rtol=0, atol=atol, err_msg=name)
