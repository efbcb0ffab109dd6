"""Rotary bands of a head: kinds of RoPE, scales, windows, and where they are not known."""

import cmath
import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from attention_plasticity.measure.bands import CONSTANT, FEW_DISTANCES, NO_EARLIER_KEY, NO_ROPE
from attention_plasticity.metrics import BANDS, IDS, KERNEL
from attention_plasticity.read.layer import BIASED, NO_TEXTS, SELECTIVE
from head_pairs import SCALE, analyze, write_whole_texts
from qk_dump.layers import RotaryRecord
from qk_dump.manifest import DumpManifest, write_manifest
from reference_checks import assert_reasons_are_complete
from reference_groups import of_rows, with_rope

HALVES = RotaryRecord((1.0, 0.3, 0.01))
RECORDS = {
    "halves": HALVES,
    "interleaved": RotaryRecord((1.0, 0.3, 0.01), pairing="interleaved"),
    "partial": RotaryRecord((0.7, 0.02), start=2),
    "partial interleaved": RotaryRecord((0.7, 0.02), start=1, pairing="interleaved"),
    "scaled": RotaryRecord((0.25, 0.075, 0.0025), scaling=1.25),
}
ROWS = ("variance_share", "q_concentration", "k_concentration_se", "variance_share_se")


def content(kind, texts, length, spread=1.0):
    """Vectors before RoPE, of all tokens."""
    rng = np.random.default_rng({"q": 1, "k": 2}[kind])
    mean, of_text = rng.standard_normal(6), 0.3 * rng.standard_normal((64, 6))
    noise = of_text[np.arange(texts * length) // length] + rng.standard_normal((texts * length, 6))
    return np.asarray(mean + spread * noise)


def write_dump(
    root, record=HALVES, texts=6, length=48, *, pre_rope=False, spread=1.0, factor=1.0, **facts
):
    heads = [factor * content(kind, texts, length, spread) for kind in "qk"]
    layer = {"rope": record is not None, **facts}
    if record is not None:
        layer["rotary"] = record.to_json()
        position = np.arange(texts * length) % length
        if not pre_rope:
            heads = [with_rope(X, position, layer["rotary"]) for X in heads]
    return write_whole_texts(root, heads[0], heads[1], layer, length, pre_rope=pre_rope)


@pytest.mark.parametrize("pre_rope", [False, True], ids=["after RoPE", "before RoPE"])
@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_lengths_and_concentrations_are_those_before_rope(tmp_path, record, pre_rope):
    """From the content of the vectors, number by number, and again without each text."""
    result = analyze(write_dump(tmp_path, record, length=24, pre_rope=pre_rope))
    assert (*IDS, *result.tables["bands"]) == BANDS.names
    assert (*IDS, *result.tables["kernel"]) == KERNEL.names
    bands, text = result.tables["bands"], np.arange(6 * 24) // 24
    q, k = (content(kind, 6, 24) for kind in "qk")
    m, start = len(record.frequencies), record.start
    for f in range(m):
        a, b = start + f, start + m + f
        if record.pairing == "interleaved":
            a, b = start + 2 * f, start + 2 * f + 1
        q_band, k_band = (record.scaling * (X[:, a] + 1j * X[:, b]) for X in (q, k))
        kernel = SCALE * q_band.mean() * k_band.mean().conjugate()
        assert bands["frequency"][f] == record.frequencies[f]
        assert bands["wavelength"][f] == pytest.approx(2 * math.pi / record.frequencies[f])
        assert bands["kernel_amplitude"][f] == pytest.approx(abs(kernel), rel=1e-4)
        assert bands["kernel_phase"][f] == pytest.approx(cmath.phase(kernel), abs=1e-4)

        def concentration(used, x):
            return float(abs(x[used].mean()) / abs(x[used]).mean())

        def size(used, q=q_band, k=k_band):
            return float(SCALE * abs(q[used]).mean() * abs(k[used]).mean())

        expected = {
            "norm_product": of_rows(size, text),
            "q_concentration": of_rows(lambda used, x=q_band: concentration(used, x), text),
            "k_concentration": of_rows(lambda used, x=k_band: concentration(used, x), text),
        }
        for name, right in expected.items():
            found = bands[name][f], bands[f"{name}_se"][f]
            assert found == pytest.approx(right[:2], rel=2e-4, abs=1e-5), name
    assert_reasons_are_complete(result)


def test_pairs_are_inside_the_window(tmp_path):
    found = analyze(write_dump(tmp_path, texts=2, window=20, type="sliding_attention"))
    kernel = found.tables["kernel"]
    assert kernel["first_distance"][-1] <= 19 <= kernel["last_distance"][-1]
    assert sum(kernel["n_pairs"]) == 2 * sum(min(p, 19) for p in range(48))  # all are used


@pytest.mark.parametrize("factor", [1e-9, 3.0, 1e9])
def test_scale_and_soft_cap(tmp_path, factor):
    """Shares do not depend on the scale; logits are those before a soft-cap."""
    plain = analyze(write_dump(tmp_path / "plain"))
    other = analyze(write_dump(tmp_path / "other", factor=factor, softcap=0.5))
    bands, expected = (result.tables["bands"] for result in (other, plain))
    for name in ROWS:
        assert bands[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-6)
    for name in ("kernel_R2", "kernel_R2_se"):
        assert other.metrics[name] == pytest.approx(plain.metrics[name], rel=1e-3)
    for name in ("norm_product", "norm_product_se", "kernel_amplitude"):
        logits = [factor**2 * value for value in expected[name]]
        assert bands[name] == pytest.approx(logits, rel=1e-4)


def without_texts(root):
    file = root / "l00h00q" / "data.parquet"
    table = pq.read_table(file).drop_columns(["example_id"])
    pq.write_table(table.replace_schema_metadata(None), file)


def without_record(root):
    write_manifest(root, DumpManifest(model="owner/tiny", layers=[{"layer": 0, "rope": True}]))


def keys_at_the_end(root):
    for kind, kept in (("q", range(24)), ("k", range(24, 48))):
        file = root / f"l00h00{kind}" / "data.parquet"
        table = pq.read_table(file)
        pq.write_table(table.filter(np.isin(table["position"], kept)), file)


STILL = RotaryRecord((0.0, 0.0, 0.0))
REASONS = {
    "no RoPE": ({"record": None}, None, set(), NO_ROPE),
    "no record": ({}, without_record, set(), "attention-plasticity add-rotary DUMP"),
    "biased": ({"biased": True}, None, {"bands"}, BIASED),
    "selective": ({"selective": True}, None, {"bands"}, SELECTIVE),
    "no texts": ({}, without_texts, {"bands"}, NO_TEXTS),
    "no earlier key": ({}, keys_at_the_end, {"bands"}, NO_EARLIER_KEY),
    "short": ({"texts": 2, "length": 17}, None, {"bands", "kernel"}, FEW_DISTANCES),
    "constant": ({"record": STILL, "spread": 0.0}, None, {"bands", "kernel"}, CONSTANT),
}


@pytest.mark.parametrize(("how", "change", "tables", "reason"), REASONS.values(), ids=REASONS)
def test_heads_without_a_kernel_have_a_reason(tmp_path, how, change, tables, reason):
    """Lengths and concentrations need neither logits nor texts."""
    root = write_dump(tmp_path, **how)
    if change is not None:
        change(root)
    result = analyze(root)
    assert reason in result.missing["head_metrics"]["kernel_R2"]
    assert {"bands", "kernel"} & set(result.tables) == tables
    if "kernel" not in tables and tables:
        assert np.isnan(result.tables["bands"]["variance_share"]).all()
        assert not np.isnan(result.tables["bands"]["k_concentration"]).any()
    assert_reasons_are_complete(result)
