"""Hours of a dry run, against numbers that were measured."""

from __future__ import annotations

import pytest

from qk_study.study.cost import analysis_seconds, capture_seconds, hours


def test_the_8b_model_of_the_cost_page() -> None:
    gpu, _ = capture_seconds(6.89e15, cores=1)  # operations of a text of 131,072 tokens
    assert gpu == pytest.approx(12.9, rel=0.06)  # measured on one H200


def test_smollm2_on_two_cores() -> None:
    _, seconds = capture_seconds(4.06e12, cores=2)  # operations of a text of 8,192 tokens
    assert 25 <= seconds <= 32  # measured


@pytest.mark.parametrize(("rows", "measured"), [(2_210_058, 7.6), (2_207_994, 4.1), (735_969, 5.9)])
def test_a_layer_of_smollm2(rows: int, measured: float) -> None:
    estimated = analysis_seconds(9, rows / 30, workers=1)  # rows of 30 layers
    assert measured / 1.5 < estimated < measured * 1.5  # core seconds of one layer


def test_short_times_are_not_told_in_seconds() -> None:
    assert hours(59) == "< 1 min"
    assert hours(7200) == "2 h 0 min"
