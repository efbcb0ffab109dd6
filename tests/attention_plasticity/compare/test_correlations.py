"""Correlations with scores, against scipy's coefficients and plain loops over orders."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from attention_plasticity.compare.correlations import (
    COEFFICIENTS,
    correlations,
)

PLAIN = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}


def tables(x: list[float], y: list[float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    names = [f"m{place}" for place in range(len(x))]
    means = pd.DataFrame({"run": names, "minus": "", "metric": "drop", "mean": x})
    return means, pd.DataFrame({"model": names, "ruler": y})


def sample(number: int, seed: int = 0) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=number)
    return x.tolist(), (x + rng.normal(size=number)).tolist()


def found(x: list[float], y: list[float], families: list[str] | None = None) -> pd.DataFrame:
    table = correlations(*tables(x, y), families or [])
    assert table["coefficient"].tolist() == list(COEFFICIENTS)
    return table.set_index("coefficient")


@pytest.mark.parametrize("number", [3, 6, 12])
def test_coefficients_are_scipys(number: int) -> None:
    x, y = sample(number)
    table = found(x, y)
    for name, plain in PLAIN.items():
        assert table.loc[name, "value"] == pytest.approx(plain(x, y).statistic)
    assert set(table["models"]) == {number}


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_all_orders_of_few_models_are_counted(name: str) -> None:
    x, y = sample(6, 3)
    own = abs(PLAIN[name](x, y).statistic)
    all_of_them = [abs(PLAIN[name](x, order).statistic) for order in permutations(y)]
    plain = sum(value >= own - 1e-12 for value in all_of_them) / len(all_of_them)
    assert found(x, y).loc[name, "p_value"] == pytest.approx(plain)


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_intervals_are_those_of_resampled_models(name: str) -> None:
    """The ends agree with a plain bootstrap by other random numbers, up to its noise."""
    x, y = (np.array(part) for part in sample(15, 1))
    rng, values = np.random.default_rng(9), []
    for _ in range(1000):
        draw = rng.integers(0, 15, 15)
        values.append(PLAIN[name](x[draw], y[draw]).statistic)
    row = found(x.tolist(), y.tolist()).loc[name]
    low, high = np.quantile(values, [0.025, 0.975])
    assert (row["low"], row["high"]) == (
        pytest.approx(low, abs=0.05),
        pytest.approx(high, abs=0.05),
    )


def test_few_models_have_no_interval_and_a_warning() -> None:
    table = found(*sample(5))
    assert table["low"].isna().all()
    assert set(table["note"]) == {"only 5 models: one model can decide this result"}
    assert set(found(*sample(10))["note"]) == {""}


@pytest.mark.parametrize(
    ("x", "y", "note"),
    [
        ([1.0, 2.0, 3.0, math.nan], [1.0, math.nan, 2.0, 3.0], "2 models, too few"),
        ([1.0, 2.0, 3.0], [0.5, 0.5, 0.5], "equal scores"),
        ([0.1 + 0.2, 0.3, 0.3], [1.0, 2.0, 3.0], "equal values"),
    ],
)
def test_what_has_no_correlation_is_told(x: list[float], y: list[float], note: str) -> None:
    table = found(x, y)
    assert set(table["note"]) == {note}
    assert table["value"].isna().all()


def test_one_family_is_left_out_at_a_time() -> None:
    x, y = sample(9, 5)
    families = ["a", "b", "c"] * 3
    table = found(x, y, families)
    for name, plain in PLAIN.items():
        left = []
        for family in "abc":
            kept = [place for place in range(9) if families[place] != family]
            left.append(plain([x[one] for one in kept], [y[one] for one in kept]).statistic)
        row = table.loc[name]
        assert (row["family_low"], row["family_high"]) == pytest.approx((min(left), max(left)))
    assert set(table["families"]) == {3}
    assert found(x, y, ["a"] * 9)["family_low"].isna().all()


def test_the_same_numbers_give_the_same_table() -> None:
    pd.testing.assert_frame_equal(found(*sample(6)), found(*sample(6)), check_exact=True)
