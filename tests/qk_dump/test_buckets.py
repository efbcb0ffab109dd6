"""Buckets of positions, and the first key that a query sees."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from qk_dump.buckets import BucketGeometry, geometry_of
from qk_dump.visible import first_visible

TYPES = ("uniform", "log")
types = st.sampled_from(TYPES)
sizes = st.one_of(st.integers(1, 300), st.integers(1, 2**40))
positions = st.one_of(st.integers(0, 100_000), st.integers(0, 2**60))


def test_log_buckets_begin_at_powers_of_two_less_one() -> None:
    geometry = BucketGeometry("log", 100)
    sizes = (1, 2, 100, 128, 129)
    assert [BucketGeometry("log", size).first for size in sizes] == [0, 1, 7, 7, 8]
    assert geometry.starts([7, 8, 13]).tolist() == [0, 255, 8191]
    assert geometry.ends([7, 8]).tolist() == [254, 510]
    assert geometry.bucket([0, 254, 255, 510.5, 511]).tolist() == [7, 7, 8, 8, 9]


@given(kind=types, size=sizes, position=positions)
def test_a_position_lies_between_the_bounds_of_its_bucket(
    kind: str, size: int, position: int
) -> None:
    geometry = BucketGeometry(kind, size)  # type: ignore[arg-type]
    (bucket,) = geometry.bucket([position]).tolist()
    (start,), (end,) = geometry.starts([bucket]).tolist(), geometry.ends([bucket]).tolist()
    assert start <= position <= end
    assert geometry.bucket([start, end]).tolist() == [bucket, bucket]
    assert geometry.bucket([end + 1]).tolist() == [bucket + 1]
    assert start == 0 or geometry.bucket([start - 1]).tolist() == [bucket - 1]
    if kind == "log":
        assert bucket == max(geometry.first, (position + 1).bit_length() - 1)
    else:
        assert bucket == position // size


def test_positions_beyond_64_bits_are_in_late_buckets() -> None:
    for beyond in (np.array([2**64 - 1], np.uint64), np.array([1e300])):
        assert BucketGeometry("log", 1).bucket(beyond)[0] >= 62


def test_what_does_not_tell_a_geometry_gives_none() -> None:
    assert geometry_of("log", 64) == BucketGeometry("log", 64)
    wrong = [(None, 64), ("log", None), ("cube", 64), ("log", 0), ("log", "64"), ([], 4)]
    wrong += [("log", True), ("uniform", 2**80)]
    assert all(geometry_of(*told) is None for told in wrong)


@given(
    length=st.integers(1, 40),
    window=st.one_of(st.none(), st.integers(1, 50)),
    chunked=st.booleans(),
)
def test_arrays_and_tensors_agree_with_a_mask(
    length: int, window: int | None, chunked: bool
) -> None:
    expected = []
    for query in range(length):
        keys = [*range(query + 1)]
        if window is not None and chunked:
            keys = [key for key in keys if key // window == query // window]
        elif window is not None:
            keys = keys[-window:]
        expected.append(keys[0])
    position = np.arange(length)
    assert first_visible(position, window, chunked).tolist() == expected
    assert first_visible(position.astype(np.float64), window, chunked).tolist() == expected
    assert first_visible(torch.arange(length), window, chunked).tolist() == expected
