"""Keys drawn by attention in whole captures: files, columns, and what does not change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from qk_dump.attended_keys import read_attended
from qk_dump.layout import HeadId
from qk_dump.reader import HeadRows, read_head
from qk_dump.received_columns import RECEIVED_COLUMNS
from qk_dump.source import open_dump
from qk_sniffer.sampling.positions import PositionSampler
from sniffing import same_bytes, sniff, sniff_first, tables_of
from tiny_texts import save_texts

LENGTHS = [300, 0, 50, 400]
NUMBER = 20
FEW = {"capture__sampler__base_rate": 1.0, "capture__attended_keys": NUMBER}


@pytest.fixture(scope="module")
def whole(model: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dump = tmp_path_factory.mktemp("whole")
    assert sniff(model, texts, dump, **FEW) == 0
    return dump


def read(dump: Path, head: str) -> HeadRows:
    file = dump / head / "data.parquet"
    return read_head([file], max_rows=10**6, seed=0, with_examples=True, with_received=True)


def both(head: HeadId) -> tuple[str, str]:
    """The folders of a key head and of its drawn keys."""
    return head.name, head.folder


def test_attended_files_have_the_keys_that_are_not_in_the_base_sample(whole: Path) -> None:
    dump = open_dump(whole)
    assert list(dump.attended) == [
        HeadId(layer, head, "k", attended=True) for layer in range(4) for head in range(2)
    ]
    numbers = []
    for drawn_head in dump.attended:  # they have the columns of the base files
        names = [pq.read_schema(whole / name / "data.parquet").names for name in both(drawn_head)]
        assert names[0] == names[1]
    for layer, head in dump.key_heads:
        base = read(whole, f"l{layer:02d}h{head:02d}k")
        drawn = read_attended(dump, layer, head, max_rows=10**6, seed=0)
        assert drawn is not None
        assert drawn.received is not None
        assert base.received is not None
        own = 1000 * drawn.example_id + drawn.position
        assert (np.diff(own) > 0).all()
        assert not np.isin(own, 1000 * base.example_id + base.position).any()
        first = drawn.position < 4
        assert (drawn.received.inclusion[first] == 1).all()
        assert drawn.received.group == 2
        rates = PositionSampler("uniform", 16, 1.0).rate(base.bucket, "k")
        assert (base.received.inclusion >= rates).all()
        assert (drawn.received.inclusion > 1 / 16).all()
        assert (base.received.received > 0).all()
        numbers += [int((drawn.example_id[~first] == text).sum()) for text in (0, 2, 3)]
    assert np.mean(numbers) == pytest.approx(NUMBER * 15 / 16, rel=0.15)


def test_base_files_do_not_depend_on_attended_keys(
    model: Path, texts: Path, whole: Path, tmp_path: Path
) -> None:
    assert sniff(model, texts, tmp_path, **FEW | {"capture__attended_keys": 0}) == 0
    assert not (tmp_path / "attended").exists()
    with_drawn = tables_of(whole)
    for name, table in tables_of(tmp_path).items():
        assert table == with_drawn[name].select(table.column_names)
        more = set(with_drawn[name].column_names) - set(table.column_names)
        assert more == (set(RECEIVED_COLUMNS) if name.endswith("k") else set())
    manifest = json.loads((whole / "dump.json").read_text())
    assert manifest["capture"]["capture"]["attended_keys"] == NUMBER


@pytest.mark.parametrize("batch_size", [2, 4])
def test_draws_do_not_depend_on_the_batch(
    model: Path, texts: Path, whole: Path, tmp_path: Path, batch_size: int
) -> None:
    """What keys receive may differ by rounding, as the vectors of the model do."""
    assert sniff(model, texts, tmp_path, inference__batch_size=batch_size, **FEW) == 0
    dump = open_dump(whole)
    for head in dump.attended:
        one, other = read(whole, head.folder), read(tmp_path, head.folder)
        np.testing.assert_array_equal(one.position, other.position)
        np.testing.assert_array_equal(one.example_id, other.example_id)
        assert one.received is not None
        assert other.received is not None
        np.testing.assert_allclose(one.received.received, other.received.received, atol=1e-6)
        np.testing.assert_allclose(one.received.inclusion, other.received.inclusion, rtol=1e-4)


def test_a_resumed_capture_has_the_same_bytes(
    model: Path, texts: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sniff_first(monkeypatch, 2, model, texts, tmp_path, **FEW)
    assert sniff(model, texts, tmp_path, **FEW) == 0
    assert same_bytes(tmp_path, whole)


def test_the_default_number_follows_from_the_texts_when_the_capture_began(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, dump = tmp_path / "texts", tmp_path / "dump"
    save_texts(texts, [60] * 3)
    assert sniff(model, texts, dump, dataset__max_samples=3) == 0
    manifest = json.loads((dump / "dump.json").read_text())
    assert manifest["capture"]["capture"]["attended_keys"] == 683
    save_texts(texts, [60] * 4)
    capsys.readouterr()
    assert sniff(model, texts, dump, dataset__max_samples=3) == 0
    assert "is complete already" in capsys.readouterr().err


def test_a_capture_of_all_keys_has_empty_attended_files(
    model: Path, texts: Path, tmp_path: Path
) -> None:
    assert sniff(model, texts, tmp_path, capture__sampler__type="all") == 0
    dump = open_dump(tmp_path)
    assert len(dump.attended) == 8
    for head in dump.attended:
        table = pq.read_table(tmp_path / head.folder / "data.parquet")
        assert table.num_rows == 0
        assert table.schema == pq.read_table(tmp_path / head.name / "data.parquet").schema
        assert read_attended(dump, head.layer, head.head, max_rows=9, seed=0) is None
        rows = read(tmp_path, head.name)
        assert rows.received is not None
        assert (rows.received.inclusion == 1).all()
        for text in (0, 2, 3):  # all weight of all queries
            sums = rows.received.received[rows.example_id == text].sum(axis=0)
            np.testing.assert_allclose(sums, 1, atol=1e-5)


def test_other_options_of_a_capture(model: Path, texts: Path, whole: Path, tmp_path: Path) -> None:
    """Half precision, token strings, and one query head: `received` has the whole group."""
    options: dict[str, Any] = {
        "output__vector_dtype": "float16",
        "capture__capture_token_strings": "true",
        "capture__heads": "3",
        "capture__layers": "1",
    }
    assert sniff(model, texts, tmp_path, **FEW, **options) == 0
    assert [head.folder for head in open_dump(tmp_path).attended] == ["attended/l01h01k"]
    ours = pq.read_table(tmp_path / "attended/l01h01k/data.parquet")
    theirs = pq.read_table(whole / "attended/l01h01k/data.parquet")
    same = [name for name in theirs.column_names if name != "vector"]
    assert ours.select(same) == theirs.select(same)
    assert ours["token_str"].null_count == 0
    half = np.stack(theirs["vector"].to_numpy()).astype(np.float16)
    np.testing.assert_array_equal(np.stack(ours["vector"].to_numpy()), half)


def test_overwrite_removes_attended_files(model: Path, texts: Path, tmp_path: Path) -> None:
    assert sniff(model, texts, tmp_path, **FEW) == 0
    options = {"capture__attended_keys": 0, "overwrite": "true"}
    assert sniff(model, texts, tmp_path, **FEW | options) == 0
    assert not (tmp_path / "attended").exists()


@pytest.mark.parametrize("field", ["capture__attention", "capture__capture_keys"])
def test_a_number_without_effect_is_refused(
    model: Path, texts: Path, tmp_path: Path, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sniff(model, texts, tmp_path, **FEW, **{field: "false"}) == 2
    name = field.replace("__", ".")
    assert f"attended_keys: has an effect only with {name}" in capsys.readouterr().err


def test_a_text_without_base_rows_is_no_dump(
    model: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first tokens are always drawn, but a dump needs a base sample."""
    assert sniff(model, texts, tmp_path, **FEW | {"capture__sampler__base_rate": 1e-9}) == 2
    assert "no position of any text was kept" in capsys.readouterr().err
