"""The bucket of a position, and the positions of a bucket."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from qk_dump.buckets import BucketGeometry, geometry_of

TYPES = ("uniform", "log")
types = st.sampled_from(TYPES)
sizes = st.one_of(st.integers(1, 300), st.integers(1, 2**40))
positions = st.one_of(st.integers(0, 100_000), st.integers(0, 2**60))


def test_uniform_buckets_begin_at_multiples() -> None:
    geometry = BucketGeometry("uniform", 128)
    assert geometry.starts([0, 1, 5]).tolist() == [0, 128, 640]
    assert geometry.ends([0, 1, 5]).tolist() == [127, 255, 767]
    assert geometry.bucket([0, 127, 128, 700.9]).tolist() == [0, 0, 1, 5]


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
    if kind == "log":
        assert bucket == max(geometry.first, (position + 1).bit_length() - 1)
    else:
        assert bucket == position // size


def test_log_buckets_are_exact_near_powers_of_two() -> None:
    for k in range(1, 63):
        near = [2**k - 2, 2**k - 1]
        assert BucketGeometry("log", 1).bucket(near).tolist() == [k - 1, k]
    assert BucketGeometry("log", 1).bucket([0]).tolist() == [0]
    for beyond in (np.array([2**64 - 1], np.uint64), np.array([1e300])):
        assert BucketGeometry("log", 1).bucket(beyond)[0] >= 62


def test_what_does_not_tell_a_geometry_gives_none() -> None:
    assert geometry_of("log", 64) == BucketGeometry("log", 64)
    wrong = [(None, 64), ("log", None), ("cube", 64), ("log", 0), ("log", "64"), ([], 4)]
    wrong += [("log", True), ("uniform", 2**80)]
    assert all(geometry_of(*told) is None for told in wrong)
