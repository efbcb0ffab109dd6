"""Position in queries and keys, before RoPE and as they enter the attention: plain refits, laws."""

import math

import numpy as np
import pytest

from attention_plasticity import make_config
from attention_plasticity.measure.found import FEW_GROUPS
from attention_plasticity.metrics import DRIFT, IDS, UNROTATED
from head_pairs import SCALE, analyze, write_whole_texts
from helpers.attention_dumps import make_attention_dump
from qk_dump.layers import RotaryRecord
from reference import read_rows
from reference_checks import assert_quantity, assert_reasons_are_complete
from reference_groups import layer_facts, of_rows, tokens_of, turned, with_rope

WIDTH, TEXTS, LENGTH = 6, 8, 48
RECORD = RotaryRecord((0.5, 0.03), start=1, scaling=1.25)
RECORDS = {
    "halves": RotaryRecord((1.0, 0.3, 0.01)),
    "interleaved": RotaryRecord((1.0, 0.3, 0.01), pairing="interleaved"),
    "partial": RotaryRecord((0.7, 0.02), start=2),
}
SLOPES = {"q": 0.03, "k": 0.0}
ROPE = {"rope": True, "rotary": RECORD.to_json()}
NO_ROPE = {"rope": False}
Frame = dict[str, np.ndarray]


def shares(t, X, w):
    """R² of a weighted regression, and the squared mean over the mean square, by dimensions."""
    left = total = 0.0
    root = np.sqrt(w)
    design = np.column_stack([np.ones(len(t)), t - t.mean()]) * root[:, None]
    for x in X.T:
        solution = np.linalg.lstsq(design, x * root, rcond=None)[0]
        left += math.fsum((x * root - design @ solution) ** 2)
        total += math.fsum(w * (x - np.average(x, weights=w)) ** 2)
    mean = np.average(X, axis=0, weights=w)
    return 1 - left / total, float(mean @ mean / np.average((X**2).sum(axis=1), weights=w))


@pytest.mark.parametrize("record", [*RECORDS.values(), None], ids=[*RECORDS, "no RoPE"])
@pytest.mark.parametrize("texts", [3, 6])
def test_shares_before_rope_equal_refits(tmp_path, record, texts):
    """Rows have the weights of a log-uniform sampler."""
    entry = {"layer": 0, "type": "full_attention", "scale": 0.4, "rope": record is not None}
    entry |= {} if record is None else {"rotary": record.to_json()}
    how = {"log_rate": 8.0, "bucket_size": 2, "length": 64, "texts": texts}
    root = make_attention_dump(tmp_path, manifest={"layers": [entry]}, **how)
    result = analyze(root)
    for name, kind, number in zip(UNROTATED, "qkq", (0, 0, 1), strict=True):
        rows = read_rows(root, f"l00h00{kind}", make_config())
        X = turned(rows.vectors, -rows.position, layer_facts(root, 0).get("rotary"))
        w = np.array([tokens_of(root, float(p), kind) for p in rows.position])

        def share(used, t=rows.position, X=X, w=w, number=number):
            return shares(t[used], X[used], w[used])[number]

        assert_quantity(result, name, of_rows(share, rows.example_id % 16), 2e-6)
    assert_reasons_are_complete(result)


def content(kind, *, slope=None, noise=1.0, texts=TEXTS):
    """Vectors before RoPE, of every token of every text, with a slope in dimension 0."""
    rng = np.random.default_rng({"q": 1, "k": 2}[kind])
    position = np.tile(np.arange(LENGTH), texts)
    X = 1.0 + noise * rng.standard_normal((texts * LENGTH, WIDTH))
    X[:, 0] += (SLOPES[kind] if slope is None else slope) * position
    return np.asarray(X)


def after_rope(X, *, angle=True):
    """Vectors after RoPE; without the angle, only with its factor."""
    return with_rope(X, angle * (np.arange(len(X)) % LENGTH), RECORD.to_json())


def drift_of(result):
    return {name: value for name, (value,) in result.tables["drift"].items()}


def check_frame(result, frame, ending):
    """Every column of one frame, from the rows of all tokens and without each text."""
    text, t = np.divmod(np.arange(len(frame["q"])), LENGTH)
    for kind, other in (("q", "k"), ("k", "q")):
        X, Y = frame[kind], frame[other]

        def change(used, X=X, Y=Y):
            slopes = [np.polyfit(t[used], X[used, one], 1)[0] for one in range(WIDTH)]
            return SCALE * LENGTH * float(slopes @ Y[used].mean(axis=0))

        assert_quantity(result, f"{kind}_logit_drift{ending}", of_rows(change, text), 1e-4, "drift")


@pytest.mark.parametrize("pre_rope", [False, True], ids=["after RoPE", "before RoPE"])
def test_both_frames_equal_refits(tmp_path, pre_rope):
    captured = {kind: content(kind) for kind in "qk"}
    after = {kind: after_rope(X) for kind, X in captured.items()}
    before = {kind: after_rope(X, angle=False) for kind, X in captured.items()}
    written = captured if pre_rope else after
    result = analyze(
        write_whole_texts(tmp_path, written["q"], written["k"], ROPE, LENGTH, pre_rope=pre_rope)
    )
    assert (*IDS, *result.tables["drift"]) == DRIFT.names
    check_frame(result, after, "")
    check_frame(result, before, "_unrotated")
    assert drift_of(result)["n_groups"] == TEXTS


@pytest.mark.parametrize("factor", [1e-9, 3.0, 1e9])
def test_scales_of_queries_and_keys_change_logits_only(tmp_path, factor):
    q, k = (after_rope(content(kind)) for kind in "qk")
    one = analyze(write_whole_texts(tmp_path / "one", q, k, ROPE, LENGTH))
    other = analyze(write_whole_texts(tmp_path / "other", factor * q, 0.5 * k, ROPE, LENGTH))
    moved = drift_of(other)
    for name, value in drift_of(one).items():
        by = 0.5 * factor if "logit" in name else 1.0
        assert moved[name] / by == pytest.approx(value, rel=1e-4, abs=1e-6), name
    for name in UNROTATED:
        for column in (name, f"{name}_se"):
            assert other.metrics[column] == pytest.approx(one.metrics[column], rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("pre_rope", [False, True], ids=["after RoPE", "before RoPE"])
def test_a_frame_that_is_not_known_has_a_reason(tmp_path, pre_rope):
    layer = {"rope": True, "rotary_problem": "the angles depend on the text"}
    root = write_whole_texts(tmp_path, content("q"), content("k"), layer, LENGTH, pre_rope=pre_rope)
    result = analyze(root)
    row, missing = drift_of(result), result.missing["drift"]
    for name in DRIFT.names[3:-1]:
        known = not math.isnan(row[name])
        assert known == (("_unrotated" in name) == pre_rope), name
        assert (name in missing) != known
    assert set(missing.values()) == {"the angles depend on the text"}
    for name in UNROTATED:
        assert math.isnan(result.metrics[name]) != pre_rope
    assert_reasons_are_complete(result)


def test_few_texts_and_constant_vectors_have_reasons(tmp_path):
    few, one = ([content(kind, texts=texts) for kind in "qk"] for texts in (3, 1))
    constant, still = np.full((TEXTS * LENGTH, WIDTH), 0.7), content("k")
    cases = {"few": (*few,), "one": (*one,), "same": (constant, still)}
    found = {}
    for name, (q, k) in cases.items():
        found[name] = analyze(write_whole_texts(tmp_path / name, q, k, NO_ROPE, LENGTH))
        assert_reasons_are_complete(found[name])
    for name in ("few", "one"):
        assert not math.isnan(drift_of(found[name])["q_logit_drift"])
        assert found[name].missing["drift"]["q_logit_drift_se"] == FEW_GROUPS
    for name in UNROTATED:
        assert found["few"].missing["head_metrics"][f"{name}_se"] == FEW_GROUPS
    assert drift_of(found["same"])["q_logit_drift"] == pytest.approx(0.0, abs=1e-6)
    assert not math.isnan(drift_of(found["same"])["k_logit_drift"])
