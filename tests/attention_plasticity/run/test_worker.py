"""A worker's side of the pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attention_plasticity.config import make_config
from attention_plasticity.read.texts import UNKNOWN_TEXTS
from dumps import make_dump


def talk(*lines: object) -> tuple[list[dict[str, Any]], subprocess.CompletedProcess[str]]:
    run = subprocess.run(
        [sys.executable, "-m", "attention_plasticity.run.worker"],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    return [json.loads(line) for line in run.stdout.splitlines()], run


@pytest.fixture
def hello(tmp_path: Path) -> dict[str, Any]:
    dump = make_dump(tmp_path / "dump", layers=1, n=1000)
    texts = UNKNOWN_TEXTS.as_message()
    return {"dump": str(dump), "texts": texts, "config": make_config().model_dump()}


def test_groups_are_answered_in_order_also_those_of_a_dump_that_cannot_be_opened(
    hello: dict[str, Any],
) -> None:
    one = {"layer": 0, "k_head": 1, "q_heads": [2, 3]}
    two = {"layer": 0, "k_head": 0, "q_heads": [0]}
    gone = {**hello, "dump": "nothing://bucket/dump"}
    messages, run = talk(hello, one, two, gone, one, hello, two)
    kinds = [message["kind"] for message in messages]
    assert kinds == ["result"] * 3 + ["failure"] * 2 + ["result"]
    assert [message["content"]["q_head"] for message in messages] == [2, 3, 0, 2, 3, 0]
    assert "Protocol not known: nothing" in messages[3]["content"]["reason"]
    assert run.returncode == 0
    assert run.stderr == ""


def test_nothing_to_do_is_no_error() -> None:
    messages, run = talk()
    assert (messages, run.returncode, run.stderr) == ([], 0, "")


def test_a_defect_is_reported_for_each_head_and_the_worker_goes_on(hello: dict[str, Any]) -> None:
    nonsense = {"layer": 0, "k_head": 0, "q_heads": ["zero"]}
    messages, run = talk(hello, nonsense, {"layer": 0, "k_head": 0, "q_heads": [0]})
    assert [message["kind"] for message in messages] == ["defect", "result"]
    assert "internal error" in messages[0]["content"]["reason"]
    assert "Traceback" in run.stderr
