"""Where buckets begin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from attention_plasticity.buckets import BucketGeometry, geometry_of
from qk_sniffer.samplers import PositionSampler


def test_uniform_buckets_begin_at_multiples() -> None:
    assert BucketGeometry("uniform", 128).starts([0, 1, 5]).tolist() == [0, 128, 640]


def test_log_buckets_begin_at_powers_of_two_less_one() -> None:
    geometry = BucketGeometry("log", 100)
    assert geometry.first == 7
    assert geometry.starts([7, 8, 13]).tolist() == [0, 255, 8191]


@given(
    kind=st.sampled_from(["uniform", "log_uniform"]),
    size=st.integers(1, 300),
    position=st.integers(0, 100_000),
)
def test_a_start_is_the_first_position_the_sampler_puts_there(
    kind: str, size: int, position: int
) -> None:
    sampler = PositionSampler(kind, size, 1.0)  # type: ignore[arg-type]
    geometry = BucketGeometry("log" if kind == "log_uniform" else "uniform", size)
    (bucket,) = sampler.bucket([position])
    start = int(geometry.starts([bucket])[0])
    assert start <= position
    (first,) = sampler.bucket([start])
    assert first == bucket
    if start > 0:
        (before,) = sampler.bucket([start - 1])
        assert before == bucket - 1


def test_a_manifest_that_does_not_tell_gives_none() -> None:
    assert geometry_of(None) is None
    assert geometry_of({"bucket_type": "log"}) is None
    told = geometry_of({"bucket_type": "log", "min_bucket_size": 64})
    assert told == BucketGeometry("log", 64)
