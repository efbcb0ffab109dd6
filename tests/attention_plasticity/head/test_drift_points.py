"""Points of a head in both frames, against a singular value decomposition of the dump."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from attention_plasticity import analyze_head, make_config, open_dump
from attention_plasticity.head.drift_rows import FEW_DIMENSIONS, NO_VARIANCE
from attention_plasticity.head.result import HeadResult
from attention_plasticity.metrics import IDS, POINTS
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.writer import write_head

FREQUENCIES, FACTOR, START, WIDTH, TEXTS, LENGTH = (0.6, 0.02), 1.5, 1, 6, 6, 40
ROPE = {
    "rope": True,
    "rotary": {
        "frequencies": [*FREQUENCIES],
        "pairing": "halves",
        "start": START,
        "scaling": FACTOR,
    },
}
FRAMES = {"before": ("pc0", "pc1"), "after": ("pc0_rotated", "pc1_rotated")}


def vectors_of(kind: str, width: int = WIDTH) -> np.ndarray:
    """(n, d) with a drift, a mean, and axes of different variance."""
    rng = np.random.default_rng({"q": 11, "k": 12}[kind])
    position = np.tile(np.arange(LENGTH), TEXTS)
    spread = np.linspace(2.0, 0.5, width)
    X: np.ndarray = 1.0 + spread * rng.standard_normal((TEXTS * LENGTH, width))
    X[:, 0] += 0.05 * position
    return X


def write(
    root: Path, vectors: dict[str, np.ndarray], layer: dict[str, Any], *, pre_rope: bool = False
) -> Path:
    text, position = np.divmod(np.arange(TEXTS * LENGTH), LENGTH)
    for kind, X in vectors.items():
        rows = {"bucket": position // 16, "example_id": text, "position": position}
        head = HeadId(0, 0, kind)  # type: ignore[arg-type]
        write_head(root, head, vectors=X.astype(np.float32), sliding_window=None, **rows)
    known = {"num_layers": 1, "num_q_heads": 1, "num_k_heads": 1, "pre_rope": pre_rope}
    known |= {"bucket_type": "uniform", "min_bucket_size": 16, "sampler": {"type": "all"}}
    entry = {"layer": 0, "type": "full_attention", "scale": 0.5, **layer}
    write_manifest(root, DumpManifest(**known, layers=[entry]))
    return root


def analysed(root: Path, points: int = 2000) -> HeadResult:
    return analyze_head(0, 0, 0, open_dump(root), make_config(points_per_head=points))


def read(root: Path, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (n, d) and positions (n,) of a file of the dump."""
    table = pq.read_table(root / f"l00h00{kind}" / "data.parquet")
    X = np.array(table["vector"].to_pylist(), dtype=np.float64)
    return X, np.array(table["position"].to_pylist())


def turned(X: np.ndarray, t: np.ndarray, direction: float, factor: float) -> np.ndarray:
    """Pairs of dimensions as complex numbers, times a factor and exp(± i θ t)."""
    found, pairs = X.copy(), len(FREQUENCIES)
    for pair, frequency in enumerate(FREQUENCIES):
        a, b = START + pair, START + pairs + pair
        z = factor * (X[:, a] + 1j * X[:, b]) * np.exp(1j * direction * frequency * t)
        found[:, a], found[:, b] = z.real, z.imag
    return found


def by_svd(X: np.ndarray) -> np.ndarray:
    """(n, 2) coordinates on the two leading principal components, of unknown sign."""
    u, s, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    found: np.ndarray = u[:, :2] * s[:2]
    return found


@pytest.mark.parametrize("pre_rope", [False, True], ids=["after RoPE", "before RoPE"])
def test_coordinates_are_those_of_a_singular_value_decomposition(
    tmp_path: Path, pre_rope: bool
) -> None:
    """All rows are points. Coordinates of both frames belong to one row of the dump."""
    captured = {kind: vectors_of(kind) for kind in "qk"}
    root = write(tmp_path, captured, ROPE, pre_rope=pre_rope)
    points = analysed(root).points
    assert (*IDS, *points) == POINTS.names
    for kind in "qk":
        X, t = read(root, kind)
        if pre_rope:
            frames = {"before": turned(X, t, 0.0, FACTOR), "after": turned(X, t, 1.0, FACTOR)}
        else:
            frames = {"before": turned(X, t, -1.0, 1.0), "after": X}
        own = np.flatnonzero(np.array(points["kind"]) == kind)
        position = np.array(points["position"])[own]
        assert len(own) == len(X)
        wanted = np.hstack([by_svd(frames[name]) for name in FRAMES])  # (n, 4)
        columns = [points[column] for names in FRAMES.values() for column in names]
        found = np.array(columns).T[own]  # (n, 4)
        fits = [
            signs
            for signs in product((1.0, -1.0), repeat=4)
            if same_rows(found, position, wanted * signs, t)
        ]
        assert len(fits) == 1
        for number in range(4):
            assert np.corrcoef(found[:, number], position)[0, 1] > 0


def same_rows(found: np.ndarray, position: np.ndarray, wanted: np.ndarray, t: np.ndarray) -> bool:
    """Whether the rows of both are equal up to their order. (n, 4) and (n,)"""
    one = np.column_stack([position, found])
    other = np.column_stack([t, wanted])
    one, other = (rows[np.lexsort(rows[:, :2].T[::-1])] for rows in (one, other))
    return bool(np.allclose(one, other, rtol=1e-4, atol=1e-3))


def test_rope_turns_the_points_of_a_slow_pair_with_position(tmp_path: Path) -> None:
    """A constant vector has no points before RoPE. After RoPE it moves on a circle."""
    X = {kind: np.full((TEXTS * LENGTH, WIDTH), 0.7) for kind in "qk"}
    t = np.tile(np.arange(LENGTH), TEXTS)
    after = {kind: turned(one, t, 1.0, FACTOR) for kind, one in X.items()}
    result = analysed(write(tmp_path, after, ROPE), points=50)
    assert result.missing_points == {"pc0": NO_VARIANCE, "pc1": NO_VARIANCE}
    assert all(math.isnan(one) for one in result.points["pc0"] + result.points["pc1"])
    x, y = (np.array(result.points[name]) for name in FRAMES["after"])
    radius = FACTOR * math.hypot(0.7, 0.7)
    fast = np.exp(1j * FREQUENCIES[0] * t) * radius
    assert np.hypot(x, y).max() == pytest.approx(np.abs(fast - fast.mean()).max(), rel=0.05)


def test_without_rope_both_frames_are_equal(tmp_path: Path) -> None:
    root = write(tmp_path, {kind: vectors_of(kind) for kind in "qk"}, {"rope": False})
    points = analysed(root, 30).points
    for one, other in zip(*FRAMES.values(), strict=True):
        assert points[one] == points[other]
        assert np.isfinite(points[one]).all()


@pytest.mark.parametrize("pre_rope", [False, True], ids=["after RoPE", "before RoPE"])
def test_a_frame_that_is_not_known_is_nan_with_a_reason(tmp_path: Path, pre_rope: bool) -> None:
    """Points of the other frame are those of the dump."""
    layer = {"rope": True, "rotary_problem": "the angles depend on the text"}
    X = {kind: vectors_of(kind) for kind in "qk"}
    root = write(tmp_path, X, layer, pre_rope=pre_rope)
    result = analysed(root, 20)
    names = [*FRAMES.items()]
    (_, known), (_, unknown) = names if pre_rope else names[::-1]
    assert result.missing_points == dict.fromkeys(unknown, "the angles depend on the text")
    assert all(math.isnan(one) for name in unknown for one in result.points[name])
    plain = analysed(write(tmp_path / "plain", X, {"rope": False}), 20).points
    for name in known:
        assert result.points[name] == plain[name]
    assert result.points["position"] == plain["position"]


def test_vectors_of_one_dimension_have_no_points(tmp_path: Path) -> None:
    X = {kind: vectors_of(kind) for kind in "qk"}
    X = {kind: one[:, :1] * np.ones((1, 2)) for kind, one in X.items()}
    result = analysed(write(tmp_path / "line", X, {"rope": False}), 20)
    assert np.abs(result.points["pc1"]).max() < 1e-3  # two dimensions, and all on a line
    one_of_them = {kind: one[:, :1] for kind, one in X.items()}
    result = analysed(write(tmp_path / "one", one_of_them, {"rope": False}), 20)
    assert result.missing_drift["q_pc1_share"] == FEW_DIMENSIONS
    assert result.points == result.missing_points == {}
