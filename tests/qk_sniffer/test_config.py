"""The settings of a capture: files of the original capture tool, and limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from qk_sniffer.config import IgnoredSettingWarning, load_config, make_config
from qk_toolkit.errors import ConfigError

ORIGINAL = """\
dataset:
  path: viktoroo/longbench-pro-128k-plus
  name: null
  split: test
  text_column: context
  id_column: id
  max_samples: 4
  streaming: true
model:
  name: Qwen/Qwen3-8B
  revision: null
  dtype: bfloat16
  device_map: auto
  trust_remote_code: false
  attn_implementation: sdpa
tokenizer:
  name: null
  max_length: 131072
  padding: longest
  trust_remote_code: true
inference:
  batch_size: 1
  autocast_dtype: bfloat16
  debug_logging: false
capture:
  sampler:
    type: uniform
    base_rate: 1.0
  min_bucket_size: 8192
  capture_queries: true
  capture_keys: true
  head_sampling:
    count: 300
    seed: 0
  full_attention_only: true
  capture_pre_rope: false
output:
  data_root: data/attention-plasticity
  readme_path: data/attention-plasticity/README.md
  hf_repo_id: viktoroo/sniffed-qk
  hf_branch: qwen3-8b-longbench-pro-128k-plus
  private: true
"""
WITHOUT_EFFECT = {
    "tokenizer.padding": "texts are padded on the right to the longest text of the batch",
    "tokenizer.trust_remote_code": "model.trust_remote_code also applies to the tokenizer",
    "inference.autocast_dtype": "there is no autocast: vectors have model.dtype",
    "inference.debug_logging": "there is no debug log",
    "output.readme_path": "the card is README.md in output.data_root",
}


OTHER_POSITIONS = (
    "These are settings of the original capture tool, which drew positions with another random "
    "generator: the same seed keeps other positions here"
)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "original.yaml"
    path.write_text(ORIGINAL)
    return path


def test_a_file_of_the_original_tool_loads_with_one_note(original: Path) -> None:
    with pytest.warns(IgnoredSettingWarning) as notes:
        config = load_config(original)
    assert len(notes) == 1
    assert notes[0].filename == __file__
    told = str(notes[0].message)
    assert told.startswith(f"{original}: these settings have no effect: ")
    for name, instead in WITHOUT_EFFECT.items():
        assert f"{name} ({instead})" in told
    assert "\n" not in told
    assert told.endswith(f". {OTHER_POSITIONS}")
    kept = [line for line in ORIGINAL.splitlines() if not line.strip().startswith(_OLD_NAMES)]
    original.write_text("\n".join(kept))
    assert load_config(original) == config
    assert not config.model.trust_remote_code


def test_padding_on_the_left_is_refused(original: Path) -> None:
    for side in ("right", "left"):
        lines = ORIGINAL.replace("tokenizer:\n", f"tokenizer:\n  padding_side: {side}\n")
        original.write_text(lines)
        if side == "right":
            with pytest.warns(IgnoredSettingWarning):
                load_config(original)
    with pytest.raises(ConfigError, match="padding_side: expected right, got 'left'"):
        load_config(original)
    required = {"dataset": {"path": "d"}, "model": {"name": "m"}, "output": {"data_root": "o"}}
    with pytest.warns(IgnoredSettingWarning, match=f"^{OTHER_POSITIONS}$"):
        make_config(required, tokenizer={"padding_side": "right"})


_OLD_NAMES = ("padding:", "trust_remote_code: true", "autocast", "debug_logging", "readme_path")


def test_limits_of_a_dump_are_limits_of_the_settings() -> None:
    required = {"dataset": {"path": "d"}, "model": {"name": "m"}, "output": {"data_root": "o"}}
    most = 2**31 - 1
    for section, field in (("capture", "min_bucket_size"), ("dataset", "max_samples")):
        fields = required.get(section, {})
        make_config({**required, section: {**fields, field: most}})
        with pytest.raises(ConfigError, match=rf"{section}\.{field}: expected an integer of at"):
            make_config({**required, section: {**fields, field: most + 1}})
