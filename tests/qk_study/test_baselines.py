"""`study --baselines`: several draws of random weights and shuffled tokens of a real tiny model."""

import json
import math
import shutil
from contextlib import chdir
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import t as student

from attention_plasticity.tables.baselines import (
    baseline_lines,
    level_difference,
    level_of,
    levels,
    record_capture,
    satterthwaite,
)
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_means import MeanEstimate
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from commands_here import analyze_here
from helpers.small_study import study_in
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_study.baselines import baseline_plans, baseline_values
from qk_study.reading import read_study
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import with_half
from qk_toolkit.model_files import files_hash
from sniffing import sniff
from tiny_texts import save_texts, save_tiny_model

NAMES = ("random", "random-1", "shuffled")
TEXTS = 4
WORDS = ("run", "--baselines", "2", "--baseline_texts", str(TEXTS), "--figures", "none")


@pytest.fixture(scope="module")
def analysed(tmp_path_factory):
    """A folder with a run without baselines, of two layers of a random llama."""
    folder = tmp_path_factory.mktemp("analysed")
    save_tiny_model(folder / "model")
    save_texts(folder / "texts", [300] * 6)
    with chdir(folder):
        fields = {"capture.layers": "0,2", "capture.attention": "false"}
        assert sniff(Path("model"), Path("texts"), Path("dump"), **fields) == 0
        told = analyze_here("dump", "--output_dir", "run", "--bin_size", 16)
    assert told.returncode == 0
    return folder


@pytest.fixture(scope="module")
def finished(analysed, tmp_path_factory):
    """The same with the baselines of the run."""
    place = Path(shutil.copytree(analysed, tmp_path_factory.mktemp("finished") / "place"))
    assert study_in([str(place), *WORDS, "--max_workers", "1"]) == 0
    return place


def info_of(run):
    return dict(json.loads((run / "run.json").read_text()))


def test_baselines_are_captured_and_analysed_as_the_run(finished):
    own = info_of(finished / "run")
    found = {name: info_of(finished / "run" / "baseline" / name) for name in NAMES}
    for name, one in found.items():
        dump = one["input"]["dump"]
        assert dump["num_examples"] == TEXTS
        assert one["heads"] == own["heads"] | {"analysed": 8}
        assert one["bin_size"] == own["bin_size"] == 16
        assert dump["capture"]["tokenizer"] == own["input"]["dump"]["capture"]["tokenizer"]
        assert dump["capture"]["capture"]["layers"] == [0, 2]
        names = pd.read_parquet(finished / "run/baseline" / name / "dump/examples.parquet")
        assert names["original_id"].tolist() == [f"{n:03d}.txt" for n in (0, 1, 3, 4)]  # of 6
        # 6 texts of rate 8 have 48 queries per bucket of 16 tokens, and so have 4 texts
        assert dump["sampler"]["base_rate"] == 12.0
    seeds = [found[name]["input"]["dump"]["capture"]["model"]["random_seed"] for name in NAMES[:2]]
    assert seeds == [0, 1]
    levels = [found[name]["means"]["ap_aligned"]["value"] for name in NAMES[:2]]
    assert levels[0] != levels[1]
    assert found["shuffled"]["input"]["dump"]["synthetic"]["type"] == "shuffled"


def test_a_dry_run_has_the_rows_and_bytes_of_every_baseline(analysed, capsys):
    before = sorted(analysed.rglob("*"))
    assert study_in([str(analysed), *WORDS, "--dry_run"]) == 0
    assert sorted(analysed.rglob("*")) == before
    lines = capsys.readouterr().out.splitlines()
    for words in ("random weights, draw 1", "random weights, draw 2", "shuffled tokens"):
        [line] = [one for one in lines if f" {words} " in one]
        heads, texts, rows, size, unit = line.split(words)[1].split()[:5]
        assert (heads, texts) == ("8", "4")
        assert int(rows.replace(",", "")) > 0
        assert float(size) > 0
        assert unit in ("kB", "MB")
    assert "run: 4 of 6 texts, at even steps" in lines
    assert any(line.startswith("Time: ") for line in lines)


def test_a_repeated_command_changes_no_baseline(finished, capsys):
    folder = finished / "run" / "baseline"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert study_in([str(finished), *WORDS]) == 0
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    changed = {path.name for path in before if before[path] != after[path]}
    assert changed <= {f"{name}.analysis.yaml" for name in NAMES}  # another number of workers
    assert "shuffled tokens: run/baseline/shuffled/dump is captured already" in (
        capsys.readouterr().err
    )


def test_the_error_between_draws_is_in_table_and_summary(finished, capsys):
    means = [info_of(finished / "run" / "baseline" / name)["means"] for name in NAMES]
    values = [one["ap_aligned"]["value"] for one in means[:2]]
    texts = sum(one["ap_aligned"]["standard_error"] ** 2 for one in means[:2]) / 2
    draws = (values[0] - values[1]) ** 2 / 4  # the variance of two values, divided by two
    table = pd.read_csv(finished / "results" / "study-run-baselines" / "tables" / "baselines.csv")
    rows = table.fillna({"minus": ""}).set_index(["run", "minus", "metric"])
    row = rows.loc[("run (random weights)", "", "ap_aligned")]
    assert row["mean"] == pytest.approx(sum(values) / 2)
    assert row["se"] == pytest.approx(math.sqrt(texts + draws))
    assert row["draws"] == 2
    change = rows.loc[("run", "run (shuffled tokens)", "ap_aligned_drop_position")]
    own = info_of(finished / "run")["means"]["ap_aligned_drop_position"]
    other = means[2]["ap_aligned_drop_position"]
    assert change["mean"] == pytest.approx(own["value"] - other["value"])
    squares = own["standard_error"] ** 2 + other["standard_error"] ** 2
    assert change["se"] == pytest.approx(math.sqrt(squares))
    lines = "\n".join(baseline_lines(FinishedRun.open(finished / "run"), AT_ONE_POSITION))
    level = with_half(row["mean"], row["high"] - row["mean"])
    assert f"random weights: {level}" in lines
    assert "8 heads, 4 texts, 2 draws; ± has the error between draws" in lines
    half = change["high"] - change["mean"]
    told = f"drop from position minus that of shuffled tokens: {with_half(change['mean'], half)}: "
    assert told in lines
    unshown = "it is not shown that it comes from content" in lines
    assert unshown == (abs(change["mean"]) < half)


def mean_of(value, error, groups=9):
    return MeanEstimate(value, error, 8, groups, (math.nan,) * 16)


def test_two_draws_that_differ_have_a_wide_interval():
    level = level_of([mean_of(0.89, 0.002), mean_of(0.83, 0.002)])
    assert level.standard_error == pytest.approx(math.sqrt(0.03**2 + 0.002**2))
    assert level.half == pytest.approx(level.standard_error * student.ppf(0.975, level.freedom))
    assert 1.0 < level.freedom < 1.1
    one = level_of([mean_of(0.89, 0.002)])
    assert (one.standard_error, one.freedom) == (pytest.approx(0.002), 8.0)
    assert math.isnan(level_of([mean_of(0.5, 0.002), mean_of(0.5, math.nan)]).half)


def test_a_difference_is_welchs():
    one, other = level_of([mean_of(0.5, 0.03, 6)]), level_of([mean_of(0.4, 0.04, 11)])
    found = level_difference(one, other)
    assert (found.value, found.standard_error) == (pytest.approx(0.1), pytest.approx(0.05))
    welch = 0.05**4 / (0.03**4 / 5 + 0.04**4 / 10)
    assert found.freedom == pytest.approx(welch)
    assert satterthwaite([(1.0, 4.0), (0.0, 1.0)]) == pytest.approx(4.0)


@pytest.mark.long
def test_baselines_of_other_settings_are_not_shown(finished, tmp_path):
    place = Path(shutil.copytree(finished, tmp_path / "place"))
    with chdir(place):
        told = analyze_here(
            *("dump", "--output_dir", "run", "--bin_size", 16, "--pair_sampling", "context")
        )
    assert (
        'made with other settings, not shown: pair_sampling ("bucket" then, "context" now); '
        "attention-plasticity study run --baselines makes them"
    ) in " ".join(told.stdout.split())
    run = FinishedRun.open(place / "run")
    assert levels(run, ["ap_aligned"])["ap_aligned"].keys() == {""}
    assert run.baselines == {}
    assert list(FinishedRun.open(finished / "run").baselines) == [
        "random weights",
        "shuffled tokens",
    ]
    assert study_in([str(place), *WORDS]) == 0  # the dumps stay, the analyses are made again
    shown = info_of(place / "run" / "baseline" / "random")["config"]["pair_sampling"]
    assert shown == "context"


def recorded(texts=64, **changes):
    """A run whose run.json has a capture; `model__commit=…` changes its record."""
    capture = {
        "dataset": {"path": "owner/texts", "name": "en", "split": "test", "max_samples": 64},
        "model": {"name": "owner/model", "dtype": "bfloat16", "device": "cuda", "files": "ab12"},
        "tokenizer": {"max_length": 4096, "add_special_tokens": False},
        "inference": {"batch_size": 4},
        "capture": {
            "sampler": {"type": "uniform", "base_rate": 2.0, "key_base_rate": 4.0, "seed": 3},
            "min_bucket_size": 256,
            "layers": [0, 1, 2],
            "attended_keys": 32,
        },
        "output": {"vector_dtype": "float16"},
    }
    for name, value in changes.items():
        section, field = name.split("__")
        capture[section][field] = value
    dump = {"capture": capture, "num_examples": texts}
    return FinishedRun(Path("results/mine"), {"config": {}, "input": {"dump": dump}})


def settings(**flags):
    return read_study(["hf://datasets/a/b@c"], {"baselines": "1", **flags})


def test_a_baseline_has_the_settings_of_the_capture():
    [random, shuffled] = baseline_plans_of(recorded())
    assert (random["model"]["random_weights"], random["model"]["random_seed"]) == (True, 0)
    assert random["model"]["dtype"] == "bfloat16"
    assert random["dataset"] == {
        **{"path": "owner/texts", "name": "en", "split": "test"},
        **{"max_samples": 64, "spread_samples": 8},
    }
    assert random["tokenizer"] == {"max_length": 4096, "add_special_tokens": False}
    assert random["capture"]["layers"] == [0, 1, 2]
    assert random["output"] == {"vector_dtype": "float16"}
    assert shuffled["dataset"]["synthetic"] == {"texts": "owner/texts"}
    assert "random_weights" not in shuffled["model"]
    assert shuffled["capture"] == random["capture"]


def baseline_plans_of(run, **flags):
    own = settings(**flags)
    return [baseline_values(run, kind, 0, own) for kind in ("random", "shuffled")]


@pytest.mark.parametrize(
    ("rate", "texts", "expected"),
    [
        (2.0, 64, 16.0),  # 128 queries of a bucket from 64 texts, and from 8
        (1.0, 16, 2.0),  # 16, as in the run
        (4.0, 640, 16.0),  # 128 are enough
    ],
)
def test_fewer_texts_have_more_rows_each(rate, texts, expected):
    sampler = {"type": "uniform", "base_rate": rate, "key_base_rate": 4 * rate, "seed": 0}
    [found, _] = baseline_plans_of(recorded(texts, capture__sampler=sampler))
    assert found["capture"]["sampler"]["base_rate"] == expected
    assert found["capture"]["sampler"]["key_base_rate"] == 4 * expected
    assert found["dataset"]["max_samples"] == texts
    assert found["dataset"]["spread_samples"] == min(8, texts)


def test_a_model_and_texts_that_moved_are_given():
    run = recorded(model__revision="main", model__commit="c0ffee", model__dtype="float64")
    [found, _] = baseline_plans_of(run)
    assert (found["model"]["revision"], found["model"]["dtype"]) == ("c0ffee", "auto")
    flags = {"baseline_model": "here", "texts.path": "there", "texts.streaming": "true"}
    [_, moved] = baseline_plans_of(run, **flags)
    assert (moved["model"]["name"], moved["model"]["revision"]) == ("here", None)
    assert moved["dataset"]["synthetic"] == {"texts": "there"}
    assert moved["dataset"]["streaming"]
    assert moved["dataset"]["max_samples"] == 8  # of a stream the first ones
    assert "spread_samples" not in moved["dataset"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__name": None}, "does not record the model and the texts of a capture"),
        ({"dataset__synthetic": {"type": "repeated"}}, "captured with made texts"),
        ({"tokenizer__max_length": -4}, "its capture cannot be repeated: tokenizer.max"),
    ],
)
def test_a_capture_that_cannot_be_repeated_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        baseline_plans(settings(), recorded(**changes))


def test_baselines_of_a_run_of_a_study_leave_the_study_as_it_is(finished, tmp_path, capsys):
    """The run of `study MODEL` is in `results/study-MODEL/runs/MODEL`."""
    place = tmp_path / "place"
    study = place / "results" / "study-model"
    shutil.copytree(finished / "run", study / "runs" / "model")
    (study / "README.md").write_text("hours of work")
    record = {"models": [{"source": "model", "place": "owner/model"}]}
    (study / "study.json").write_text(json.dumps(record))
    before = {path.name: path.read_bytes() for path in study.iterdir() if path.is_file()}
    run = "results/study-model/runs/model"
    assert study_in([str(place), run, *WORDS[1:]]) == 0
    assert {path.name: path.read_bytes() for path in study.iterdir() if path.is_file()} == before
    assert (place / "results" / "study-model-baselines" / "tables" / "baselines.csv").is_file()
    capsys.readouterr()
    given = [str(place), run, *WORDS[1:], "--output_dir", "results/study-model"]
    assert study_in(given) == 2
    assert "results/study-model: holds a study of 'owner/model'; choose" in capsys.readouterr().err


def test_a_run_whose_baselines_fail_is_kept(analysed, tmp_path, capsys):
    place = Path(shutil.copytree(analysed, tmp_path / "place"))
    assert study_in([str(place), *WORDS, "--baseline_model", "nowhere/here/x"]) == 1
    told = capsys.readouterr()
    assert "--baseline_model and --texts give a model" in told.err
    assert "failed: run (baselines); the reasons are in" in told.out
    text = (place / "results" / "study-run-baselines" / "README.md").read_text()
    assert "- run: baselines: model.name: nowhere/here/x" in text
    assert (place / "results" / "study-run-baselines" / "tables" / "means.csv").is_file()
    info = info_of(place / "run")
    record_capture(place / "run", info)
    info["input"]["dump"]["capture"]["tokenizer"]["max_length"] = 100
    with pytest.raises(ConfigError, match=r"tokenizer.max_length \(.* then, 100 now\)"):
        record_capture(place / "run", info)


def test_baselines_of_other_weights_are_refused(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"now")
    run = recorded(model__name=str(model), model__files="then")
    with pytest.raises(ConfigError, match="model has other files now than when it was captured"):
        baseline_plans_of(run)
    baseline_plans_of(recorded(model__name=str(model), model__files=files_hash(model)))
