"""The capture of a baseline, from what a run records of its own capture."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from qk_study.baseline.captures import baseline_capture
from qk_toolkit.errors import ConfigError

RUN = Path("results/mine")


def info(texts: int = 64, **changes: Any) -> dict[str, Any]:
    """run.json of a run; `model__commit=…` changes the record of its capture."""
    capture: dict[str, dict[str, Any]] = {
        "dataset": {"path": "owner/texts", "name": "en", "split": "test", "max_samples": 64},
        "model": {"name": "owner/model", "dtype": "bfloat16", "device": "cuda", "files": "ab12"},
        "tokenizer": {"max_length": 4096, "add_special_tokens": False},
        "inference": {"batch_size": 4},
        "capture": {
            "sampler": {"type": "uniform", "base_rate": 2.0, "key_base_rate": 4.0, "seed": 3},
            "min_bucket_size": 256,
            "layers": [0, 1, 2],
            "capture_pre_rope": True,
            "attended_keys": 32,
        },
        "output": {"vector_dtype": "float16"},
        "versions": {"torch": "2.9"},
    }
    for name, value in changes.items():
        section, field = name.split("__")
        capture[section][field] = value
    return {"config": {}, "input": {"dump": {"capture": capture, "num_examples": texts}}}


def test_a_baseline_has_the_settings_of_the_capture() -> None:
    random = baseline_capture("random", RUN, info(), 8, {})
    assert random.model.random_weights
    assert (random.model.name, random.model.dtype) == ("owner/model", "bfloat16")
    assert (random.dataset.path, random.dataset.name) == ("owner/texts", "en")
    assert (random.dataset.split, random.dataset.max_samples) == ("test", 8)
    assert (random.tokenizer.max_length, random.tokenizer.add_special_tokens) == (4096, False)
    assert random.inference.batch_size == 4
    assert random.capture.layers == [0, 1, 2]
    assert random.capture.capture_pre_rope
    assert (random.capture.min_bucket_size, random.capture.sampler.seed) == (256, 3)
    assert random.output.vector_dtype == "float16"
    assert Path(random.data_root) == RUN / "baseline" / "random" / "dump"
    shuffled = baseline_capture("shuffled", RUN, info(), 8, {})
    assert not shuffled.model.random_weights
    assert shuffled.dataset.path == "synthetic:shuffled"
    assert shuffled.dataset.synthetic is not None
    assert shuffled.dataset.synthetic.texts == "owner/texts"
    assert shuffled.capture == random.capture


@pytest.mark.parametrize(
    ("rate", "texts", "expected"),
    [
        (2.0, 64, 16.0),  # 128 queries of a bucket from 64 texts, and from 8
        (1.0, 16, 2.0),  # 16, as in the run
        (4.0, 640, 16.0),  # 128 are enough
        (32.0, 640, 32.0),  # the rate does not fall
        (2.0, 5, 2.0),  # all texts of the run
    ],
)
def test_fewer_texts_have_more_rows_each(rate: float, texts: int, expected: float) -> None:
    sampler = {"type": "uniform", "base_rate": rate, "key_base_rate": 4 * rate, "seed": 0}
    found = baseline_capture("random", RUN, info(texts, capture__sampler=sampler), 8, {})
    assert found.capture.sampler.base_rate == expected
    assert found.capture.sampler.key_base_rate == 4 * expected
    assert found.dataset.max_samples == min(8, texts)


def test_the_sampler_auto_keeps_its_buckets() -> None:
    chosen = {"min_bucket_size": 512, "base_rate": 1.0, "key_base_rate": 4.0}
    sampler = {"type": "auto", "seed": 1, "chosen": chosen}
    recorded = info(capture__sampler=sampler, capture__min_bucket_size=None)
    found = baseline_capture("random", RUN, recorded, 8, {}).capture
    assert (found.sampler.type, found.sampler.base_rate) == ("auto", None)
    assert (found.min_bucket_size, found.sampler.seed) == (512, 1)


def test_the_heads_are_those_of_the_run() -> None:
    recorded = info()
    recorded["config"] = {"layers": [1], "heads": [0, 2]}
    found = baseline_capture("random", RUN, recorded, 8, {}).capture
    assert (found.layers, found.heads) == ([1], [0, 2])
    sampled = deepcopy(recorded)  # the draw depends on all eligible heads
    sampled["input"]["dump"]["capture"]["capture"]["head_sampling"] = {"count": 5, "seed": 1}
    found = baseline_capture("random", RUN, sampled, 8, {}).capture
    assert (found.layers, found.heads) == ([0, 1, 2], None)
    assert found.head_sampling is not None
    assert found.head_sampling.count == 5


def test_the_model_is_loaded_at_its_commit_unless_another_is_given() -> None:
    recorded = info(model__revision="main", model__commit="c0ffee", model__dtype="float64")
    found = baseline_capture("shuffled", RUN, recorded, 8, {}).model
    assert (found.revision, found.dtype) == ("c0ffee", "auto")
    changes = {"model": {"name": "here"}, "dataset": {"path": "there", "streaming": True}}
    moved = baseline_capture("shuffled", RUN, recorded, 8, changes)
    assert (moved.model.name, moved.model.revision) == ("here", None)
    assert moved.dataset.synthetic is not None
    assert moved.dataset.synthetic.texts == "there"
    assert moved.dataset.streaming
    changes["model"]["revision"] = "v2"
    assert baseline_capture("random", RUN, recorded, 8, changes).model.revision == "v2"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__name": None}, "does not record the model and the texts of a capture"),
        ({"dataset__path": 3}, "does not record the model and the texts of a capture"),
        ({"dataset__synthetic": {"type": "repeated"}}, "captured with made texts"),
        ({"model__random_weights": True}, "captured with random weights"),
        ({"tokenizer__max_length": -4}, "the recorded capture cannot be repeated: tokenizer.max"),
    ],
)
def test_a_capture_that_cannot_be_repeated_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        baseline_capture("random", RUN, info(**changes), 8, {})
    nothing: dict[str, Any] = {"input": {"dump": None}}
    with pytest.raises(ConfigError, match="does not record"):
        baseline_capture("random", RUN, nothing, 8, {})
