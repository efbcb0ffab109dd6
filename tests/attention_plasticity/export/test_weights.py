"""Token weights of exported statistics against plain sums, for a sampler with unequal rates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from commands_here import run_here
from dumps import write_columns
from export_dumps import provenance, read_safetensors
from qk_dump.buckets import BucketGeometry
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest, write_manifest

WIDTH, RATE, SIZE = 4, 6.0, 8
FREQUENCIES = (0.7, 0.05)


def rows_of(head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts, positions and vectors; the vectors grow with position, so that weights matter."""
    rng = np.random.default_rng(head)
    text = np.repeat(np.arange(8), 40)
    position = np.concatenate([np.sort(rng.choice(256, 40, replace=False)) for _ in range(8)])
    vectors = rng.standard_normal((len(text), WIDTH)) + position[:, None] / 64 * [1, -1, 2, 0.5]
    return text, position, vectors.astype(np.float32)


def probability(position: int) -> float:
    """As the format of a dump describes a log_uniform sampler: base rate / 2^bucket, at most 1."""
    bucket = max(int(np.floor(np.log2(position + 1))), int(np.ceil(np.log2(SIZE))))
    return min(1.0, RATE / 2**bucket)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def plain_sums(head: int, first: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


def test_weights_are_inverse_probabilities(dump: Path, tmp_path: Path) -> None:
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


def test_unknown_weights_are_told(dump: Path, tmp_path: Path) -> None:
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
