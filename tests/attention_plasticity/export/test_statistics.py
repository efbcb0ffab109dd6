"""Exported statistics against all queries of a model, plain sums with weights, and numpy."""

import json

import numpy as np
import pytest
import torch

from attention_plasticity.export.queries import query_moments, top_direction
from commands_here import run_here
from dumps import write_columns
from helpers.export_dumps import LENGTH, TEXTS, exported, provenance, queries_of, read_safetensors
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.positions import BucketGeometry


def test_expected_attention(model_and_dump, tmp_path):
    model, dump = model_and_dump
    folder = exported(dump, tmp_path / "out", "expected-attention")
    before, _ = queries_of(model)
    rows = before[:, :, :, 4:]  # without the first four tokens of every text
    layers, heads, texts, length, width = rows.shape
    rows = rows.reshape(layers, heads, texts * length, width)
    mean = rows.mean(axis=2)
    centred = rows - mean[:, :, None]
    covariance = np.einsum("lhni,lhnj->lhij", centred, centred) / (texts * length - 1)
    tensors = read_safetensors(folder / "model.safetensors")
    assert {*tensors} == {"query_mean", "query_cov"}
    assert tensors["query_mean"] == pytest.approx(mean, rel=1e-3, abs=1e-4)
    assert tensors["query_cov"] == pytest.approx(covariance, rel=1e-3, abs=1e-4)
    assert json.loads((folder / "config.json").read_text()) == {
        "num_layers": layers,
        "num_heads": heads,
        "head_dim": width,
        "dataset_name": "unknown",
        "model_name": type(model).__name__,
        "num_samples": TEXTS,
        "sample_seq_len": LENGTH,
        "n_sink": 4,
    }
    assert {head["rows"] for head in provenance(folder)["heads"]} == {texts * length}


def test_q_filters(model_and_dump, tmp_path):
    model, dump = model_and_dump
    folder = exported(dump, tmp_path / "out", "q-filters")
    _, after = queries_of(model)
    layers, heads, *_, width = after.shape
    key_heads = model.config.num_key_value_heads
    group = heads // key_heads
    expected = np.zeros((layers, key_heads, width))
    for layer in range(layers):
        for head in range(heads):
            rows = after[layer, head].reshape(-1, width)
            direction = np.linalg.svd(rows, full_matrices=False)[2][0]
            direction *= np.sign(direction @ rows.mean(axis=0))
            expected[layer, head // group] -= direction / group
    tensors = read_safetensors(folder / "model.safetensors")
    assert {*tensors} == {"q_filters"}
    assert tensors["q_filters"] == pytest.approx(expected, rel=1e-3, abs=1e-3)
    config = {"num_layers": layers, "num_kv_heads": key_heads, "kv_head_dim": width}
    assert json.loads((folder / "config.json").read_text()) == config


WIDTH, RATE, SIZE = 4, 6.0, 8
FREQUENCIES = (0.7, 0.05)


def rows_of(head):
    """Texts, positions and vectors; the vectors grow with position, so that weights matter."""
    rng = np.random.default_rng(head)
    text = np.repeat(np.arange(8), 40)
    position = np.concatenate([np.sort(rng.choice(256, 40, replace=False)) for _ in range(8)])
    vectors = rng.standard_normal((len(text), WIDTH)) + position[:, None] / 64 * [1, -1, 2, 0.5]
    return text, position, vectors.astype(np.float32)


def probability(position):
    """As the format of a dump describes a log_uniform sampler: base rate / 2^bucket, at most 1."""
    bucket = max(int(np.floor(np.log2(position + 1))), int(np.ceil(np.log2(SIZE))))
    return min(1.0, RATE / 2**bucket)


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """Queries captured before RoPE, so that no rotation is part of the sums."""
    root = tmp_path_factory.mktemp("weights")
    for head in range(2):
        text, position, vectors = rows_of(head)
        bucket = BucketGeometry("log", SIZE).bucket(position)
        rows = {"bucket": bucket, "example_id": text, "position": position, "vectors": vectors}
        write_columns(root, HeadId(0, head, "q"), **rows)
        write_columns(root, HeadId(0, head, "k"), **rows)
    rotary = {"frequencies": list(FREQUENCIES), "dimensions": WIDTH}
    manifest = DumpManifest(
        model="owner/weighted",
        revision="abc",
        num_layers=1,
        num_q_heads=2,
        num_k_heads=2,
        pre_rope=True,
        layers=[{"layer": 0, "type": "full_attention", "rope": True, "rotary": rotary}],
        bucket_type="log",
        min_bucket_size=SIZE,
        sampler={"type": "log_uniform", "base_rate": RATE},
    )
    write_manifest(root, manifest)
    return root


def plain_sums(head, first=0):
    """Mean vector, mean length of bands, and covariance, by loops over rows."""
    _, positions, vectors = rows_of(head)
    total, squares = 0.0, 0.0
    mean, length = np.zeros(WIDTH), np.zeros(WIDTH // 2)
    kept = [
        (int(p), x.astype(float)) for p, x in zip(positions, vectors, strict=True) if p >= first
    ]
    for position, x in kept:
        weight = 1 / probability(position)
        total += weight
        squares += weight**2
        mean += weight * x
        length += weight * np.sqrt(x[:2] ** 2 + x[2:] ** 2)
    mean /= total
    covariance = np.zeros((WIDTH, WIDTH))
    for position, x in kept:
        covariance += np.outer(x - mean, x - mean) / probability(position)
    return mean, length / total, covariance / (total - squares / total)


def test_weights_are_inverse_probabilities(dump, tmp_path):
    for kind in ("expected-attention", "triattention"):
        assert run_here("export", dump, tmp_path / kind, "--to", kind).returncode == 0
    found = read_safetensors(tmp_path / "expected-attention" / "model.safetensors")
    stats = torch.load(tmp_path / "triattention" / "triattention.pt", weights_only=True)["stats"]
    for head in range(2):
        mean, _, covariance = plain_sums(head, first=4)
        assert found["query_mean"][0, head] == pytest.approx(mean, rel=1e-5)
        assert found["query_cov"][0, head] == pytest.approx(covariance, rel=1e-4)
        mean, length, _ = plain_sums(head)
        bands = stats[f"layer00_head{head:02d}"]
        both = np.concatenate([bands["q_mean_real"], bands["q_mean_imag"]])
        assert both == pytest.approx(mean, rel=1e-5)
        assert bands["q_abs_mean"].numpy() == pytest.approx(length, rel=1e-5)
        unweighted = rows_of(head)[2].mean(axis=0)
        assert abs(both - unweighted).max() > 0.1  # otherwise the test would see no weights
    facts = provenance(tmp_path / "expected-attention")
    assert facts["weights"] == "1 / probability that the token was kept"
    assert (facts["model"], facts["revision"]) == ("owner/weighted", "abc")
    assert facts["texts"] is None  # the dump has no examples.parquet


def test_unknown_weights_are_told(dump, tmp_path):
    """All weights are then 1."""
    copy = tmp_path / "dump"
    copy.mkdir()
    for head in dump.iterdir():
        if head.is_dir():
            (copy / head.name).symlink_to(head)
    manifest = DumpManifest.model_validate_json((dump / "dump.json").read_text())
    write_manifest(copy, manifest.model_copy(update={"sampler": None}))
    done = run_here("export", copy, tmp_path / "out", "--to", "expected-attention")
    assert done.returncode == 0
    assert "all rows have the weight 1: dump.json has no sampler" in " ".join(done.stderr.split())
    assert provenance(tmp_path / "out")["weights"].startswith("1: dump.json has no sampler")
    found = read_safetensors(tmp_path / "out" / "model.safetensors")
    _, positions, vectors = rows_of(0)
    mean = vectors[positions >= 4].astype(np.float64).mean(axis=0)
    assert found["query_mean"][0, 0] == pytest.approx(mean, rel=1e-5)


def sample(n=300, d=5, seed=0):
    """Vectors, unequal weights, and groups of rows."""
    rng = np.random.default_rng(seed)
    vectors = (rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) + 3).astype(np.float32)
    return vectors, rng.uniform(1, 20, n), rng.integers(0, 16, n)


def test_unequal_weights_agree_with_numpy():
    X, weight, group = sample()
    found = query_moments(X, weight, group)
    exact = X.astype(np.float64)
    assert found.mean == pytest.approx(np.average(exact, axis=0, weights=weight), rel=1e-12)
    assert found.covariance == pytest.approx(np.cov(exact.T, aweights=weight), rel=1e-10)
    products = sum(w * np.outer(x, x) for w, x in zip(weight, exact, strict=True)) / weight.sum()
    assert found.products == pytest.approx(products, rel=1e-10)


def test_errors_come_from_leaving_out_each_group():
    X, weight, group = sample()
    group[group > 11] = 3  # twelve groups
    errors = query_moments(X, weight, group).errors
    exact, whole = X.astype(np.float64), np.ones(len(X), bool)
    statistics = {
        "mean_relative_error": lambda rows: np.average(exact[rows], axis=0, weights=weight[rows]),
        "covariance_relative_error": lambda rows: np.cov(exact[rows].T, aweights=weight[rows]),
    }
    for name, statistic in statistics.items():
        others = np.array([statistic(group != number) for number in range(12)])
        squares = 11 / 12 * ((others - others.mean(axis=0)) ** 2).sum(axis=0)
        expected = np.sqrt(squares.sum()) / np.linalg.norm(statistic(whole))
        assert errors[name] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("group", [None, np.arange(300) % 3])
def test_errors_are_unknown_without_enough_groups(group):
    X, weight, _ = sample()
    found = query_moments(X, weight, group)
    assert np.isnan(list(found.errors.values())).all()


def test_top_direction_is_the_first_singular_vector_towards_the_mean():
    X, weight, group = sample()
    for sign in (1, -1):
        direction, second = top_direction(query_moments(sign * X, weight, group))
        _, values, rows = np.linalg.svd(np.sqrt(weight)[:, None] * X.astype(np.float64))
        assert abs(direction @ rows[0]) == pytest.approx(1.0, abs=1e-12)
        assert direction @ (sign * X).mean(axis=0) > 0
        assert second == pytest.approx(values[1] / values[0], rel=1e-9)


def test_moments_do_not_depend_on_a_large_mean():
    X, weight, group = sample()
    near, far = (query_moments(X.astype(np.float64) + by, weight, group) for by in (0.0, 1e6))
    assert far.covariance == pytest.approx(near.covariance, rel=1e-6)
