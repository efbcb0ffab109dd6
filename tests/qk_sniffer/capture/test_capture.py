"""Whole captures of a tiny model, in this process: what is written."""

from __future__ import annotations

import json
import re
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import qk_sniffer
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.manifest import read_manifest
from qk_dump.rotary import rotary_record, rotate
from qk_sniffer.capture.ranks import Ranks
from qk_sniffer.capture.run import run_rank
from qk_sniffer.config import make_config
from qk_sniffer.engines.hf.layout import decoder_of, run_backbone
from qk_sniffer.sampling.positions import PositionSampler
from qk_toolkit.terminal import TerminalWatcher
from sniffing import same_bytes, sniff, sniff_first, tables_of
from tiny_models import ARCHITECTURES
from tiny_texts import some_text, tiny_tokenizer

LENGTHS = [100, 0, 50, 1, 520, 20]  # characters; a begin token comes before them
CONTEXT = 512
SAMPLER = PositionSampler("uniform", 16, 8.0)


def test_a_slow_precision_is_told(
    model: Path,
    texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How slow bfloat16 is depends on the processor, so the measurement is put in its place."""
    monkeypatch.setattr(
        "qk_sniffer.engines.hf.loading._product_seconds",
        lambda dtype: 1.0 if dtype == torch.float32 else 20.0,
    )
    options = {"model__dtype": "bfloat16", "dataset__max_samples": 1}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "mkldnn_matmul failed")  # without bfloat16
        assert sniff(model, texts, tmp_path, **options) == 0
    assert "bfloat16 is about 20 times slower than float32 on this CPU" in capsys.readouterr().err


def test_rows_are_the_samplers_choice_and_the_models_own_vectors(whole: Path) -> None:
    reference = ARCHITECTURES["llama"].model()
    tokenizer = tiny_tokenizer()
    tables = tables_of(whole)
    for example, length in enumerate(LENGTHS):
        if not length:
            continue
        ids = tokenizer(some_text(length, seed=example))["input_ids"][:CONTEXT]
        with qk_sniffer.tap(reference) as heard:
            run_backbone(decoder_of(reference), torch.tensor(ids)[None])
        for head in heard.heads:
            table = tables[head.folder].to_pandas()
            mine = table[table.example_id == example]
            positions = SAMPLER.positions(
                len(ids), example=example, layer=head.layer, kind=head.kind
            )
            np.testing.assert_array_equal(mine.position, positions)
            np.testing.assert_array_equal(mine.bucket, positions // 16)
            np.testing.assert_array_equal(
                np.stack([*mine.vector, np.zeros(16)])[:-1], heard.rows(head).vectors[positions]
            )


def test_examples_keep_their_names_and_lengths(whole: Path) -> None:
    table = pq.read_table(whole / "examples.parquet").to_pydict()
    assert table["example_id"] == [*range(len(LENGTHS))]
    assert table["original_id"] == [f"{number:03d}.txt" for number in range(len(LENGTHS))]
    assert table["num_tokens"] == [101, 0, 51, 2, CONTEXT, 21]


def test_manifest_tells_the_layout(whole: Path) -> None:
    told = json.loads((whole / "dump.json").read_text())
    assert (told["num_layers"], told["num_q_heads"], told["num_k_heads"]) == (4, 4, 2)
    assert [layer["learned_sinks"] for layer in told["layers"]] == [False] * 4
    assert (told["head_dim"], told["attention_scale"], told["dtype"]) == (16, 0.25, "float32")
    assert (told["bucket_type"], told["min_bucket_size"]) == ("uniform", 16)
    assert told["layer_types"] == ["full_attention"] * 4
    assert told["rope_parameters"] == {"rope_theta": 10000.0, "rope_type": "default"}
    assert told["sampler"] == {"type": "uniform", "base_rate": 8.0, "seed": 0}
    assert told["num_examples"] == len(LENGTHS)
    assert told["versions"]["transformers"]
    assert told["capture"]["tokenizer"]["max_length"] == CONTEXT
    frequencies = torch.tensor(10_000.0) ** -(torch.arange(0, 16, 2) / 16)  # (8,) in float32
    for layer in told["layers"]:
        rotary = layer["rotary"]
        assert (rotary["start"], rotary["dimensions"], rotary["scaling"]) == (0, 16, 1.0)
        assert rotary["pairing"] == "halves"
        np.testing.assert_allclose(rotary["frequencies"], frequencies, rtol=2e-7)
        assert "rotary_problem" not in layer


def test_pre_rope_differs_from_post_in_all_but_position_zero(
    model: Path, texts: Path, whole: Path, tmp_path: Path
) -> None:
    assert sniff(model, texts, tmp_path, capture__capture_pre_rope="true") == 0
    manifest = read_manifest(tmp_path / "dump.json")
    assert manifest is not None
    assert manifest.pre_rope is True
    pre, post = (
        np.stack(tables_of(dump)["l03h02q"]["vector"].to_numpy()) for dump in (tmp_path, whole)
    )
    position = tables_of(whole)["l03h02q"]["position"].to_numpy()
    same = np.isclose(pre, post).all(axis=1)
    np.testing.assert_array_equal(same, position == 0)
    record = rotary_record(manifest.layers, 3)
    assert record is not None
    np.testing.assert_allclose(rotate(pre, 0, position, record), post, atol=1e-4)
    assert rotary_record(manifest.layers, 4) is None


def test_a_complete_dump_is_left_alone(
    model: Path, texts: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    assert sniff(model, texts, whole) == 0
    assert "is complete already" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_settings_that_change_no_row_change_no_dump(
    model: Path, texts: Path, whole: Path, tmp_path: Path
) -> None:
    assert sniff(model, texts, tmp_path, dataset__streaming="true") == 0
    assert same_bytes(tmp_path, whole)


def test_a_rank_that_saw_no_other_asks_whether_the_folder_is_shared(
    model: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert sniff(model, texts, tmp_path, dataset__max_samples=1) == 0
    question = f"no other process was seen in {tmp_path}; is the folder shared?"
    assert question in " ".join(capsys.readouterr().err.split())
    sections = {"dataset": {"path": str(texts), "max_samples": 1}, "model": {"name": str(model)}}
    config = make_config(sections, output={"data_root": str(tmp_path / "tested")})
    run_rank(config, TerminalWatcher(), Ranks(0, 2, knows_folder_is_shared=True))
    assert "is the folder shared?" not in capsys.readouterr().err


def test_rows_damaged_on_disk_are_captured_again(
    model: Path,
    texts: Path,
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sniff_first(monkeypatch, 3, model, texts, tmp_path)
    segments = sorted((tmp_path / ".capture" / "segments").iterdir())
    assert [path.name for path in segments] == ["00000", "00002", "00004"]  # the longest texts
    file = segments[1] / "l02k.parquet"
    rows = bytearray(file.read_bytes())
    rows[len(rows) // 3] ^= 1
    file.write_bytes(rows)
    with monkeypatch.context() as patch:
        often = partial(TerminalWatcher, seconds=0.001)
        patch.setattr("qk_toolkit.terminal.TerminalWatcher", often)
        assert sniff(model, texts, tmp_path) == 0
    printed = capsys.readouterr().err
    assert "rows on disk are damaged; their texts are run again" in printed
    assert same_bytes(tmp_path, whole)
    assert re.search("^loading texts and model: ", printed, re.M)
    first, damaged = printed.split("rows on disk are damaged")
    assert re.findall(r"continuing: (\d) texts", first) == ["3"]
    assert min(re.findall(r"^texts: (\d) of 6 done", first, re.M)) >= "3"
    assert re.search(r"^texts: \d of 6 done", damaged, re.M)
    assert re.search(r"^texts: .*, [\d,]+ tokens, [\d,]+ rows, \d s left", printed, re.M)
