"""The dump of the engine vllm is that of the engine hf."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import hanging_texts
from helpers.captures_of_both import assert_same_dump, run_vllm
from helpers.vllm_models import save_model
from qk_dump.layout import UNFINISHED
from qk_sniffer.capture.segments import saved_chunks
from sniffing import ONE_THREAD, words
from tiny_texts import save_texts
from waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore")  # those of vLLM
KINDS = ("llama", "qwen3", "gemma2", "gemma3_text", "glm4", "cohere2", "gpt_oss")
TWO = {"vllm__tensor_parallel": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_whole_texts(captures, kind):
    dump = captures.vllm(kind, "whole")
    assert_same_dump(captures.hf(kind), dump)
    recorded = json.loads((dump / "dump.json").read_text())["capture"]
    assert recorded["engine"] == "vllm"
    assert recorded["vllm"]["version"]
    assert "engine" not in json.loads((captures.hf(kind) / "dump.json").read_text())["capture"]


@pytest.mark.parametrize("kind", KINDS)
def test_analyses_agree(captures, kind, tmp_path):
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
def test_several_texts_on_two_ranks(captures, kind):
    dump = captures.vllm(kind, "two", **TWO, inference__batch_size=3)
    assert_same_dump(captures.hf(kind), dump)


def test_fewer_key_heads_than_ranks_are_refused(captures, tmp_path):
    code, told = run_vllm(captures.model("gemma2", 1), captures.texts, tmp_path / "dump", **TWO)
    assert code == 2, told
    assert "error: vllm.tensor_parallel: 2 GPUs cannot divide the 1 key heads" in told


def test_verify_compares_a_dump_with_transformers(captures, capsys):
    from attention_plasticity.cli import main

    dump = captures.vllm("llama", "whole")
    capsys.readouterr()
    assert main(["verify", str(captures.model("llama")), "--dump", str(dump)]) == 0
    assert "Equal: no layer differs by more than 0.0001" in capsys.readouterr().out


def test_a_killed_capture_continues(captures, tmp_path):
    """The process is killed while it waits for a text, when earlier ones are saved."""
    texts, dump = save_texts(tmp_path / "texts", [300] * 40), tmp_path / "dump"
    model = captures.model("llama")
    command = [sys.executable, hanging_texts.__file__, *words(model, texts, dump, engine="vllm")]
    environment = {**os.environ, **ONE_THREAD, hanging_texts.TEXTS_BEFORE: "4"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_for("the texts before", lambda: len(saved_chunks(dump)) == 4)
    finally:
        process.kill()
        process.communicate()
    code, told = run_vllm(model, texts, dump)
    assert code == 0, told
    assert "continuing: " in told
    assert not (dump / UNFINISHED).exists()
    whole = tmp_path / "whole"
    code, told = run_vllm(model, texts, whole)
    assert code == 0, told
    assert_same_dump(whole, dump)


def test_what_vllm_cannot_run_is_one_line(captures, tmp_path):
    """Heads of 16 dimensions are too narrow for the attention of vLLM on a CPU."""
    model = save_model(tmp_path / "model", "llama", head_dim=16)
    code, told = run_vllm(model, captures.texts, tmp_path / "dump")
    assert code == 1, told
    errors = [line for line in told.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "error: the model failed on text 1 (201 tokens): " in errors[0]
    assert "head_dim=16" in errors[0]
