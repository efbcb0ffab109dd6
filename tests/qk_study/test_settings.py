"""The YAML file of a study, settings of parts that were begun, and names of folders."""

import json
import shutil
from pathlib import Path, PurePosixPath

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.config import ANALYSIS_FIELDS
from qk_dump.heads import parse_head
from qk_study.figures import wanted_figures
from qk_study.plan import make_plans
from qk_study.reading import folder_names, read_study
from qk_study.steps import refuse_other_settings
from qk_toolkit.errors import ConfigError

DUMP = {"label": "B", "dump": "dump"}


def read(folder, content, **flags):
    path = folder / "study.yaml"
    text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
    path.write_text(text)
    return read_study([str(path)], flags)


def checked(folder, content):
    """All checks that come before any work."""
    settings = read(folder, content)
    wanted_figures(settings)
    make_plans(settings)
    return settings


def test_labels_are_names_of_places_by_default(tmp_path):
    settings = read(tmp_path, {"models": [{"dump": "dumps/one/"}, {"run": "s3://b/runs/two"}]})
    assert [model.label for model in settings.models] == ["one", "two"]
    hub = read(tmp_path, {"models": [{"dump": "hf://datasets/owner/name@branch"}]})
    assert hub.models[0].label == "branch"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"modls": []}, "modls: unknown field; did you mean models?"),
        ({}, "models: is required"),
        (
            {"models": [{"dump": "a", "run": "b"}]},
            "model 1: model: expected exactly one of model, dump and run, got dump and run",
        ),
        ({"models": [{"label": "x"}]}, "got none of them"),
        ({"models": [DUMP, DUMP]}, "model 2: label: 'B' is also that of model 1"),
        ({"models": [{**DUMP, "size": "1B"}]}, "size: expected a number above 0, got '1B'"),
        ({"models": [{"run": "s3://key:secret@bucket/run"}]}, "a URL with a password"),
        (
            {"models": [{"dump": "s3://bucket/dump?X-Amz-Signature=secret"}]},
            "s3://bucket/dump: a URL with '?' cannot be used",
        ),
        (
            {"models": [{"model": "m"}]},
            "model 1: m is a model (no folder here has this name), and its capture needs texts",
        ),
        ({"models": [DUMP], "texts": {"pth": "x"}}, "texts.pth: unknown field; did you mean"),
        ({"models": [DUMP], "figures": ["profile", "mop"]}, "figures: 'mop': unknown figure"),
        ({"models": [DUMP], "title": ""}, "title: expected"),
        ({"models": [DUMP], "analysis": {"output_dir": "x"}}, "tables are in the folders"),
        ({"models": [DUMP], "scores": "scores.csv"}, "scores: unknown field"),
        ("models: [{dump: a, dump: b}]", "'dump' is given twice"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path, content, message):
    with pytest.raises(ConfigError) as caught:
        checked(tmp_path, content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_settings_of_a_model_are_merged_with_the_shared_ones(tmp_path):
    content = """
output_dir: out
texts: {path: texts, max_samples: 8}
capture: {tokenizer: {max_length: 99}, model: {dtype: float32}}
analysis: {seed: 3, layers: 0-2}
models:
- label: A
  model: m
  revision: step-1
  capture:
    tokenizer: {max_length: 50}
    model: {config_overrides: {rope_parameters: {factor: 2.0}}}
  analysis: {seed: 4}
- {label: B, model: n}
"""
    one, other = make_plans(read(tmp_path, content))
    capture, repeated, analysis = one.parts
    assert repeated.values["model"] == capture.values["model"]
    assert repeated.folder == "out/repeated/a"
    config = capture.config
    assert (config.model.name, config.model.revision, config.model.dtype) == (
        "m",
        "step-1",
        "float32",
    )
    assert config.model.config_overrides == {"rope_parameters": {"factor": 2.0}}
    assert config.tokenizer.max_length == 50
    assert (config.dataset.path, config.dataset.max_samples) == ("texts", 8)
    assert (capture.folder, config.data_root) == ("out/dumps/a", "out/dumps/a")
    settings = analysis.config
    assert (settings.seed, settings.layers, settings.output_dir) == (4, [0, 1, 2], "out/runs/a")
    assert settings.dataset_local_root == "out/dumps/a"
    second = other.parts[0].config
    assert second.tokenizer.max_length == 99
    assert second.model.config_overrides is None


def plan_of(folder, capture, analysis, texts="texts", **more):
    content = {
        **more,
        "output_dir": str(folder / "out"),
        "texts": {"path": texts},
        "capture": capture,
        "analysis": analysis,
        "models": [{"label": "A", "model": "m"}],
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    [plan] = make_plans(read_study([str(folder / "study.yaml")], {}))
    return plan


CONTEXT = 512  # of the model


def begin(plan):
    """What a study leaves when it has begun the parts of a model."""
    for part in plan.parts:
        part.write_settings()
        if part.kind == "analysis":
            records = Path(part.folder) / ".heads" / "0"
            records.mkdir(parents=True)
            settings = part.analysis.model_dump(include={*ANALYSIS_FIELDS})
            (records / "settings.json").write_text(json.dumps(settings))
            continue
        unfinished = Path(part.folder) / ".capture"
        unfinished.mkdir(parents=True)
        (unfinished / "plan.json").write_text(json.dumps(recorded(part)))


def recorded(part):
    """The settings as the plan of a capture has them."""
    plan = part.capture.model_dump(
        include={"dataset", "model", "tokenizer", "inference", "capture"}
    )
    del plan["dataset"]["streaming"], plan["dataset"]["synthetic"], plan["model"]["device_map"]
    if made := part.capture.dataset.made:
        plan["dataset"]["synthetic"] = made.as_record()
    plan["model"] |= {"dtype": "float32", "attn_implementation": "sdpa"}
    plan["tokenizer"]["max_length"] = plan["tokenizer"]["max_length"] or CONTEXT
    return {**plan, "output": {"vector_dtype": part.capture.output.vector_dtype}}


def refusal(plan):
    try:
        refuse_other_settings(plan)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        ({"capture": {"head_sampling": {"count": 3}}}, {}, "capture.head_sampling ("),
        ({}, {"tokenizer": {"max_length": 9}}, "tokenizer.max_length (512 then, 9 now)"),
        ({}, {"model": {"dtype": "float16"}}, 'model.dtype ("float32" then, "float16" now)'),
        ({}, {"model": {"dtype": "float32", "attn_implementation": "sdpa"}}, ""),
        ({}, {"model": {"attn_implementation": "eager"}}, "model.attn_implementation ("),
        ({}, {"inference": {"batch_size": 2}}, ""),  # some models are run text by text
        ({"inference": {"batch_size": 3}}, {}, "inference.batch_size (3 then, 1 now)"),
        ({}, {"capture": {"sampler": {"seed": 1}}}, "capture.sampler.seed (0 then, 1 now)"),
        ({"capture": {"sampler": {"type": "all"}}}, {}, 'capture.sampler.type ("all" then'),
        ({}, {"capture": {"min_bucket_size": 8}}, "capture.min_bucket_size ("),
        ({}, {"output": {"vector_dtype": "float16"}}, "output.vector_dtype ("),
        ({}, {"model": {"device_map": "cuda"}}, ""),
        ({"capture": {"layers": "0-2"}}, {"capture": {"layers": [2, 1, 0]}}, ""),
        ({}, {"pair_sampling": "context"}, "pair_sampling ('bucket' then, 'context' now)"),
        ({}, {"max_workers": 3, "role_thresholds": {"previous": 0.5}}, ""),
    ],
)
def test_other_settings_are_refused_if_they_matter(tmp_path, then, now, words):
    of_analysis = "pair_sampling" in now or "max_workers" in now
    begin(plan_of(tmp_path, then, {}))
    told = refusal(plan_of(tmp_path, *(({}, now) if of_analysis else (now, {}))))
    assert words in told
    assert bool(told) == bool(words)


def test_a_removed_folder_may_be_made_with_other_settings(tmp_path):
    plan = plan_of(tmp_path, {}, {})
    begin(plan)
    changed = plan_of(tmp_path, {"tokenizer": {"max_length": 9}}, {})
    told = refusal(changed)
    assert told.startswith(
        f"A: {plan.captures[0].folder} was captured with other settings: tokenizer"
    )
    assert told.endswith("settings of then, or give the study another output_dir")
    shutil.rmtree(plan.captures[0].folder)
    assert refusal(changed) == ""


def test_whole_texts_after_texts_that_were_cut_are_refused(tmp_path):
    """The plan of a capture has the context of the model, if no length is given."""
    begin(plan_of(tmp_path, {"tokenizer": {"max_length": CONTEXT}}, {}))
    assert refusal(plan_of(tmp_path, {}, {})) == ""  # the study chooses: the length of then
    told = refusal(plan_of(tmp_path, {}, {}, one_length=False))
    assert "other settings: tokenizer.max_length (512 then, null now)" in told


def test_a_path_may_be_written_in_several_ways(tmp_path, monkeypatch):
    """`--texts ../texts` after `--texts ../texts/` is the same study."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    begin(plan_of(tmp_path, {}, {}, texts="../texts/"))
    for same in ("../texts", "../here/../texts", str(tmp_path / "texts")):
        assert refusal(plan_of(tmp_path, {}, {}, texts=same)) == ""
    told = refusal(plan_of(tmp_path, {}, {}, texts="texts"))
    assert "other settings: dataset.path (" in told
    assert "emove" not in told  # nobody is told to remove hours of work


@pytest.mark.parametrize("content", ["", "- 1\n", "{"])
def test_a_damaged_record_is_left_to_the_analysis(tmp_path, content):
    plan = plan_of(tmp_path, {}, {})
    begin(plan)
    Path(plan.run, ".heads", "0", "settings.json").write_text(content)
    assert refusal(plan_of(tmp_path, {}, {"pair_sampling": "context"})) == ""


def test_names_of_usual_labels():
    labels = ["SmolLM2 135M", "owner/name@step-1", "Qwen3-0.6B", "ünï_code"]
    assert folder_names(labels) == ["smollm2-135m", "owner-name-step-1", "qwen3-0.6b", "uni_code"]


def test_hostile_labels_stay_inside_the_folder():
    labels = ["../x", "/etc/passwd", "..", ".hidden", "a/../../b", "模型", "l00h00q", "-rf"]
    names = folder_names(labels)
    assert names[:5] == ["x", "etc-passwd", "model", "hidden", "a-b"]
    assert names[5].startswith("model-")  # another label without a name
    assert names[6:] == ["model-l00h00q", "rf"]


def test_labels_with_one_name_have_different_folders():
    names = folder_names(["A b", "a-b", "a B"])
    assert names[0] == "a-b"
    assert len(set(names)) == 3
    assert folder_names(["other", "A b", "a-b"])[2] == names[1]  # by its label alone


@settings(max_examples=25)
@given(st.lists(st.text(max_size=200), unique=True, max_size=8))
def test_names_are_different_and_plain(labels):
    names = folder_names(labels)
    assert len(set(names)) == len(labels)
    for name in names:
        assert PurePosixPath(name).name == name
        assert name.isascii()
        assert not name.startswith((".", "-"))
        assert parse_head(name) is None
        assert len(name) < 100
