"""`--dry_run`: the numbers, what is printed, and that nothing is written."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub.constants
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from qk_sniffer.capture.estimate import _first_layers, _measured, estimate, speed, weights_of
from qk_sniffer.config import CaptureConfig, make_config
from qk_sniffer.engines.hf.loading import load_model
from qk_sniffer.sampling.positions import PositionSampler
from qk_sniffer.summary import print_estimate
from tiny_models import RARE, needs
from tiny_texts import save_texts, save_tiny_model, tiny_tokenizer

LENGTHS = [300, 41, 0, 511, 2000]
ATTENTION = 16 * 4 * (28 + 7)  # bytes of the attention columns in the rows of all query heads
VALUES = 8 * 4  # bytes of the lengths of values in the rows of all key heads
TOKENS = [301, 42, 512, 512]  # with a begin token, up to the model's context; of no empty text


@pytest.fixture(autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def config_for(model: Path, texts: Path, /, **sections: dict[str, Any]) -> CaptureConfig:
    return make_config(
        {
            "model": {"name": str(model), **sections.pop("model", {})},
            "dataset": {"path": str(texts), **sections.pop("dataset", {})},
            "output": {"data_root": str(texts.parent / "dump"), **sections.pop("output", {})},
            **sections,
        }
    )


@pytest.mark.parametrize(
    ("model_type", "length", "exactness"), [("llama", 400, 0.005), ("mistral", 400, 0.02)]
)
def test_operations_are_those_that_torch_counts(
    tmp_path: Path, model_type: str, length: int, exactness: float
) -> None:
    folder = save_tiny_model(tmp_path / "model", model_type)
    found = estimate(config_for(folder, save_texts(tmp_path / "texts", [length])))
    decoder = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").model
    tokens = torch.ones(1, length + 1, dtype=torch.long)  # with a begin token
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        decoder(tokens)
    counted = {str(name): number for name, number in counter.get_flop_counts()["Global"].items()}
    products, attention = counted.pop("aten.mm"), counted.pop("aten.bmm")
    window = found.setup.loaded.layout.layers[0].window or length + 1
    seen = sum(min(position + 1, window) for position in range(length + 1)) / (length + 1) ** 2
    rotary = 2 * found.setup.loaded.layout.layers[0].width // 2 * (length + 1)  # angles, once
    assert not counted
    expected = products + (attention - rotary) * seen
    assert found.operations_per_text == pytest.approx(expected, rel=exactness)


@pytest.mark.parametrize("kind", ["log_uniform", "uniform"])
def test_rows_are_the_samplers_expectation(model: Path, texts: Path, kind: Any) -> None:
    capture = {"sampler": {"type": kind, "base_rate": 8.0}, "min_bucket_size": 32}
    found = estimate(config_for(model, texts, capture=capture))
    sampler = PositionSampler(kind, 32, 8.0)
    assert found.texts == len(found.lengths) == 4
    assert found.tokens_per_text == pytest.approx(mean(TOKENS))
    expected = mean([*map(sampler.expected_rows, TOKENS)])
    assert found.rows_per_text == pytest.approx({"q": expected, "k": expected})


def test_keys_drawn_by_attention_are_counted(
    model: Path, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a base sample of keys nearly all drawn keys are new; with all positions none is."""
    few = {"sampler": {"type": "uniform", "base_rate": 8.0, "key_base_rate": 1e-9}}
    config = config_for(model, texts, capture=few | {"attended_keys": 50})
    found = estimate(config)
    drawn = mean([min(length, 54) for length in TOKENS])
    assert found.attended_per_text == pytest.approx(drawn)
    assert found.rows_of_all_heads == pytest.approx(16 * found.rows_per_text["q"])
    assert found.attended_of_all_heads == pytest.approx(8 * drawn)
    queries = (16 * (16 * 4 + 20) + ATTENTION) * found.rows_per_text["q"]
    keys = drawn * (8 * (16 * 4 + 20 + 8 + 2 * 4) + VALUES)  # inclusion, two values of `received`
    assert found.bytes_per_text == pytest.approx(queries + keys)
    printed = printed_by(config, capsys)
    assert printed["keys drawn by attention"] == f"{drawn:,.1f} more per key head and text"
    rows, more = (number * len(TOKENS) for number in (16 * found.rows_per_text["q"], 8 * drawn))
    words = f"{rows:,.0f} rows, {more:,.0f} keys drawn by attention"  # as after a capture
    assert printed["rows of all heads"] == words
    everything = config_for(model, texts, capture={"sampler": {"type": "all"}})
    assert estimate(everything).attended_per_text == 0
    printed = printed_by(everything, capsys)
    assert printed["keys drawn by attention"] == "none: every key is kept"


def test_only_the_first_texts_are_looked_at(model: Path, tmp_path: Path) -> None:
    texts = save_texts(tmp_path / "texts", [10] * 16 + [500] * 4)
    found = estimate(config_for(model, texts))
    assert (found.texts, len(found.lengths)) == (20, 16)
    assert found.tokens_per_text == 11
    assert estimate(config_for(model, texts, dataset={"max_samples": 3})).texts == 3


def printed_by(config: CaptureConfig, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The table that is printed, by its first column."""
    capsys.readouterr()
    print_estimate(config, estimate(config))
    lines = capsys.readouterr().out.strip().splitlines()
    cells = [[cell.strip() for cell in line.strip().split("  ", 1)] for line in lines]
    return {line[0]: line[-1] for line in cells if line[0]}


def test_what_is_printed(model: Path, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = {"sampler": {"type": "all"}, "attention": False, "tokens": False}
    printed = printed_by(config_for(model, texts, capture=capture), capsys)
    rows = sum(TOKENS)
    assert printed["model"] == str(model)
    assert printed["heads"] == "16 query, 8 key, in layers 0-3"
    assert printed["texts"] == "4"
    assert printed["tokens per text"] == f"42 to 512, on average {rows / 4:.0f}"
    assert "1 empty text left out: 002.txt" in printed
    assert (
        f"{rows:,} of the {rows + 2001 - 512:,} tokens of 4 texts are used: a text is "
        "cut to 512 tokens (tokenizer.max_length, or the context of the model)"
    ) in printed
    assert printed["rows per head and text"] == f"{rows / 4:.1f}"
    assert printed["rows per head"] == f"{rows:,}"
    assert printed["rows of all heads"] == f"{rows * 24:,} rows"
    assert printed["size"].startswith(f"{rows * 24 * 80 / 1e6:.1f} MB at most")
    assert printed["folder"] == str(texts.parent / "dump")
    assert "Lengths are those of the first 4 texts. Nothing was written." in printed
    assert not any("are needed" in line for line in printed)


def test_too_little_room_on_the_disk_is_told(
    model: Path, texts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=10))
    printed = printed_by(config_for(model, texts), capsys)
    assert any(line.startswith("warning: ") and "GB are needed" in line for line in printed)


def test_the_time_is_that_of_a_forward_of_the_model(model: Path, texts: Path) -> None:
    """The operations of two layers are scaled to those of all four, and to all texts."""
    found = estimate(config_for(model, texts))
    settings, layers = found.setup.config.model, found.setup.loaded.layout.layers
    measured = speed(settings, layers, "cpu", round(mean(TOKENS)))
    assert found.seconds == found.operations_per_text * len(TOKENS) / measured
    part = _first_layers(settings, "cpu")
    whole = load_model(settings, "cpu").model
    assert len(part.layers) == 2
    assert weights_of(whole) == pytest.approx(2 * weights_of(part), rel=0.01)
    assert {one.device.type for one in (*part.parameters(), *part.buffers())} == {"cpu"}
    assert part.dtype == whole.dtype


def test_the_time_is_left_out_if_a_part_of_the_model_does_not_run(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(decoder: Any, tokens: Any) -> None:
        torch.ones(2) @ torch.ones(3)

    monkeypatch.setattr("qk_sniffer.capture.estimate.run_backbone", broken)
    _measured.cache_clear()
    assert estimate(config_for(model, texts)).seconds is None


def test_weights_are_not_read_also_where_the_code_asks_for_values(
    texts: Path, tmp_path: Path
) -> None:
    """longcat_flash looks at values, which the meta device has none of."""
    architecture = RARE["longcat_flash"]
    needs(architecture.model_type in CONFIG_MAPPING, "have longcat_flash")
    architecture.model("eager").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(b"no weights")
    found = estimate(config_for(tmp_path, texts))
    assert tuple(layer.facts.layer for layer in found.setup.row_plan.wanted) == architecture.layers
