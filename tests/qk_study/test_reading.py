"""A study from the words of a command: models, dumps and runs one after another."""

from contextlib import chdir

import pytest

from dumps import make_dump
from helpers.report_runs import write_run
from qk_study.command import run_study, settings_of
from qk_study.plan import make_plans
from qk_study.reading import kind_of
from qk_toolkit.errors import ConfigError


@pytest.fixture
def place(tmp_path):
    """A folder with a model, a dump and a run."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1, n=20)
    write_run(tmp_path / "run", 0)
    return tmp_path


def read(place, *words):
    with chdir(place):
        return settings_of(words)


def test_places_are_models_dumps_and_runs(place):
    with chdir(place):
        kinds = [kind_of(name) for name in ("model", "dump", "run", "owner/name")]
    assert kinds == ["model", "dump", "run", "model"]
    assert kind_of("hf://datasets/owner/name@branch") == "dump"
    (place / "dump" / "dump.json").unlink(missing_ok=True)  # a dump of another tool
    assert kind_of(str(place / "dump")) == "dump"


def test_words_give_the_entries_of_a_file(place):
    settings = read(place, "run", "dump", "--labels", "first,second", "--title", "Both")
    assert [(one.label, one.entry.source) for one in settings.models] == [
        ("first", "run"),
        ("second", "dump"),
    ]
    assert (settings.output_dir, settings.content.title) == ("results/study", "Both")
    assert settings.words[:2] == ("run", "dump")
    assert read(place, "run").output_dir == "results/study-run-run"


def test_flags_of_captures_and_analyses_have_the_same_names(place):
    (place / "study.yaml").write_text(
        "texts: {path: texts}\ncapture: {model: {dtype: float32}, tokenizer: {max_length: 7}}\n"
        "models: [{model: model, capture: {tokenizer: {max_length: 8}}}]\n"
    )
    flags = ("--tokenizer.max_length", "9", "--seed", "5", "--capture.layers", "0-2")
    settings = read(place, "study.yaml", *flags, "--texts.max_samples", "3")
    capture, _, analysis = make_plans(settings)[0].parts
    config = capture.config
    assert (config.tokenizer.max_length, config.model.dtype) == (9, "float32")
    assert config.capture.layers == [0, 1, 2]
    assert (config.dataset.path, config.dataset.max_samples) == ("texts", 3)
    assert analysis.config.seed == 5


def test_repeated_tokens_have_the_model_and_the_heads_of_the_texts(place):
    words = ("model", "--texts", "texts", "--capture.heads", "1", "--model.dtype", "bfloat16")
    [plan] = make_plans(read(place, *words, "--tokenizer.max_length", "64"))
    repeated = plan.captures[1].config
    assert repeated.dataset.made.as_record() == {
        **{"type": "repeated", "length": 512, "period": 256, "number": 16, "seed": 0}
    }
    assert (repeated.model.dtype, repeated.capture.heads) == ("bfloat16", [1])
    assert repeated.tokenizer.max_length is None
    assert not repeated.capture.capture_keys
    analysis = plan.analysis.config
    assert analysis.repeated == "results/study-model/repeated/model"
    for more in (("--repeated_texts", "0"), ("--capture.attention", "false")):
        [plan] = make_plans(read(place, *words, *more))
        assert [part.kind for part in plan.parts] == ["capture", "analysis"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model",), "is a model, and its capture needs texts; add --texts FOLDER"),
        (
            ("no file.txt",),
            "no file.txt: does not exist; expected a YAML file (.yaml), the folder of a run",
        ),
        (("model", "--texts", "t", "--model.dtypes", "1"), "did you mean --model.dtype?"),
        (("model", "--texts", "t", "--seed", "x"), "--seed: expected an integer"),
        (("run", "run"), "label: 'run' is also that of model 1"),
        (("run", "--texts", "t"), "--texts: has no effect on dumps and runs without --baselines"),
        ((), "the following arguments are required: PLACE"),
    ],
)
def test_wrong_words_are_refused(place, words, message):
    with pytest.raises(ConfigError) as caught:
        make_plans(read(place, *words))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["study.json", ".study.lock"], ids=["finished", "begun"])
def test_the_folder_of_a_study_is_no_run(place, name):
    with pytest.raises(ConfigError, match=r"holds no run \(run.json\), no dump"):
        kind_of(str(place))
    (place / name).write_text("{}")
    with pytest.raises(ConfigError, match="is the folder of a study; give the runs in"):
        kind_of(str(place))


@pytest.mark.parametrize(
    ("name", "words"), [("run.json", "results of an analysis"), ("dump.json", "a dump")]
)
def test_a_study_is_not_made_in_the_folder_of_another_command(place, tmp_path, name, words):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("{}")
    told = f"output_dir: {out}: holds {words} ({name}); choose another folder"
    for more in ((), ("--dry_run",)):
        settings = read(place, "run", "--output_dir", str(out), *more)
        with chdir(place), pytest.raises(ConfigError) as caught:
            run_study(settings)
        assert str(caught.value) == told
    assert [path.name for path in out.iterdir()] == [name]
