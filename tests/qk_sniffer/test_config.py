"""The settings of a capture: limits, the original tool, and the configs that come with us."""

from pathlib import Path

import pytest

from qk_sniffer.capture.setup import sampler_of
from qk_sniffer.config import IgnoredSettingWarning, load_config, make_config
from qk_sniffer.sampling.bucket_counts import choose
from qk_toolkit.errors import ConfigError

ORIGINAL = """\
dataset:
  path: viktoroo/longbench-pro-128k-plus
model:
  name: Qwen/Qwen3-8B
tokenizer:
  padding: longest
  trust_remote_code: true
inference:
  autocast_dtype: bfloat16
  debug_logging: false
  batch_size: 1
capture:
  sampler:
    type: uniform
    base_rate: 1.0
  min_bucket_size: 8192
output:
  data_root: data/attention-plasticity
  readme_path: data/attention-plasticity/README.md
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
def original(tmp_path):
    path = tmp_path / "original.yaml"
    path.write_text(ORIGINAL)
    return path


def test_a_file_of_the_original_tool_loads_with_one_note(original):
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


def test_padding_on_the_left_is_refused(original):
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


def test_limits_of_a_dump_are_limits_of_the_settings():
    required = {"dataset": {"path": "d"}, "model": {"name": "m"}, "output": {"data_root": "o"}}
    most = 2**31 - 1
    for section, field in (("capture", "min_bucket_size"), ("dataset", "max_samples")):
        fields = required.get(section, {})
        make_config({**required, section: {**fields, field: most}})
        with pytest.raises(ConfigError, match=rf"{section}\.{field}: expected an integer of at"):
            make_config({**required, section: {**fields, field: most + 1}})


FOLDER = Path(__file__).parents[2] / "configs" / "capture"
ORIGINALS = FOLDER / "original"  # settings of the original tool
CHECKPOINTS = "smollm3-3b-checkpoints"
SHAPES = {  # layers with full attention, query heads, key heads, dimensions, context
    "gemma3-4b": (5, 8, 4, 256, 131_072),
    "llama3.1-8b": (32, 32, 8, 128, 131_072),
    "llama3.2-1b": (16, 32, 8, 64, 131_072),
    "llama3.2-3b": (28, 24, 8, 128, 131_072),
    "ministral3-14b": (40, 32, 8, 128, 262_144),
    "ministral3-3b": (26, 32, 8, 128, 262_144),
    "ministral3-8b": (34, 32, 8, 128, 262_144),
    "mistral-7b-v0.2": (32, 32, 8, 128, 32_768),
    "qwen3-0.6b": (28, 16, 8, 128, 131_072),
    "qwen3-1.7b": (28, 16, 8, 128, 131_072),
    "qwen3-14b": (40, 40, 8, 128, 131_072),
    "qwen3-4b": (36, 32, 8, 128, 131_072),
    "qwen3-8b": (36, 32, 8, 128, 131_072),
    "smollm2-135m": (30, 9, 3, 64, 8_192),
    "smollm3-3b": (36, 16, 4, 128, 65_536),
    CHECKPOINTS: (36, 16, 4, 128, 4_096),
}


NAMES_OF_ORIGINALS = sorted(path.stem for path in ORIGINALS.glob("*.yaml"))
PATHS = [f"{name}.yaml" for name in SHAPES] + [
    f"original/{name}.yaml" for name in NAMES_OF_ORIGINALS
]


def test_every_config_has_a_known_shape():
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(SHAPES)
    assert set(NAMES_OF_ORIGINALS) == SHAPES.keys() - {CHECKPOINTS, "smollm2-135m"}
    assert len(PATHS) == len(list(FOLDER.rglob("*.yaml")))


@pytest.mark.parametrize("file", PATHS)
def test_a_config_loads_and_asks_for_what_its_model_has(file):
    config = load_config(FOLDER / file)
    name = Path(file).stem
    layers, q_heads, k_heads, dimensions, context = SHAPES[name]
    first = (FOLDER / file).read_text().partition("\n")[0]
    shape = f"{q_heads} query / {k_heads} key heads of {dimensions} dimensions, {context:,} tokens"
    assert shape in first
    if name != "gemma3-4b":  # where only some layers have full attention
        assert f": {layers} layers, " in first
    assert config.data_root.startswith(f"data/attention-plasticity/{name.split('-checkpoints')[0]}")
    assert config.output.hf_repo_id is None
    assert config.hf_branch is None
    assert config.capture.full_attention_only
    assert config.tokenizer.max_length is not None
    assert config.tokenizer.max_length <= context
    if config.capture.head_sampling is not None:
        assert config.capture.head_sampling.count <= layers * q_heads


def told(file):
    """The comment at the top of a config, as one line."""
    comment = (FOLDER / file).read_text().partition("dataset:")[0]
    return comment.replace("\n# ", " ")


def length_of(config):
    assert config.tokenizer.max_length is not None
    return config.tokenizer.max_length


@pytest.mark.parametrize("name", SHAPES)
def test_a_config_chooses_the_sampler_by_itself_and_says_what_it_keeps(name):
    config = load_config(FOLDER / f"{name}.yaml")
    assert config.capture.sampler.type == "auto"
    assert config.capture.min_bucket_size is None
    length = length_of(config)
    sampler = choose(500, length).sampler(0)
    rows = {kind: 500 * sampler.expected_rows(length, kind) for kind in ("q", "k")}
    layers, q_heads, k_heads, width, _ = SHAPES[name]
    size = layers * (
        q_heads * rows["q"] * (4 * width + 128) + k_heads * rows["k"] * (4 * width + 16)
    )
    assert (
        f"500 texts of {length:,} tokens give {rows['q']:,.0f} queries and {rows['k']:,.0f} keys "
        f"per head, about {size / 1e9:.1f} GB."
    ) in told(f"{name}.yaml")


@pytest.mark.parametrize("name", NAMES_OF_ORIGINALS)
def test_the_settings_of_the_original_tool_stay(name):
    config = load_config(ORIGINALS / f"{name}.yaml")
    sampler = sampler_of(config.capture)
    assert (sampler.type, sampler.min_bucket_size, sampler.base_rate) == ("uniform", 8192, 1.0)
    length = length_of(config)
    rows = sampler.expected_rows(length)
    assert (
        f"{rows:.0f} queries and {rows:.0f} keys per head and text of {length:,} tokens. 500 texts "
        f"give {500 * rows:,.0f} of each per head"
    ) in told(f"original/{name}.yaml")
    other = load_config(FOLDER / f"{name}.yaml")
    assert (config.model, config.tokenizer) == (other.model, other.tokenizer)
    assert config.data_root == f"{other.data_root}-original"


def test_one_config_serves_every_checkpoint():
    path = FOLDER / f"{CHECKPOINTS}.yaml"
    branch = next(line for line in path.read_text().splitlines() if "# hf_branch: " in line)
    flags = {"model.revision": "stage1-step-40000", "output.hf_branch": branch.split()[-1]}
    config = load_config(path, flags)
    assert config.data_root == "data/attention-plasticity/smollm3-3b-stage1-step-40000"
    assert config.hf_branch == "smollm3-3b-stage1-step-40000-longbench-pro-128k-plus"
