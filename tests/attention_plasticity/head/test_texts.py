"""Runs with the texts that reach the end of the context only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attention_plasticity as ap
from attention_plasticity.head.texts import text_list, texts_to_last_fifth
from attention_plasticity.plots import caption_of
from dumps import head_rows
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.examples import Example, write_examples
from qk_dump.layout import HeadId
from qk_dump.writer import write_head

LENGTHS = (1024, 300, 900, 1000, 820, 600, 1010, 200)
LONG = (0, 2, 3, 4, 6)  # texts with positions of at least 0.8 × 1,023


def write_dump(root: Path, texts: tuple[int, ...], *, lengths: bool) -> ap.Dump:
    """One query head and its key head, with rows of some of the texts."""
    for kind in ("q", "k"):
        rows: dict[str, Any] = head_rows(900, examples=len(LENGTHS), seed=[3, kind == "q"])
        last = np.array(LENGTHS)[rows["example_id"]] - 1
        last_row = np.diff(rows["example_id"], append=-1) != 0  # every text has its last token
        rows["position"] = np.where(last_row, last, np.minimum(rows["position"], last))
        rows["bucket"] = rows["position"] // 128
        kept = np.isin(rows["example_id"], texts)
        rows = {name: values[kept] for name, values in rows.items()}
        write_head(root, HeadId(0, 0, kind), **rows)  # type: ignore[arg-type]
    if lengths:
        write_examples(root, [Example(i, f"t{i}", LENGTHS[i], "0") for i in texts])
    return ap.open_dump(root)


@pytest.mark.parametrize("lengths", [False, True])
def test_equal_texts_equal_a_dump_of_the_long_texts(tmp_path: Path, lengths: bool) -> None:
    config = ap.make_config(equal_texts=True)
    mixed = write_dump(tmp_path / "mixed", tuple(range(8)), lengths=lengths)
    chosen = write_dump(tmp_path / "long", LONG, lengths=lengths)
    one, other = ap.analyze_head(0, 0, dump=mixed, config=config), ap.analyze_head(0, 0, 0, chosen)
    for name, value in one.metrics.items():
        right = other.metrics[name]
        if not lengths or name == "layer_type":
            np.testing.assert_equal(value, right, err_msg=name)
        elif not name.endswith(("_se", "_bias")):  # the texts have other groups
            np.testing.assert_allclose(value, right, rtol=1e-6, atol=1e-8, err_msg=name)
    assert one.buckets["plasticity"] == other.buckets["plasticity"]
    assert max(one.buckets["n_texts"]) == len(LONG)
    everything = ap.analyze_head(0, 0, dump=mixed)
    assert everything.metrics["n_q_tokens"] > one.metrics["n_q_tokens"]


def test_a_run_records_the_texts_that_it_used(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump", tuple(range(8)), lengths=True)
    used = text_list(dump, equal_texts=True)
    assert used is not None
    assert used["count"] == len(LONG)
    assert used["digest"] not in (None, (text_list(dump) or {})["digest"])
    run = ap.analyze_dump(dump, output_dir=str(tmp_path / "out"), equal_texts=True, max_workers=1)
    assert run.info["input"]["texts"] == used
    assert "only texts that reach the last fifth" in (caption_of(run.plot("profile")) or "")
    texts = [Example(i, None, length, "0") for i, length in enumerate(LENGTHS)]
    write_examples(tmp_path / "dump", texts)
    assert text_list(dump, equal_texts=True) == {"count": len(LONG), "digest": None}
    (tmp_path / "dump" / "examples.parquet").unlink()
    assert text_list(dump, equal_texts=True) is None


def test_settings_that_contradict_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ap.ConfigError, match="equal_texts: cannot be used together with single"):
        ap.make_config(equal_texts=True, single_example=True)
    dump = write_dump(tmp_path / "dump", tuple(range(8)), lengths=True)
    rows = head_rows(100, examples=1)
    write_head(tmp_path / "dump", HeadId(0, 0, "q"), **{**rows, "example_id": rows["bucket"] + 99})
    with pytest.raises(ap.HeadError, match="no rows of texts that reach the last fifth"):
        ap.analyze_head(0, 0, dump=dump, config=ap.make_config(equal_texts=True))
    with pytest.raises(ap.DumpError, match=r"head 9 of layer 0 is not .* has query heads 0"):
        ap.analyze_head(0, 9, dump=dump)
    with pytest.raises(ap.ConfigError, match="dump: is missing"):
        ap.analyze_head(0, 0)


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=30))
def test_the_longest_text_is_always_used(lengths: list[int]) -> None:
    positions = np.array(lengths)
    kept = texts_to_last_fifth(np.arange(len(lengths)), positions)
    assert int(positions.argmax()) in kept
    assert (positions[kept] >= 0.8 * positions.max()).all()
    others = np.setdiff1d(np.arange(len(lengths)), kept)
    assert (positions[others] < 0.8 * positions.max()).all()
