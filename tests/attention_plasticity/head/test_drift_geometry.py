"""The row of a head in the table of drift, and its points: frames, laws, reasons, plain counts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_plasticity import analyze_head, make_config, open_dump
from attention_plasticity.head.drift_geometry import ONE_GROUP
from attention_plasticity.head.drift_rows import NO_VARIANCE
from attention_plasticity.head.result import HeadResult
from attention_plasticity.head.values import FEW_GROUPS
from attention_plasticity.metrics import DRIFT, IDS, POINTS
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.rotary import RotaryRecord
from qk_dump.writer import write_head

SCALE, WIDTH, TEXTS, LENGTH = 0.4, 6, 8, 48
RECORD = RotaryRecord((0.5, 0.03), start=1, scaling=1.25)
SLOPES = {"q": 0.03, "k": 0.0}
Frame = dict[str, np.ndarray]


def content(
    kind: str, *, slope: float | None = None, noise: float = 1.0, texts: int = TEXTS
) -> Any:
    """Vectors before RoPE, of every token of every text, with a slope in dimension 0."""
    rng = np.random.default_rng({"q": 1, "k": 2}[kind])
    position = np.tile(np.arange(LENGTH), texts)
    X = 1.0 + noise * rng.standard_normal((texts * LENGTH, WIDTH))
    X[:, 0] += (SLOPES[kind] if slope is None else slope) * position
    return X


def turned(X: np.ndarray, record: RotaryRecord, angle: float = 1.0) -> np.ndarray:
    """What a model does to every pair of dimensions, row by row; `angle` 0: only the factor."""
    found, m = X.copy(), len(record.frequencies)
    for row in range(len(X)):
        for pair, frequency in enumerate(record.frequencies):
            a, b = record.start + pair, record.start + m + pair
            turn = angle * frequency * (row % LENGTH)
            cos, sin = (record.scaling * one for one in (math.cos(turn), math.sin(turn)))
            found[row, a] = cos * X[row, a] - sin * X[row, b]
            found[row, b] = sin * X[row, a] + cos * X[row, b]
    return found


def write_dump(
    root: Path,
    queries: np.ndarray,
    keys: np.ndarray,
    layer: dict[str, Any],
    *,
    pre_rope: bool = False,
    **fields: Any,
) -> Path:
    """A query head and a key head with every token of some texts."""
    text, position = np.divmod(np.arange(len(queries)), LENGTH)
    for kind, vectors in (("q", queries), ("k", keys)):
        head = HeadId(0, 0, kind)  # type: ignore[arg-type]
        rows = {"bucket": position // 16, "example_id": text, "position": position} | fields
        write_head(root, head, vectors=vectors.astype(np.float32), sliding_window=None, **rows)
    known = {"num_layers": 1, "num_q_heads": 1, "num_k_heads": 1, "pre_rope": pre_rope}
    known |= {"bucket_type": "uniform", "min_bucket_size": 16, "sampler": {"type": "all"}}
    entry = {"layer": 0, "type": "full_attention", "scale": SCALE, **layer}
    write_manifest(root, DumpManifest(**known, layers=[entry]))
    return root


def analysed(root: Path, **settings: Any) -> HeadResult:
    return analyze_head(0, 0, 0, open_dump(root), make_config(**settings))


ROPE = {"rope": True, "rotary": RECORD.to_json()}
NO_ROPE = {"rope": False}


def with_rope(root: Path, q: np.ndarray, k: np.ndarray) -> Path:
    return write_dump(root, turned(q, RECORD), turned(k, RECORD), ROPE)


def plain_r(X: np.ndarray) -> float:
    """The cross-fitted correlation, refitted from the rows of the other texts."""
    text, t = np.divmod(np.arange(len(X)), LENGTH)
    scores = np.zeros(len(X))
    for one in np.unique(text):
        others, own = text != one, text == one
        mean = X[others].mean(axis=0)
        axis = ((t[others] - t[others].mean())[:, None] * (X[others] - mean)).sum(axis=0)
        scores[own] = (X[own] - mean) @ axis / np.linalg.norm(axis)
    return float(np.corrcoef(scores, t)[0, 1])


def plain_values(frame: Frame) -> dict[str, float]:
    """Every column of one frame without an error, from the rows of all tokens."""
    found, t = {}, np.arange(len(frame["q"])) % LENGTH
    for kind, other in (("q", "k"), ("k", "q")):
        X = frame[kind]
        slopes = [np.polyfit(t, X[:, one], 1)[0] for one in range(WIDTH)]
        found[f"{kind}_drift_r"] = plain_r(X)
        found[f"{kind}_logit_drift"] = SCALE * LENGTH * float(slopes @ frame[other].mean(axis=0))
        values, vectors = np.linalg.eigh(np.cov(X.T))
        for number in range(2):
            along = X @ vectors[:, -1 - number]
            found[f"{kind}_pc{number}_share"] = float(values[-1 - number] / values.sum())
            found[f"{kind}_pc{number}_r"] = abs(float(np.corrcoef(along, t)[0, 1]))
    return found


@pytest.mark.parametrize("pre_rope", [False, True], ids=["after RoPE", "before RoPE"])
def test_both_frames_equal_plain_counts(tmp_path: Path, pre_rope: bool) -> None:
    captured = {kind: content(kind) for kind in "qk"}
    after = {kind: turned(X, RECORD) for kind, X in captured.items()}
    before = {kind: turned(X, RECORD, angle=0.0) for kind, X in captured.items()}
    written = captured if pre_rope else after
    root = write_dump(tmp_path, written["q"], written["k"], ROPE, pre_rope=pre_rope)
    row = analysed(root).drift
    assert (*IDS, *row) == DRIFT.names
    for ending, frame in (("", after), ("_unrotated", before)):
        for name, value in plain_values(frame).items():
            assert row[f"{name}{ending}"][0] == pytest.approx(value, rel=1e-4, abs=1e-6), name
            assert not name.endswith("_drift") or row[f"{name}{ending}_se"][0] > 0
    assert row["n_groups"] == [TEXTS]


def test_rope_on_a_constant_mean_is_a_drift_after_rope_only(tmp_path: Path) -> None:
    q, k = (content(kind, slope=0.0, noise=0.3) for kind in "qk")
    row = analysed(with_rope(tmp_path, q, k)).drift
    for kind in "qk":
        assert row[f"{kind}_drift_r"][0] > 0.7
        still, error = (row[f"{kind}_drift_r_unrotated{end}"][0] for end in ("", "_se"))
        assert abs(still) < 3.0 * error
        change, error = (row[f"{kind}_logit_drift_unrotated{end}"][0] for end in ("", "_se"))
        assert abs(change) < 3.0 * error


def test_a_planted_slope_is_found_before_rope(tmp_path: Path) -> None:
    """Queries move by 1.44 units over the text; the mean key there is 1, in one dimension."""
    row = analysed(with_rope(tmp_path, content("q"), content("k"))).drift
    moved, error = (row[f"q_logit_drift_unrotated{end}"][0] for end in ("", "_se"))
    assert abs(moved - SCALE * SLOPES["q"] * LENGTH) < 3.0 * error
    spread = SLOPES["q"] * math.sqrt((LENGTH**2 - 1) / 12)  # standard deviation of the drift
    found, error = (row[f"q_drift_r_unrotated{end}"][0] for end in ("", "_se"))
    assert abs(found - spread / math.hypot(spread, 1.0)) < 3.0 * error


def test_scales_of_queries_and_keys_change_logits_only(tmp_path: Path) -> None:
    q, k = content("q"), content("k")
    one = analysed(with_rope(tmp_path / "one", q, k))
    other = analysed(with_rope(tmp_path / "other", 3.0 * q, 0.5 * k))
    for name, (value,) in one.drift.items():
        factor = 1.5 if "logit" in name else 1.0
        assert other.drift[name][0] == pytest.approx(factor * value, rel=1e-4, abs=1e-6), name


def test_an_orthogonal_rotation_of_both_changes_nothing(tmp_path: Path) -> None:
    turn = np.linalg.qr(np.random.default_rng(3).standard_normal((WIDTH, WIDTH)))[0]
    q, k = content("q"), content("k")
    one = analysed(write_dump(tmp_path / "one", q, k, NO_ROPE))
    other = analysed(write_dump(tmp_path / "other", q @ turn, k @ turn, NO_ROPE))
    for name, (value,) in one.drift.items():
        assert other.drift[name][0] == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_without_rope_both_frames_are_equal(tmp_path: Path) -> None:
    row = analysed(write_dump(tmp_path, content("q"), content("k"), NO_ROPE)).drift
    for name, value in row.items():
        if f"{name}_unrotated" in row:
            assert row[f"{name}_unrotated"] == value


@pytest.mark.parametrize("pre_rope", [False, True], ids=["after RoPE", "before RoPE"])
def test_a_frame_that_is_not_known_has_a_reason(tmp_path: Path, pre_rope: bool) -> None:
    layer = {"rope": True, "rotary_problem": "the angles depend on the text"}
    root = write_dump(tmp_path, content("q"), content("k"), layer, pre_rope=pre_rope)
    result = analysed(root)
    for name in DRIFT.names[3:-1]:
        before = "_unrotated" in name
        known = not math.isnan(result.drift[name][0])
        assert known == (before == pre_rope), name
        assert (name in result.missing_drift) != known
    assert set(result.missing_drift.values()) == {"the angles depend on the text"}


def test_few_texts_and_constant_vectors_have_reasons(tmp_path: Path) -> None:
    few = [content(kind, texts=3) for kind in "qk"]
    result = analysed(write_dump(tmp_path / "few", few[0], few[1], NO_ROPE))
    assert not math.isnan(result.drift["q_drift_r"][0])
    assert result.missing_drift["q_drift_r_se"] == FEW_GROUPS
    one = [content(kind, texts=1) for kind in "qk"]
    result = analysed(write_dump(tmp_path / "one", one[0], one[1], NO_ROPE))
    assert result.missing_drift["q_drift_r"] == ONE_GROUP
    constant = np.full((TEXTS * LENGTH, WIDTH), 0.7)
    result = analysed(write_dump(tmp_path / "same", constant, content("k"), NO_ROPE))
    assert result.missing_drift["q_drift_r"] == NO_VARIANCE
    assert result.missing_drift["q_pc0_share"] == NO_VARIANCE
    assert result.drift["q_logit_drift"][0] == pytest.approx(0.0, abs=1e-6)
    assert not math.isnan(result.drift["k_drift_r"][0])


def test_without_errors_or_texts_there_is_no_row(tmp_path: Path) -> None:
    root = with_rope(tmp_path, content("q"), content("k"))
    for settings in ({"error_bars": False, "counting": False}, {"single_example": True}):
        result = analysed(root, points_per_head=5, **settings)
        assert result.drift == result.points == {}


def test_points_are_rows_on_the_two_components(tmp_path: Path) -> None:
    """Positions and coordinates of each point are those of a captured row."""
    q, k = content("q"), content("k")
    root = with_rope(tmp_path, q, k)
    result = analysed(root, points_per_head=100)
    assert (*IDS, *result.points) == POINTS.names
    kinds = np.array(result.points["kind"])
    for kind, X in (("q", q), ("k", k)):
        X = turned(X, RECORD, angle=0.0)  # with the factor of the model
        vectors = np.linalg.eigh(np.cov(X.T))[1][:, ::-1][:, :2]
        t = np.arange(len(X)) % LENGTH
        vectors = vectors * np.sign([np.corrcoef(X @ one, t)[0, 1] for one in vectors.T])
        places = (X - X.mean(axis=0)) @ vectors
        own = np.flatnonzero(kinds == kind)
        assert len(own) == 100
        for one in own:
            point = [result.points[name][one] for name in ("pc0", "pc1")]
            rows = places[t == result.points["position"][one]]
            assert np.abs(rows - point).max(axis=1).min() < 1e-3


def test_points_are_drawn_by_a_seed_and_change_no_other_value(tmp_path: Path) -> None:
    root = with_rope(tmp_path, content("q"), content("k"))
    without, few, more = (analysed(root, points_per_head=count) for count in (0, 20, 50))
    assert without.points == {}
    assert without.metrics == pytest.approx(more.metrics, nan_ok=True)
    assert without.drift == more.drift
    assert few.points["pc0"][:20] == more.points["pc0"][:20]
    other = analysed(root, points_per_head=20, seed=1)
    assert other.points["pc0"] != few.points["pc0"]
