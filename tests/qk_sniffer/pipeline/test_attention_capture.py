"""Attention columns of whole captures of a tiny model: values, null, and what stops a capture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.llama import modeling_llama

from qk_dump.attention_columns import ATTENTION_TYPES
from qk_dump.reader import HeadRows, read_head
from qk_dump.received_columns import RECEIVED_COLUMNS
from sniffing import sniff, tables_of
from tiny_texts import save_texts, save_tiny_model

LENGTHS = [300, 0, 50, 400]


def test_weights_of_captured_pairs_follow_from_the_attention_columns(
    model: Path, texts: Path, tmp_path: Path
) -> None:
    """Every position is kept, so that the weights of every query sum to 1."""
    assert sniff(model, texts, tmp_path, capture__sampler__type="all", dataset__max_samples=3) == 0
    for head in ("l00h00", "l03h03"):
        rows = read(tmp_path, f"{head}q")
        keys = read(tmp_path, f"{head[:4]}{int(head[4:]) // 2:02d}k")
        assert rows.attention is not None
        for text in np.unique(rows.example_id):
            mine, theirs = rows.example_id == text, keys.example_id == text
            logits = rows.vectors[mine] @ keys.vectors[theirs].T / 4  # (n, n)
            weights = np.exp(logits - rows.attention.lse[mine][:, None])
            weights[rows.position[mine][:, None] < keys.position[theirs]] = 0
            np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
            masses = rows.attention.mass_by_distance[mine]
            np.testing.assert_allclose(masses.sum(axis=1), 1, atol=1e-5)
            np.testing.assert_allclose(masses[:, 0], np.diag(weights), atol=1e-5)


def read(dump: Path, head: str) -> HeadRows:
    file = dump / head / "data.parquet"
    return read_head(
        [file],
        max_rows=10**6,
        seed=0,
        with_examples=True,
        with_attention=True,
        with_received=True,
    )


def test_attention_can_be_left_out(
    model: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sniff(model, texts, tmp_path / "whole") == 0
    assert sniff(model, texts, tmp_path / "dump", capture__attention="false") == 0
    for name, table in tables_of(tmp_path / "whole").items():
        ours = tables_of(tmp_path / "dump")[name]
        assert ours == table.select(ours.column_names)
        if name.endswith("q"):
            assert set(table.column_names) - set(ours.column_names) == set(ATTENTION_TYPES)
        elif name.endswith("k"):
            missing = set(table.column_names) - set(ours.column_names)
            assert missing == {"value_norm", *RECEIVED_COLUMNS}
    assert not (tmp_path / "dump" / "attended").exists()
    capsys.readouterr()
    assert sniff(model, texts, tmp_path / "dump") == 2
    assert "capture.attention (false then, true now)" in capsys.readouterr().err


def with_distance_bias(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    """Attention with a bias that no argument shows (ALiBi)."""
    place = torch.arange(key.shape[2])
    logits = query @ key.repeat_interleave(2, 1).transpose(2, 3) / 4
    logits = logits - 0.1 * (place[:, None] - place)
    weights = logits.masked_fill(place[:, None] < place, -torch.inf).softmax(-1)
    return (weights @ value.repeat_interleave(2, 1)).transpose(1, 2), weights


def test_unknown_logits_give_null_columns_and_one_note(
    model: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", with_distance_bias)
    assert sniff(model, texts, tmp_path, model__attn_implementation="eager") == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "columns are null" in line]
    assert len(notes) == 1
    assert "layers 0-3: the attention function computes its weights in an unknown way" in notes[0]
    table = tables_of(tmp_path)["l01h02q"]
    assert all(table[name].null_count == table.num_rows > 0 for name in ATTENTION_TYPES)
    assert table["token_id"].null_count == 0
    assert tables_of(tmp_path)["l01h01k"]["value_norm"].null_count == 0
    assert read(tmp_path, "l01h02q").attention is None
    assert not (tmp_path / "attended").exists()
    keys = tables_of(tmp_path)["l01h01k"]
    assert keys["received"].null_count == keys.num_rows > 0
    assert set(keys["inclusion"].to_pylist()) == {8 / 16}  # that of the base sample
    received = read(tmp_path, "l01h01k").received
    assert received is not None
    assert np.isnan(received.received).all()


def test_infinite_logits_stop_and_name_layer_text_and_position(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Queries and keys are finite in float32, their products are not."""
    folder = save_tiny_model(tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    for name in ("q", "k"):
        weights[f"model.layers.1.self_attn.{name}_proj.weight"] *= 1e20
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    texts = save_texts(tmp_path / "texts", [0, 200])
    assert sniff(folder, texts, tmp_path / "dump") == 1
    message = capsys.readouterr().err
    assert "layer 1: NaN or infinity in the attention logits of text 1, query head" in message
    assert "position" in message
