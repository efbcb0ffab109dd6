"""Rotary bands of a head: kinds of RoPE, scales, windows, and where they are not known."""

from __future__ import annotations

import cmath
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_plasticity import analyze_head, make_config, open_dump
from attention_plasticity.head.bands import CONSTANT, FEW_DISTANCES, NO_EARLIER_KEY, NO_ROPE
from attention_plasticity.head.layer import BIASED, NO_TEXTS, SELECTIVE
from attention_plasticity.head.result import HeadResult
from attention_plasticity.head_analysis import analyze_group
from attention_plasticity.metrics import BANDS, GROUP_COLUMNS, IDS, KERNEL
from attention_plasticity.numeric.bands import UNTURNED, band_eighths
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.rotary import RotaryRecord
from qk_dump.writer import write_head
from reference import write_rows

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


def analysed(root: Path, q_head: int = 0, **settings: Any) -> HeadResult:
    return analyze_head(0, q_head, 0, open_dump(root), make_config(**settings))


@pytest.mark.parametrize("pre_rope", [False, True], ids=["after RoPE", "before RoPE"])
@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_bands_equal_plain_counts(tmp_path: Path, record: RotaryRecord, pre_rope: bool) -> None:
    """Everything from the vectors before RoPE, number by number; logits of all pairs."""
    texts, length = 4, 16
    options = {"texts": texts, "length": length, "pre_rope": pre_rope}
    result = analysed(write_dump(tmp_path, record, **options))
    assert (*IDS, *result.bands) == BANDS.names
    assert (*IDS, *result.kernel) == KERNEL.names
    text, position = np.divmod(np.arange(texts * length), length)
    q, k = (content(kind, len(text), text, 1.0) for kind in "qk")
    pairs = pairs_of(record)
    dimensions = [one for pair in pairs for one in pair]
    others = [one for one in range(6) if one not in dimensions]
    for X in (q, k):
        X[:, dimensions] *= record.scaling
    turned = [with_rope(X, position, record) / record.scaling for X in (q, k)]
    for X, Y in zip(turned, (q, k), strict=True):
        X[:, others] = Y[:, others]
    logits, distance = [], []
    for i, j in np.ndindex(len(text), len(text)):
        if text[i] == text[j] and position[j] < position[i]:
            product = SCALE * turned[0][i] * turned[1][j]
            logits.append([*(product[a] + product[b] for a, b in pairs), product[others].sum()])
            distance.append(position[i] - position[j])
    table, at = np.array(logits), np.array(distance)
    covariance = np.cov(table.T, ddof=0)
    shares = covariance.sum(axis=0) / covariance.sum()
    lines = np.zeros(len(at))
    for f, (a, b) in enumerate(pairs):
        q_band, k_band = q[:, a] + 1j * q[:, b], k[:, a] + 1j * k[:, b]
        kernel = SCALE * q_band.mean() * k_band.mean().conjugate()
        lines += (kernel * np.exp(1j * record.frequencies[f] * at)).real
        expected = {
            "band": f,
            "frequency": record.frequencies[f],
            "wavelength": 2 * math.pi / record.frequencies[f],
            "norm_product": SCALE * abs(q_band).mean() * abs(k_band).mean(),
            "variance_share": shares[f],
            "q_concentration": abs(q_band.mean()) / abs(q_band).mean(),
            "k_concentration": abs(k_band.mean()) / abs(k_band).mean(),
            "kernel_amplitude": abs(kernel),
            "kernel_phase": cmath.phase(kernel),
        }
        for name, value in expected.items():
            assert result.bands[name][f] == pytest.approx(value, rel=2e-4, abs=1e-5), name
    lines += SCALE * q[:, others].mean(axis=0) @ k[:, others].mean(axis=0)
    assert sum(result.kernel["n_pairs"]) == len(at)
    for place, (first, last) in enumerate(
        zip(result.kernel["first_distance"], result.kernel["last_distance"], strict=True)
    ):
        own = (at >= first) & (at <= last)
        assert result.kernel["n_pairs"][place] == own.sum()
        assert result.kernel["distance"][place] == pytest.approx(at[own].mean())
        mean = table.sum(axis=1)[own].mean()
        assert result.kernel["mean_logit"][place] == pytest.approx(mean, rel=1e-4, abs=1e-5)
        assert result.kernel["kernel"][place] == pytest.approx(lines[own].mean(), abs=1e-4)
    assert not np.isnan(result.bands["variance_share_se"]).any()
    assert not np.isnan(result.bands["k_concentration_se"]).any()
    by_eighth = dict(rows_of(result, "band_share"))
    expected_shares = {8 * f // len(pairs): shares[f] for f in range(len(pairs))}
    assert by_eighth.keys() == expected_shares.keys()
    for number, share in expected_shares.items():
        assert by_eighth[number]["value"] == pytest.approx(share, rel=2e-4, abs=1e-5)
    unturned = [row["value"] for _, row in rows_of(result, "unturned_share")]
    assert unturned == pytest.approx([shares[-1]] if others else [], rel=2e-4, abs=1e-5)


def rows_of(result: HeadResult, quantity: str) -> list[tuple[float, dict[str, Any]]]:
    """The rows of a quantity in the table of influences, with their numbers."""
    table = result.influences
    places = [place for place, name in enumerate(table["quantity"]) if name == quantity]
    rows = [{name: column[place] for name, column in table.items()} for place in places]
    return [(row["q_bucket"], row) for row in rows]


def test_influences_on_shares_have_the_errors_of_single_bands(tmp_path: Path) -> None:
    """Each band is an eighth of its own here; all shares sum to 1, so influences sum to 0."""
    result = analysed(write_dump(tmp_path / "several", RECORDS["partial"]))
    rows = rows_of(result, "band_share")
    found = np.array([[row[name] for name in GROUP_COLUMNS] for _, row in rows])  # (eighths, 16)
    errors = result.bands["variance_share_se"]
    assert np.sqrt((found**2).sum(axis=1)) == pytest.approx(errors)
    assert [row["n_groups"] for _, row in rows] == [6, 6]
    [(_, unturned)] = rows_of(result, "unturned_share")
    others = np.array([unturned[name] for name in GROUP_COLUMNS])  # (16,)
    assert found.sum(axis=0) + others == pytest.approx(np.zeros(16), abs=1e-12)
    assert sum(row["value"] for _, row in rows) + unturned["value"] == pytest.approx(1.0)
    without = analysed(write_dump(tmp_path / "one", RECORDS["partial"]), error_bars=False)
    assert rows_of(without, "band_share") == []


@given(st.integers(1, 300), st.integers(0, 2))
def test_eighths_have_equal_numbers_of_neighbouring_bands(m: int, unturned: int) -> None:
    frequencies = np.geomspace(1.0, 1e-6, m)
    found = band_eighths(frequencies).tolist()
    assert found == sorted(found)
    sizes = [found.count(number) for number in range(8)]
    assert max(sizes) - min(sizes) <= 1
    frequencies[m - unturned :] = 0.0
    changed = band_eighths(frequencies).tolist()
    assert changed == [*found[: m - unturned], *[UNTURNED] * min(unturned, m)]


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_head_without_content_is_its_kernel(tmp_path: Path, record: RotaryRecord) -> None:
    for pre_rope in (False, True):
        root = write_dump(tmp_path / str(pre_rope), record, pre_rope=pre_rope, spread=0.0)
        result = analysed(root)
        assert result.metrics["kernel_R2"] == pytest.approx(1.0, abs=1e-6)
        assert result.bands["q_concentration"] == pytest.approx([1.0] * len(record.frequencies))
        assert result.kernel["kernel"] == pytest.approx(result.kernel["mean_logit"], abs=1e-4)


def test_before_and_after_rope_agree(tmp_path: Path) -> None:
    for name, record in RECORDS.items():
        after = analysed(write_dump(tmp_path / f"{name} after", record))
        before = analysed(write_dump(tmp_path / f"{name} before", record, pre_rope=True))
        for column in after.bands:
            assert before.bands[column] == pytest.approx(after.bands[column], rel=1e-3, abs=1e-5)
        for column in ("kernel_R2", "kernel_R2_se"):
            assert before.metrics[column] == pytest.approx(after.metrics[column], rel=1e-3)


def test_query_heads_of_a_group_have_the_same_pairs(tmp_path: Path) -> None:
    """In a group or alone: the result of a head does not depend on the others."""
    root = write_dump(tmp_path, RECORDS["halves"], length=90)
    together = list(analyze_group(open_dump(root), 0, 0, [0, 1], make_config()))
    alone = analysed(root, 1)
    for result in together:
        assert isinstance(result, HeadResult)
        assert result.bands == alone.bands  # both heads have the same queries
        assert result.kernel == alone.kernel


@pytest.mark.parametrize(("kind", "last"), [("sliding_attention", 19), ("chunked_attention", 19)])
def test_pairs_are_inside_the_window(tmp_path: Path, kind: str, last: int) -> None:
    root = write_dump(tmp_path, RECORDS["halves"], window=20, type=kind)
    found = analysed(root).kernel
    assert found["first_distance"][-1] <= last < found["last_distance"][-1] + 1
    expected = 6 * sum(
        (position % 20 if kind == "chunked_attention" else min(position, 19))
        for position in range(48)
    )
    assert sum(found["n_pairs"]) == expected  # few enough, so that all are used


@pytest.mark.parametrize("factor", [1e-250, 3.0, 1e250])
def test_the_scale_of_queries_and_keys(tmp_path: Path, factor: float) -> None:
    root = write_dump(tmp_path / "dump", RECORDS["halves"])
    expected = analysed(root)
    for name in ("l00h00q", "l00h00k"):
        table = pq.read_table(root / name / "data.parquet")
        vectors = factor * np.array(table["vector"].to_pylist(), np.float64)
        ids = {key: table[key].to_numpy() for key in ("bucket", "example_id", "position")}
        write_rows(root, name, vectors=vectors, **ids)
    scaled = analysed(root)
    for name in ("variance_share", "q_concentration", "k_concentration_se", "variance_share_se"):
        assert scaled.bands[name] == pytest.approx(expected.bands[name], rel=1e-3, abs=1e-6)
    for name in ("kernel_R2", "kernel_R2_se"):
        assert scaled.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-3)
    if factor == 3.0:
        for name in ("norm_product", "norm_product_se", "kernel_amplitude"):
            logits = [9.0 * value for value in expected.bands[name]]
            assert scaled.bands[name] == pytest.approx(logits, rel=1e-4)


def test_logits_are_those_before_a_soft_cap(tmp_path: Path) -> None:
    plain = analysed(write_dump(tmp_path / "plain", RECORDS["halves"]))
    capped = analysed(write_dump(tmp_path / "capped", RECORDS["halves"], softcap=0.5))
    assert capped.bands == plain.bands
    assert capped.kernel == plain.kernel


def test_without_rope_there_are_no_bands(tmp_path: Path) -> None:
    result = analysed(write_dump(tmp_path, None))
    assert result.bands == result.kernel == {}
    assert result.missing["kernel_R2"] == result.missing["kernel_R2_se"] == NO_ROPE


def test_without_a_record_the_reason_has_the_command(tmp_path: Path) -> None:
    root = write_dump(tmp_path, RECORDS["halves"])
    write_manifest(root, DumpManifest(model="owner/tiny", layers=[{"layer": 0, "rope": True}]))
    result = analysed(root)
    assert result.bands == result.kernel == {}
    assert "attention-plasticity add-rotary DUMP" in result.missing["kernel_R2"]


@pytest.mark.parametrize(("fact", "why"), [("biased", BIASED), ("selective", SELECTIVE)])
def test_layers_whose_logits_are_not_known(tmp_path: Path, fact: str, why: str) -> None:
    """Lengths and concentrations do not need logits."""
    result = analysed(write_dump(tmp_path, RECORDS["halves"], **{fact: True}))
    assert result.missing["kernel_R2"] == why
    assert result.kernel == {}
    assert np.isnan(result.bands["variance_share"]).all()
    assert not np.isnan(result.bands["q_concentration"]).any()


def test_one_sequence(tmp_path: Path) -> None:
    """The pairs of a single text are known; errors are not."""
    root = write_dump(tmp_path, RECORDS["halves"], texts=1, length=200)
    result = analysed(root, single_example=True)
    assert not math.isnan(result.metrics["kernel_R2"])
    assert math.isnan(result.metrics["kernel_R2_se"])
    assert sum(result.bands["variance_share"]) == pytest.approx(1.0)
    assert np.isnan(result.bands["k_concentration_se"]).all()
    assert np.isnan(result.kernel["mean_logit_se"]).all()


def test_unknown_texts(tmp_path: Path) -> None:
    root = write_dump(tmp_path, RECORDS["halves"])
    table = pq.read_table(root / "l00h00q" / "data.parquet").drop_columns(["example_id"])
    pq.write_table(table.replace_schema_metadata(None), root / "l00h00q" / "data.parquet")
    result = analysed(root)
    assert result.missing["kernel_R2"] == NO_TEXTS
    assert result.kernel == {}
    assert not np.isnan(result.bands["k_concentration"]).any()


def test_heads_without_a_kernel(tmp_path: Path) -> None:
    short = analysed(write_dump(tmp_path / "short", RECORDS["halves"], texts=2, length=17))
    assert short.missing["kernel_R2"] == FEW_DISTANCES
    still = RotaryRecord((0.0, 0.0, 0.0))
    constant = analysed(write_dump(tmp_path / "constant", still, spread=0.0))
    assert constant.missing["kernel_R2"] == CONSTANT
    assert np.isnan(constant.bands["wavelength"]).all()
    assert np.isnan(constant.bands["variance_share"]).all()
    root = write_dump(tmp_path / "later", RECORDS["halves"])
    table = pq.read_table(root / "l00h00k" / "data.parquet")
    moved = {
        "position": table["position"].to_numpy() + 48,
        "bucket": table["bucket"].to_numpy() + 3,
    }
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    texts = table["example_id"].to_numpy()
    write_rows(root, "l00h00k", vectors=vectors, example_id=texts, **moved)
    assert analysed(root).missing["kernel_R2"] == NO_EARLIER_KEY
