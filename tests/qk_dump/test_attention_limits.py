"""Attention that a query can have passes; every impossible value is refused with its row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qk_dump.attention_columns import (
    ATTENTION_COLUMNS,
    ATTENTION_TYPES,
    MASS_BINS,
    AttentionRows,
    first_distances,
)
from qk_dump.attention_limits import check_attention
from qk_dump.attention_queries import LayerAttention
from qk_toolkit.errors import DumpError

FILE = Path("dump/l00h00q/data.parquet")
NO_SINKS = LayerAttention(learned_sinks=False)


def visible_keys(position: int, window: int | None, chunked: bool) -> list[int]:
    """The keys that a query sees."""
    if window is None:
        return list(range(position + 1))
    if chunked:
        return [key for key in range(position + 1) if key // window == position // window]
    return [key for key in range(position + 1) if position - key < window]


def columns_of(
    logits: dict[int, float], position: int, sink: float | None, bins: int
) -> dict[str, Any]:
    """The attention columns of one query, with plain sums. Tokens repeat after 3 tokens."""
    largest = max(logits.values())
    everything = [*logits.values(), *([] if sink is None else [sink])]
    top = max(everything)
    lse = top + math.log(math.fsum(math.exp(value - top) for value in everything))
    masses = [0.0] * bins
    entropy = sinks = 0.0
    for key, logit in logits.items():
        weight = math.exp(logit - lse)
        entropy -= weight * (logit - lse)
        sinks += weight if key < 4 else 0.0
        number = max(b for b, first in enumerate(first_distances(bins)) if first <= position - key)
        masses[number] += weight
    strongest = min(key for key, logit in logits.items() if logit == largest)
    duplicate = [key for key in logits if key < position and key % 3 == position % 3]
    induction = [key for key in logits if key >= 1 and (key - 1) % 3 == position % 3]
    return {
        "lse": lse,
        "max_logit": largest,
        "entropy": entropy,
        "sink_mass": sinks,
        "mass_by_distance": masses,
        "first_mass": math.exp(logits[0] - lse) if 0 in logits else 0.0,
        "argmax_position": strongest,
        "argmax_token": strongest % 3,
        "duplicate_mass": math.fsum(math.exp(logits[key] - lse) for key in duplicate),
        "duplicate_keys": len(duplicate),
        "induction_mass": math.fsum(math.exp(logits[key] - lse) for key in induction),
        "induction_keys": len(induction),
    }


def attention_rows(table: list[dict[str, Any]]) -> AttentionRows:
    return AttentionRows(
        **{
            name: np.array([row[name] for row in table], np.int32 if is_int else np.float32)
            for name, kind in ATTENTION_TYPES.items()
            for is_int in [kind == pa.int32()]
        }
    )


def bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 values with 8 significant bits, rounded to the nearest."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "float32": lambda values: values,
    "float16": lambda values: values.astype(np.float16).astype(np.float32),
    "bfloat16": lambda values: bfloat16(values),
    "1/256": lambda values: np.round(values * 256) / np.float32(256),
}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    length=st.integers(1, 50),
    spread=st.sampled_from([0.0, 0.3, 3.0, 30.0, 1000.0]),
    shift=st.sampled_from([0.0, -40.0, 300.0]),
    window=st.none() | st.integers(1, 60),
    chunked=st.booleans(),
    softcap=st.none() | st.sampled_from([0.5, 20.0]),
    sink=st.none() | st.sampled_from([-30.0, 0.0, 5.0]),
    hidden=st.sampled_from([0.0, 0.6]),
    bins=st.sampled_from([1, 3, MASS_BINS]),
    rounding=st.sampled_from(sorted(ROUNDINGS)),
)
def test_attention_of_random_logits_is_possible(
    seed: int,
    length: int,
    spread: float,
    shift: float,
    window: int | None,
    chunked: bool,
    softcap: float | None,
    sink: float | None,
    hidden: float,
    bins: int,
    rounding: str,
) -> None:
    """With a window or chunk, soft-cap, learned sink, keys that a mask hides, and rounding."""
    rng = np.random.default_rng(seed)
    table = []
    for position in range(length):
        seen = visible_keys(position, window, chunked)
        seen = [key for key in seen if rng.random() >= hidden] or seen[-1:]
        values = rng.standard_normal(len(seen)) * spread + shift
        if softcap is not None:
            values = softcap * np.tanh(values / softcap)
        table.append(
            columns_of(dict(zip(seen, values.tolist(), strict=True)), position, sink, bins)
        )
    exact = attention_rows(table)
    rounded = ROUNDINGS[rounding]
    changed = {}
    for name, values in exact.columns.items():
        if values.dtype != np.int32:
            changed[name] = rounded(values)
        if rounding == "1/256" and "mass_" in name:  # weights as in the embedded dump
            changed[name] = np.round(values * 4096) / np.float32(4096)
    rows = replace(exact, **changed)
    position = np.arange(length, dtype=np.float64)
    for known in (None, sink is not None):
        layer = LayerAttention(chunked and window is not None, known, softcap)
        check_attention(rows, position, window, layer, FILE, 0)


LENGTH, ROW = 64, 40


def possible(
    spread: float = 1.0, window: int | None = None, sink: float | None = None
) -> AttentionRows:
    """Attention of a text of 64 tokens."""
    rng = np.random.default_rng(1)
    table = []
    for position in range(LENGTH):
        seen = visible_keys(position, window, False)
        values = (rng.standard_normal(len(seen)) * spread).tolist()
        table.append(columns_of(dict(zip(seen, values, strict=True)), position, sink, MASS_BINS))
    return attention_rows(table)


def refusal(
    rows: AttentionRows, window: int | None = None, layer: LayerAttention = NO_SINKS
) -> str:
    position = np.arange(LENGTH, dtype=np.float64)
    with pytest.raises(DumpError) as caught:
        check_attention(rows, position, window, layer, FILE, 1000)
    return str(caught.value)


def changed(rows: AttentionRows, row: int = ROW, **columns: Any) -> AttentionRows:
    """The rows with other values in one of them."""
    found = replace(rows, **{name: values.copy() for name, values in rows.columns.items()})
    for name, change in columns.items():
        values = getattr(found, name)
        values[row] = change(values[row]) if callable(change) else change
    return found


def masses(**weights: float) -> np.ndarray:
    """Weights of some bins: `b3=0.5` is half of the weight at distances 4 to 7."""
    found = np.zeros(MASS_BINS, np.float32)
    for name, weight in weights.items():
        found[int(name[1:])] = weight
    return found


def moved(first: int, second: int) -> Callable[[np.ndarray], np.ndarray]:
    """The weight of one bin is moved to another."""

    def change(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        values[second] += values[first]
        values[first] = 0
        return values

    return change


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "max_logit above lse": ({"max_logit": lambda v: v + 5}, "max_logit"),
    "max_logit far below lse": ({"max_logit": -30.0}, "lse"),
    "max_logit below lse by more than ln 41": ({"max_logit": lambda v: v - 3}, "lse"),
    "lse shifted up": ({"lse": lambda v: v + 2}, "lse"),
    "lse shifted down": ({"lse": lambda v: v - 0.8}, "lse"),
    "negative entropy": ({"entropy": -0.1}, "entropy"),
    "entropy 0": ({"entropy": 0.0}, "entropy"),
    "entropy above ln 41": ({"entropy": math.log(41) + 0.2}, "entropy"),
    "entropy below lse - max_logit": ({"entropy": 1.0}, "entropy"),
    "negative sink mass": ({"sink_mass": -0.1}, "sink_mass"),
    "sink mass above 1": ({"sink_mass": 1.1}, "sink_mass"),
    "sink mass above that of its bins": ({"sink_mass": 0.9}, "sink_mass"),
    "negative mass": ({"mass_by_distance": masses(b0=1.1, b1=-0.1)}, "mass_by_distance"),
    "masses above 1": ({"mass_by_distance": masses(b0=0.6, b1=0.6)}, "mass_by_distance"),
    "masses below 1": ({"mass_by_distance": lambda v: v * 0.9}, "mass_by_distance"),
    "no mass": ({"mass_by_distance": masses()}, "mass_by_distance"),
    "mass beyond the position": ({"mass_by_distance": moved(6, 7)}, "mass_by_distance"),
    "negative first mass": ({"first_mass": -0.1}, "first_mass"),
    "first mass above that of the sinks": ({"first_mass": lambda v: v + 0.3}, "first_mass"),
    "first mass above the largest weight": (
        {"first_mass": 0.5, "sink_mass": 0.5, "mass_by_distance": masses(b6=0.5, b0=0.5)},
        "lse",
    ),
    "the strongest key is later": ({"argmax_position": ROW + 1}, "argmax_position"),
    "negative weight of duplicates": ({"duplicate_mass": -0.1}, "duplicate_mass"),
    "weight of duplicates above 1": ({"duplicate_mass": 1.1}, "duplicate_mass"),
    "weight without duplicates": ({"duplicate_keys": 0}, "duplicate_mass"),
    "more duplicates than earlier keys": ({"duplicate_keys": ROW + 1}, "duplicate_keys"),
    "weight without induction keys": ({"induction_keys": 0}, "induction_mass"),
    "more induction keys than later tokens": ({"induction_keys": ROW + 1}, "induction_keys"),
    "weight of induction keys above 1": ({"induction_mass": 1.1}, "induction_mass"),
    "all mass on one key": ({"mass_by_distance": masses(b0=1.0), "sink_mass": 0.0}, "lse"),
}


@pytest.mark.parametrize(("columns", "name"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_impossible_value_is_refused(columns: dict[str, Any], name: str) -> None:
    message = refusal(changed(possible(), **columns))
    assert message.startswith(f"{FILE}: row {1000 + ROW}: impossible value in {name} (")
    assert message.endswith("). Capture or download the head again.")


def test_the_strongest_key_has_the_largest_weight() -> None:
    """The weight at distance 0 to 3 is almost 1; a key far away cannot have it."""
    rows = changed(
        possible(),
        lse=5.01,
        max_logit=5.0,
        entropy=0.05,
        sink_mass=0.0,
        first_mass=0.0,
        mass_by_distance=masses(b2=1.0),
        argmax_position=ROW - 2,
        duplicate_mass=0.0,
        induction_mass=0.0,
    )
    check_attention(rows, np.arange(float(LENGTH)), None, NO_SINKS, FILE, 0)
    for place in (0, 3, ROW - 4, ROW):
        message = refusal(changed(rows, argmax_position=place))
        assert f"impossible value in argmax_position ({place}: the largest weight, 0." in message


def test_keys_that_a_window_hides_are_not_the_strongest() -> None:
    rows = possible(window=8)
    assert "sees 8 keys up to its own" in refusal(changed(rows, argmax_position=ROW - 8), 8)
    assert "first_mass (0.1, but" in refusal(changed(rows, first_mass=0.1), 8)
    assert "sees at most 7 such keys" in refusal(changed(rows, duplicate_keys=8), 8)
    assert "sees at most 8 such keys" in refusal(changed(rows, induction_keys=9), 8)


def test_rows_without_known_keys_or_tokens_are_possible() -> None:
    """Also files without these columns."""
    unknown = {"argmax_position": -1, "argmax_token": -1, "duplicate_keys": -1}
    unknown |= {"induction_keys": -1} | dict.fromkeys(
        ("first_mass", "duplicate_mass", "induction_mass"), np.nan
    )
    position = np.arange(float(LENGTH))
    check_attention(changed(possible(), **unknown), position, None, NO_SINKS, FILE, 0)
    five = AttentionRows(*(getattr(possible(), name) for name in ATTENTION_COLUMNS))
    check_attention(five, position, None, NO_SINKS, FILE, 0)


def test_the_first_queries_see_only_sinks() -> None:
    for row in range(4):
        assert "sink_mass (0.8, but" in refusal(changed(possible(), row, sink_mass=0.8))
    assert "row 1000: impossible value in entropy (0.1" in refusal(
        changed(possible(), 0, entropy=0.1)
    )


def test_a_window_hides_tokens() -> None:
    """Position 40 with a window of 8 sees tokens 33 to 40, with chunks of 7 tokens 35 to 40."""
    rows = possible(window=8)
    check_attention(rows, np.arange(float(LENGTH)), 8, NO_SINKS, FILE, 0)
    assert "sink_mass (0.1, but" in refusal(changed(rows, sink_mass=0.1), 8)
    assert "entropy (2.3, but" in refusal(changed(rows, entropy=2.3), 8)
    far = refusal(changed(rows, mass_by_distance=moved(3, 4)), 8)
    assert "is on tokens beyond the 8 that the query sees" in far
    chunks = replace(NO_SINKS, chunked=True)
    assert "row 1007: impossible value in mass_by_distance" in refusal(rows, 7, chunks)


def test_masses_below_1_are_refused_unless_there_may_be_learned_sinks() -> None:
    rows, position = possible(sink=2.0), np.arange(float(LENGTH))
    assert rows.mass_by_distance.sum(axis=1).max() < 0.95
    for known in (None, True):
        layer = LayerAttention(learned_sinks=known)
        check_attention(rows, position, None, layer, FILE, 0)
        for columns in ({"entropy": 4.0}, {"entropy": 0.0}, {"max_logit": 5.0}, {"lse": -3.0}):
            assert f"row {1000 + ROW}: " in refusal(changed(rows, **columns), layer=layer)
    assert "row 1000: impossible value in mass_by_distance (sum 0." in refusal(rows)
    assert "expected a sum of 1" in refusal(rows)


@pytest.mark.parametrize("softcap", [1e-9, 1.0])
def test_a_logit_beyond_the_soft_cap_is_refused(softcap: float) -> None:
    message = refusal(possible(3.0), layer=replace(NO_SINKS, softcap=softcap))
    assert f"is beyond the softcap {softcap:g} in dump.json" in message


@pytest.mark.parametrize("size", [1e5, 1e6, 1e8])
def test_weights_of_very_large_logits_are_not_exact(size: float) -> None:
    """A capture computes lse in float32, and weights from it: their sum is not exactly 1."""
    good = possible()
    largest = good.max_logit + np.float32(size)  # (n,)
    gap = good.lse.astype(np.float64) - good.max_logit
    lse = (largest + gap).astype(np.float32)
    factor = np.exp(largest - lse) / np.exp(-gap)  # (n,)
    rows = replace(
        good,
        lse=lse,
        max_logit=largest,
        entropy=good.entropy * factor.astype(np.float32),
        sink_mass=good.sink_mass * factor.astype(np.float32),
        mass_by_distance=good.mass_by_distance * factor[:, None].astype(np.float32),
    )
    position = np.arange(LENGTH, dtype=np.float64)
    check_attention(rows, position, None, NO_SINKS, FILE, 0)
    assert "impossible value in" in refusal(replace(rows, max_logit=good.max_logit))


def test_unknown_rows_are_not_checked() -> None:
    rows = changed(possible(), lse=np.nan, max_logit=np.nan, entropy=np.nan, sink_mass=np.nan)
    rows.mass_by_distance[ROW] = np.nan
    position = np.arange(float(LENGTH))
    check_attention(rows, position, None, NO_SINKS, FILE, 0)
    assert f"row {1000 + ROW + 1}: " in refusal(changed(rows, ROW + 1, entropy=9.0))
    rows.lse[:] = np.nan
    check_attention(rows, position, None, NO_SINKS, FILE, 0)
