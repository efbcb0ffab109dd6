"""Buckets, keep probabilities against the rows of real captures, and the first visible key."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attention_plasticity.tables.head_means import eligible_heads
from qk_dump.manifest import DumpManifest, read_manifest
from qk_dump.positions import (
    BucketGeometry,
    first_visible,
    geometry_of,
    joint_inclusion,
    keep_probabilities,
    thinned_inclusion,
)
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError
from sniffing import sniff
from tiny_texts import save_texts, save_tiny_model

TYPES = ("uniform", "log")
types = st.sampled_from(TYPES)
sizes = st.one_of(st.integers(1, 300), st.integers(1, 2**40))
positions = st.one_of(st.integers(0, 100_000), st.integers(0, 2**60))


def test_log_buckets_begin_at_powers_of_two_less_one():
    geometry = BucketGeometry("log", 100)
    sizes = (1, 2, 100, 128, 129)
    assert [BucketGeometry("log", size).first for size in sizes] == [0, 1, 7, 7, 8]
    assert geometry.starts([7, 8, 13]).tolist() == [0, 255, 8191]
    assert geometry.ends([7, 8]).tolist() == [254, 510]
    assert geometry.bucket([0, 254, 255, 510.5, 511]).tolist() == [7, 7, 8, 8, 9]


@given(kind=types, size=sizes, position=positions)
def test_a_position_lies_between_the_bounds_of_its_bucket(kind, size, position):
    geometry = BucketGeometry(kind, size)
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


def test_positions_beyond_64_bits_are_in_late_buckets():
    for beyond in (np.array([2**64 - 1], np.uint64), np.array([1e300])):
        assert BucketGeometry("log", 1).bucket(beyond)[0] >= 62


def test_what_does_not_tell_a_geometry_gives_none():
    assert geometry_of("log", 64) == BucketGeometry("log", 64)
    wrong = [(None, 64), ("log", None), ("cube", 64), ("log", 0), ("log", "64"), ([], 4)]
    wrong += [("log", True), ("uniform", 2**80)]
    assert all(geometry_of(*told) is None for told in wrong)


@given(
    length=st.integers(1, 40),
    window=st.one_of(st.none(), st.integers(1, 50)),
    chunked=st.booleans(),
)
def test_arrays_and_tensors_agree_with_a_mask(length, window, chunked):
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


# keep probabilities

UNIFORM = {"type": "uniform", "base_rate": 4.0, "key_base_rate": 8.0, "seed": 0}
KINDS = ("q", "k")


def manifest_of(**changes):
    facts = {"bucket_type": "uniform", "min_bucket_size": 16, "sampler": UNIFORM}
    return DumpManifest.model_validate(facts | changes)


def values(manifest, kind, positions):
    found = keep_probabilities(manifest, kind, positions).values
    assert found.dtype == np.float64
    return found.tolist()


def test_values_follow_from_the_sampler():
    assert values(manifest_of(), "q", [0, 100]) == [0.25, 0.25]
    assert values(manifest_of(), "k", [0, 100]) == [0.5, 0.5]
    log = manifest_of(bucket_type="log", sampler={"type": "log_uniform", "base_rate": 32.0})
    assert values(log, "k", [0, 30, 31, 62, 63, 127]) == [1.0, 1.0, 1.0, 1.0, 0.5, 0.25]
    assert values(manifest_of(sampler={"type": "all"}), "q", [3]) == [1.0]
    part = manifest_of(kept_share={"q": 0.5})  # rows were left out later
    assert (values(part, "q", [0]), values(part, "k", [0])) == ([0.125], [0.5])


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (None, "there is no dump.json"),
        (DumpManifest(), "has no sampler"),
        (manifest_of(min_bucket_size=None), "has no sampler, bucket_type or min_bucket_size"),
        (manifest_of(sampler={"type": "new"}), "sampler 'new' with buckets of type uniform"),
        (manifest_of(bucket_type="log"), "sampler 'uniform' with buckets of type log"),
        (manifest_of(sampler={"type": "uniform"}), "None is not a rate"),
        (manifest_of(sampler={"type": "uniform", "base_rate": -1}), "-1 is not a rate"),
        (manifest_of(sampler={"type": "uniform", "base_rate": float("nan")}), "nan is not a rate"),
        (manifest_of(sampler={"type": "uniform", "base_rate": True}), "True is not a rate"),
    ],
)
def test_unknown_probabilities_have_a_reason(manifest, reason):
    found = keep_probabilities(manifest, "q", [0, 1])
    assert found.values is None
    assert reason in str(found.reason)


def test_impossible_values_in_dump_json_are_refused(tmp_path):
    wrong = {
        "kept_share": [0.5, {"q": 0.0}, {"q": 1.5}, {"x": 0.5}, {"k": "1"}],
        "eligible_q_heads": [0, -1, 1.5, "3"],
    }
    for field, values_of_field in wrong.items():
        for value in values_of_field:
            (tmp_path / "dump.json").write_text(json.dumps({field: value}))
            with pytest.raises(ConfigError, match=field):
                read_manifest(tmp_path / "dump.json")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def test_counts_of_captures_fit(model, tmp_path):
    """Texts, layers and seeds are independent draws: 3 · 60 · 4 per kind and position."""
    texts = save_texts(tmp_path / "texts", [63] * 60)  # and a begin token
    counts = {kind: np.zeros(64) for kind in KINDS}
    given = {"capture__heads": 0, "capture__attention": "false", "inference__batch_size": 60}
    rates = {"capture__sampler__base_rate": 6.0, "capture__sampler__key_base_rate": 12.0}
    for seed in range(3):
        dump = tmp_path / f"dump-{seed}"
        more = {"capture__sampler__type": "log_uniform", "capture__sampler__seed": seed}
        assert sniff(model, texts, dump, **given, **rates, **more) == 0
        for head in open_dump(dump).folders:
            rows = pq.read_table(dump / head.folder / "data.parquet")["position"].to_numpy()
            counts[head.kind] += np.bincount(rows, minlength=64)
    manifest = read_manifest(tmp_path / "dump-0" / "dump.json")
    draws = 3 * 60 * 4
    for kind in KINDS:
        found = keep_probabilities(manifest, kind, np.arange(64)).values  # (positions,)
        assert found is not None
        expected = draws * found
        assert (found < 1).all()
        squares = (counts[kind] - expected) ** 2 / (expected * (1 - found))  # (positions,)
        assert 0.001 < stats.chi2.sf(squares.sum(), 64) < 0.999


def test_the_number_of_eligible_heads_is_recorded(model, tmp_path):
    texts = save_texts(tmp_path / "texts", [63])
    sampled = {"capture__head_sampling__count": 3, "capture__layers": "0-2"}
    for name, fields, eligible, by_type in (
        ("sampled", sampled, 12, {"full_attention": 12}),
        ("all", {}, 16, None),
        ("keys", {"capture__capture_queries": "false", "capture__heads": "1,2"}, 8, None),
    ):
        assert sniff(model, texts, tmp_path / name, **fields) == 0
        manifest = read_manifest(tmp_path / name / "dump.json")
        assert manifest.eligible_q_heads == eligible
        found = eligible_heads(manifest.model_dump(exclude_none=True), all_heads=True)
        assert (found.by_layer_type if found else None) == by_type


def test_inclusion_of_thinned_samples():
    """Counted in a simulation in which keys drawn in both ways are in the base file only."""
    rng = np.random.default_rng(1)
    base, attended = np.array([0.9, 0.5, 0.1, 1.0]), np.array([0.2, 1.0, 0.3, 0.0])
    inclusion = joint_inclusion(base, attended)
    np.testing.assert_allclose(inclusion, 1 - (1 - base) * (1 - attended))
    in_base, drawn = (rng.random((200_000, 4)) < chance for chance in (base, attended))
    in_attended = drawn & ~in_base
    np.testing.assert_allclose((in_base | in_attended).mean(axis=0), inclusion, atol=0.005)
    kept_base = in_base & (rng.random(in_base.shape) < 0.3)
    share = (kept_base | in_attended).mean(axis=0)
    np.testing.assert_allclose(share, thinned_inclusion(inclusion, base, 0.3), atol=0.005)
    np.testing.assert_allclose(thinned_inclusion(inclusion, base, 0.3), inclusion - 0.7 * base)
    kept_attended = in_attended & (rng.random(in_base.shape) < 0.6)
    share = (kept_base | kept_attended).mean(axis=0)
    np.testing.assert_allclose(share, thinned_inclusion(inclusion, base, 0.3, 0.6), atol=0.005)
    np.testing.assert_array_equal(thinned_inclusion(inclusion, base, 1.0), inclusion)
