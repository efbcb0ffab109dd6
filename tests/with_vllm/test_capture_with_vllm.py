"""The dump of the engine vllm is that of the engine hf."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from captures_of_both import Captures, assert_same_dump, run_vllm, start_vllm
from qk_dump.layout import UNFINISHED
from qk_sniffer.capture.segments import saved_chunks
from tiny_texts import save_texts
from vllm_models import save_model
from waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore")  # those of vLLM
KINDS = ("llama", "qwen3", "gemma2", "gemma3_text", "glm4", "cohere2", "gpt_oss")
CHUNKED = {"vllm__tokens_per_step": 32, "inference__batch_size": 3}
TWO = {"vllm__tensor_parallel": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_whole_texts(captures: Captures, kind: str) -> None:
    dump = captures.vllm(kind, "whole")
    assert_same_dump(captures.hf(kind), dump)
    recorded = json.loads((dump / "dump.json").read_text())["capture"]
    assert recorded["engine"] == "vllm"
    assert recorded["vllm"]["version"]
    assert "engine" not in json.loads((captures.hf(kind) / "dump.json").read_text())["capture"]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_in_pieces(captures: Captures, kind: str) -> None:
    assert_same_dump(captures.hf(kind), captures.vllm(kind, "pieces", **CHUNKED))


@pytest.mark.parametrize("kind", KINDS)
def test_analyses_agree(captures: Captures, kind: str, tmp_path: Path) -> None:
    from attention_plasticity.cli import main

    found = []
    for name, dump in (("hf", captures.hf(kind)), ("vllm", captures.vllm(kind, "whole"))):
        out = tmp_path / name
        words = [
            "analyze",
            "--dataset_local_root",
            str(dump),
            "--output_dir",
            str(out),
            "--max_workers",
            "1",
        ]
        assert main(words) == 0
        found.append(pd.read_csv(out / "head_metrics.csv"))
    one, other = found
    assert list(one.columns) == list(other.columns)
    for column in one.columns:
        if pd.api.types.is_float_dtype(one[column]):
            np.testing.assert_allclose(
                one[column], other[column], atol=1e-3, rtol=1e-3, err_msg=column
            )
        else:
            assert one[column].equals(other[column]), column


@pytest.mark.parametrize("kind", KINDS)
def test_texts_in_pieces_on_two_ranks(captures: Captures, kind: str) -> None:
    dump = captures.vllm(kind, "pieces-two", **CHUNKED, **TWO)
    assert_same_dump(captures.hf(kind), dump)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_texts_on_two_ranks(captures: Captures, kind: str) -> None:
    assert_same_dump(captures.hf(kind), captures.vllm(kind, "whole-two", **TWO))


def test_a_key_head_on_two_ranks(captures: Captures) -> None:
    kind = "gemma2"
    dump = captures.vllm(kind, "copies", 1, **TWO, inference__batch_size=6)
    assert_same_dump(captures.hf(kind, 1), dump)


def test_verify_compares_a_dump_with_transformers(
    captures: Captures, capsys: pytest.CaptureFixture[str]
) -> None:
    from attention_plasticity.cli import main

    dump = captures.vllm("llama", "whole")
    capsys.readouterr()
    assert main(["verify", str(captures.model("llama")), "--dump", str(dump)]) == 0
    assert "Equal: no layer differs by more than 0.0001" in capsys.readouterr().out


def test_a_killed_capture_continues(captures: Captures, tmp_path: Path) -> None:
    texts, dump = save_texts(tmp_path / "texts", [300] * 40), tmp_path / "dump"
    model = captures.model("llama")
    process = start_vllm(model, texts, dump)
    try:
        wait_for("three texts", lambda: len(saved_chunks(dump)) >= 3)
    finally:
        process.kill()
        process.communicate()
    saved = len(saved_chunks(dump))
    assert 3 <= saved < 40
    code, told = run_vllm(model, texts, dump)
    assert code == 0, told
    assert "continuing: " in told
    assert not (dump / UNFINISHED).exists()
    whole = tmp_path / "whole"
    code, told = run_vllm(model, texts, whole)
    assert code == 0, told
    assert_same_dump(whole, dump)


def test_what_vllm_cannot_run_is_one_line(captures: Captures, tmp_path: Path) -> None:
    """Heads of 16 dimensions are too narrow for the attention of vLLM on a CPU."""
    model = save_model(tmp_path / "model", "llama", head_dim=16)
    code, told = run_vllm(model, captures.texts, tmp_path / "dump")
    assert code == 1, told
    errors = [line for line in told.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "error: the model failed on text 1 (201 tokens): " in errors[0]
    assert "head_dim=16" in errors[0]
