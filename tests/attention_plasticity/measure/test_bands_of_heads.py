"""Rotary bands of a head: kinds of RoPE, scales, windows, and where they are not known."""

from __future__ import annotations

import cmath
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from attention_plasticity import make_config, open_dump
from attention_plasticity.head_analysis import analyze_group
from attention_plasticity.measure.bands import CONSTANT, FEW_DISTANCES, NO_EARLIER_KEY, NO_ROPE
from attention_plasticity.measure.found import FEW_GROUPS
from attention_plasticity.measure.result import HeadResult
from attention_plasticity.metrics import BANDS, IDS, KERNEL
from attention_plasticity.read.layer import BIASED, NO_TEXTS, SELECTIVE, SINGLE_EXAMPLE
from head_pairs import analyze
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.rotary import RotaryRecord
from qk_dump.writer import write_head
from reference import write_rows
from reference_checks import assert_reasons_are_complete
from reference_groups import Expected, of_rows

SCALE = 0.4
RECORDS = {
    "halves": RotaryRecord((1.0, 0.3, 0.01)),
    "interleaved": RotaryRecord((1.0, 0.3, 0.01), pairing="interleaved"),
    "partial": RotaryRecord((0.7, 0.02), start=2),
    "partial interleaved": RotaryRecord((0.7, 0.02), start=1, pairing="interleaved"),
    "scaled": RotaryRecord((0.25, 0.075, 0.0025), scaling=1.25),
}


def pairs_of(record: RotaryRecord) -> list[tuple[int, int]]:
    """The two dimensions of every band, written down from the definition of the record."""
    m = len(record.frequencies)
    if record.pairing == "interleaved":
        return [(record.start + 2 * f, record.start + 2 * f + 1) for f in range(m)]
    return [(record.start + f, record.start + m + f) for f in range(m)]


def with_rope(X: np.ndarray, position: np.ndarray, record: RotaryRecord) -> np.ndarray:
    """What a model does: cos and sin, both times the factor `scaling`, number by number."""
    found = X.copy()
    for (a, b), frequency in zip(pairs_of(record), record.frequencies, strict=True):
        for row, p in enumerate(position):
            turn = record.scaling * cmath.exp(1j * frequency * float(p))
            number = complex(X[row, a], X[row, b]) * turn
            found[row, a], found[row, b] = number.real, number.imag
    return found


def entry(record: RotaryRecord | None, **facts: Any) -> dict[str, Any]:
    layer = {"layer": 0, "type": "full_attention", "scale": SCALE, "rope": record is not None}
    return layer | ({} if record is None else {"rotary": record.to_json()}) | facts


def content(kind: str, n: int, texts: np.ndarray, spread: float) -> np.ndarray:
    rng = np.random.default_rng({"q": 1, "k": 2}[kind])
    mean, of_text = rng.standard_normal(6), 0.3 * rng.standard_normal((64, 6))
    return mean + spread * (of_text[texts] + rng.standard_normal((n, 6)))


def write_dump(
    root: Path,
    record: RotaryRecord | None,
    *,
    pre_rope: bool = False,
    texts: int = 6,
    length: int = 48,
    spread: float = 1.0,
    window: int | None = None,
    **facts: Any,
) -> Path:
    """Two query heads with the same queries, and a key head, of all tokens of some texts."""
    text, position = np.divmod(np.arange(texts * length), length)
    for name, kind in ((0, "q"), (1, "q"), (0, "k")):
        vectors = content(kind, len(text), text, spread)
        if record is not None and not pre_rope:
            vectors = with_rope(vectors, position, record)
        fields = {"bucket": position // 16, "example_id": text, "position": position}
        head = HeadId(0, name, kind)  # type: ignore[arg-type]
        write_head(root, head, vectors=vectors.astype(np.float32), sliding_window=window, **fields)
    known = {"num_layers": 1, "num_q_heads": 2, "num_k_heads": 1, "pre_rope": pre_rope}
    known |= {"bucket_type": "uniform", "min_bucket_size": 16, "sampler": {"type": "all"}}
    write_manifest(root, DumpManifest(**known, layers=[entry(record, window=window, **facts)]))
    return root


def why(result: HeadResult) -> str | None:
    """Why R² of the kernel is not known."""
    return result.missing["head_metrics"].get("kernel_R2")


@pytest.mark.parametrize("pre_rope", [False, True], ids=["after RoPE", "before RoPE"])
@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_lengths_and_concentrations_are_those_before_rope(
    tmp_path: Path, record: RotaryRecord, pre_rope: bool
) -> None:
    """From the content of the vectors, number by number, and again without each text."""
    result = analyze(write_dump(tmp_path, record, length=24, pre_rope=pre_rope))
    assert (*IDS, *result.tables["bands"]) == BANDS.names
    assert (*IDS, *result.tables["kernel"]) == KERNEL.names
    bands, text = result.tables["bands"], np.arange(6 * 24) // 24
    q, k = (content(kind, len(text), text, 1.0) for kind in "qk")
    for f, (a, b) in enumerate(pairs_of(record)):
        q_band, k_band = (record.scaling * (X[:, a] + 1j * X[:, b]) for X in (q, k))
        kernel = SCALE * q_band.mean() * k_band.mean().conjugate()
        assert bands["frequency"][f] == record.frequencies[f]
        assert bands["wavelength"][f] == pytest.approx(2 * math.pi / record.frequencies[f])
        assert bands["kernel_amplitude"][f] == pytest.approx(abs(kernel), rel=1e-4)
        assert bands["kernel_phase"][f] == pytest.approx(cmath.phase(kernel), abs=1e-4)
        expected: dict[str, Expected] = {
            "norm_product": of_rows(
                lambda m, q=q_band, k=k_band: SCALE * abs(q[m]).mean() * abs(k[m]).mean(), text
            ),
            "q_concentration": of_rows(
                lambda m, x=q_band: abs(x[m].mean()) / abs(x[m]).mean(), text
            ),
            "k_concentration": of_rows(
                lambda m, x=k_band: abs(x[m].mean()) / abs(x[m]).mean(), text
            ),
        }
        for name, right in expected.items():
            found = bands[name][f], bands[f"{name}_se"][f]
            assert found == pytest.approx(right[:2], rel=2e-4, abs=1e-5), name
    assert_reasons_are_complete(result)


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_head_without_content_is_its_kernel(tmp_path: Path, record: RotaryRecord) -> None:
    for pre_rope in (False, True):
        root = write_dump(tmp_path / str(pre_rope), record, pre_rope=pre_rope, spread=0.0)
        result = analyze(root)
        assert result.metrics["kernel_R2"] == pytest.approx(1.0, abs=1e-6)
        assert result.tables["bands"]["q_concentration"] == pytest.approx(
            [1.0] * len(record.frequencies)
        )
        assert result.tables["kernel"]["kernel"] == pytest.approx(
            result.tables["kernel"]["mean_logit"], abs=1e-4
        )


def test_before_and_after_rope_agree(tmp_path: Path) -> None:
    for name, record in RECORDS.items():
        after = analyze(write_dump(tmp_path / f"{name} after", record))
        before = analyze(write_dump(tmp_path / f"{name} before", record, pre_rope=True))
        for column in after.tables["bands"]:
            assert before.tables["bands"][column] == pytest.approx(
                after.tables["bands"][column], rel=1e-3, abs=1e-5
            )
        for column in ("kernel_R2", "kernel_R2_se"):
            assert before.metrics[column] == pytest.approx(after.metrics[column], rel=1e-3)


def test_query_heads_of_a_group_have_the_same_pairs(tmp_path: Path) -> None:
    """In a group or alone: the result of a head does not depend on the others."""
    root = write_dump(tmp_path, RECORDS["halves"], length=90)
    together = list(analyze_group(open_dump(root), 0, 0, [0, 1], make_config()))
    alone = analyze(root, 1)
    for result in together:
        assert isinstance(result, HeadResult)
        assert result.tables["bands"] == alone.tables["bands"]  # both heads have the same queries
        assert result.tables["kernel"] == alone.tables["kernel"]


@pytest.mark.parametrize(("kind", "last"), [("sliding_attention", 19), ("chunked_attention", 19)])
def test_pairs_are_inside_the_window(tmp_path: Path, kind: str, last: int) -> None:
    root = write_dump(tmp_path, RECORDS["halves"], window=20, type=kind)
    found = analyze(root).tables["kernel"]
    assert found["first_distance"][-1] <= last < found["last_distance"][-1] + 1
    expected = 6 * sum(
        (position % 20 if kind == "chunked_attention" else min(position, 19))
        for position in range(48)
    )
    assert sum(found["n_pairs"]) == expected  # few enough, so that all are used


@pytest.mark.parametrize("factor", [1e-9, 3.0, 1e9])
def test_the_scale_of_queries_and_keys(tmp_path: Path, factor: float) -> None:
    root = write_dump(tmp_path / "dump", RECORDS["halves"])
    expected = analyze(root)
    for name in ("l00h00q", "l00h00k"):
        table = pq.read_table(root / name / "data.parquet")
        vectors = factor * np.array(table["vector"].to_pylist(), np.float64)
        ids = {key: table[key].to_numpy() for key in ("bucket", "example_id", "position")}
        write_rows(root, name, vectors=vectors, **ids)
    scaled = analyze(root)
    for name in ("variance_share", "q_concentration", "k_concentration_se", "variance_share_se"):
        assert scaled.tables["bands"][name] == pytest.approx(
            expected.tables["bands"][name], rel=1e-3, abs=1e-6
        )
    for name in ("kernel_R2", "kernel_R2_se"):
        assert scaled.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-3)
    if factor == 3.0:
        for name in ("norm_product", "norm_product_se", "kernel_amplitude"):
            logits = [9.0 * value for value in expected.tables["bands"][name]]
            assert scaled.tables["bands"][name] == pytest.approx(logits, rel=1e-4)


def test_logits_are_those_before_a_soft_cap(tmp_path: Path) -> None:
    plain = analyze(write_dump(tmp_path / "plain", RECORDS["halves"]))
    capped = analyze(write_dump(tmp_path / "capped", RECORDS["halves"], softcap=0.5))
    assert capped.tables["bands"] == plain.tables["bands"]
    assert capped.tables["kernel"] == plain.tables["kernel"]


def test_without_rope_there_are_no_bands(tmp_path: Path) -> None:
    result = analyze(write_dump(tmp_path, None))
    assert not {"bands", "kernel"} & set(result.tables)
    assert why(result) == NO_ROPE


def test_without_a_record_the_reason_has_the_command(tmp_path: Path) -> None:
    root = write_dump(tmp_path, RECORDS["halves"])
    write_manifest(root, DumpManifest(model="owner/tiny", layers=[{"layer": 0, "rope": True}]))
    result = analyze(root)
    assert not {"bands", "kernel"} & set(result.tables)
    assert "attention-plasticity add-rotary DUMP" in why(result)


@pytest.mark.parametrize(("fact", "reason"), [("biased", BIASED), ("selective", SELECTIVE)])
def test_layers_whose_logits_are_not_known(tmp_path: Path, fact: str, reason: str) -> None:
    """Lengths and concentrations do not need logits."""
    result = analyze(write_dump(tmp_path, RECORDS["halves"], **{fact: True}))
    assert why(result) == reason
    assert "kernel" not in result.tables
    assert np.isnan(result.tables["bands"]["variance_share"]).all()
    assert not np.isnan(result.tables["bands"]["q_concentration"]).any()


def test_one_sequence(tmp_path: Path) -> None:
    """The pairs of a single text are known; errors are not."""
    root = write_dump(tmp_path, RECORDS["halves"], texts=1, length=200)
    result = analyze(root, single_example=True)
    assert not math.isnan(result.metrics["kernel_R2"])
    assert result.missing["head_metrics"]["kernel_R2_se"] == SINGLE_EXAMPLE
    assert sum(result.tables["bands"]["variance_share"]) == pytest.approx(1.0)
    assert np.isnan(result.tables["bands"]["k_concentration_se"]).all()
    assert np.isnan(result.tables["kernel"]["mean_logit_se"]).all()


def test_unknown_texts(tmp_path: Path) -> None:
    root = write_dump(tmp_path, RECORDS["halves"])
    table = pq.read_table(root / "l00h00q" / "data.parquet").drop_columns(["example_id"])
    pq.write_table(table.replace_schema_metadata(None), root / "l00h00q" / "data.parquet")
    result = analyze(root)
    assert why(result) == NO_TEXTS
    assert "kernel" not in result.tables
    assert not np.isnan(result.tables["bands"]["k_concentration"]).any()


def test_three_texts_have_values_without_errors(tmp_path: Path) -> None:
    result = analyze(write_dump(tmp_path, RECORDS["halves"], texts=3))
    assert math.isfinite(result.metrics["kernel_R2"])
    assert result.missing["head_metrics"]["kernel_R2_se"] == FEW_GROUPS
    for table, name in (
        ("bands", "variance_share"),
        ("bands", "norm_product"),
        ("kernel", "mean_logit"),
    ):
        assert np.isfinite(result.tables[table][name]).all()
        assert np.isnan(result.tables[table][f"{name}_se"]).all()


def test_heads_without_a_kernel(tmp_path: Path) -> None:
    short = analyze(write_dump(tmp_path / "short", RECORDS["halves"], texts=2, length=17))
    assert why(short) == FEW_DISTANCES
    still = RotaryRecord((0.0, 0.0, 0.0))
    constant = analyze(write_dump(tmp_path / "constant", still, spread=0.0))
    assert why(constant) == CONSTANT
    assert np.isnan(constant.tables["bands"]["wavelength"]).all()
    assert np.isnan(constant.tables["bands"]["variance_share"]).all()
    root = write_dump(tmp_path / "later", RECORDS["halves"])
    table = pq.read_table(root / "l00h00k" / "data.parquet")
    moved = {
        "position": table["position"].to_numpy() + 48,
        "bucket": table["bucket"].to_numpy() + 3,
    }
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    texts = table["example_id"].to_numpy()
    write_rows(root, "l00h00k", vectors=vectors, example_id=texts, **moved)
    assert why(analyze(root)) == NO_EARLIER_KEY
