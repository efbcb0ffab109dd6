"""The container of rows."""

from __future__ import annotations

import numpy as np
import pytest

from qk_dump.rows import Rows

ROWS = Rows(
    {
        "position": np.arange(4),
        "lse": np.array([0.5, 1, 2, 3], np.float32),
        "vector": np.arange(8.0).reshape(4, 2),
    }
)


def test_rows_have_one_length() -> None:
    assert len(ROWS) == 4
    assert len(Rows({})) == 0
    with pytest.raises(ValueError, match="'bucket': 3"):
        ROWS.with_columns({"bucket": np.arange(3)})


def test_a_column_that_a_part_lacks_is_unknown_there() -> None:
    one = ROWS[:2]
    other = Rows({"position": np.array([9]), "token_id": np.array([3], np.int32)})
    joined = Rows.joined([one, other, one])
    assert joined["position"].tolist() == [0, 1, 9, 0, 1]
    np.testing.assert_array_equal(joined["lse"], np.array([0.5, 1, np.nan, 0.5, 1], np.float32))
    assert joined["token_id"].tolist() == [-1, -1, 3, -1, -1]
    assert np.isnan(joined["vector"][2]).all()
    assert {name: joined[name].dtype for name in ("lse", "token_id")} == {
        "lse": np.float32,
        "token_id": np.int32,
    }
    assert Rows.joined([one]) is one
