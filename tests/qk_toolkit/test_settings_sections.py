"""Settings in sections: where a value comes from, and the messages of refusals."""

import pytest

from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import settings_from
from sectioned_settings import (
    Adapter,
    Dataset,
    Model,
    SectionedSettings,
    Weights,
    flag_error,
    from_yaml,
    yaml_error,
)

NAMED = "dataset: {name: a}\n"


def settings(**sections):
    return SectionedSettings(dataset=Dataset(name="a"), **sections)


# where a value comes from


def test_a_flag_overrides_one_field_at_any_depth(tmp_path):
    text = "dataset: {name: b, texts: 7}\nmodel: {length: 3, weights: {dtype: float}}\n"
    arguments = ("--dataset.name=a", "--dataset.skip", "2", "--model.weights.dropout", "0.75")
    found = from_yaml(tmp_path, text, *arguments, "--pre-rope")
    assert found.pre_rope
    assert found.dataset == Dataset(name="a", texts=7, skip=2)
    assert found.model == Model(length=3, weights=Weights(dtype="float", dropout=0.75))


# an optional section


def test_a_flag_inside_an_optional_section_creates_it(tmp_path):
    for text in ("", "model: {adapter: null}\n", "model: {length: 20}\n"):
        found = from_yaml(tmp_path, NAMED + text, "--model.adapter.layers", "1-3")
        assert found == settings(model=Model(adapter=Adapter(layers=[1, 2, 3])))


def test_a_flag_removes_an_optional_section(tmp_path):
    text = NAMED + "model: {adapter: {layers: 1-3, rank: 4}}\n"
    for value in ("none", "None"):
        assert from_yaml(tmp_path, text, "--model.adapter", value).model.adapter is None
    arguments = ("--model.adapter.layers", "5", "--model.adapter", "none")
    assert from_yaml(tmp_path, text, *arguments).model.adapter == Adapter(layers=[5])


def test_an_optional_section_is_none_or_its_fields(tmp_path):
    message = flag_error("--model.adapter", "big")
    assert message.startswith("--model.adapter: invalid choice: 'big'")
    assert "--model.adapter.layers: is required" in flag_error(
        "--model.adapter", "--dataset.name", "a"
    )
    with pytest.raises(ConfigError, match=r"^--model.adapter: expected name: value lines, got 'x'"):
        settings_from(SectionedSettings, flags={"model.adapter": "x"})
    message = yaml_error(tmp_path, NAMED + "model: {adapter: {rank: 3}}\n")
    assert message == "FILE: model.adapter.layers: is required (layers to adapt)"


# mappings


def test_a_mapping_comes_from_yaml_or_as_a_whole_from_a_flag(tmp_path):
    text = "dataset: {name: a, options: {b: 3, c: {d: 1e1}}}\n"
    assert from_yaml(tmp_path, text).dataset.options == {"b": 3, "c": {"d": 10.0}}
    found = from_yaml(tmp_path, text, "--dataset.options", "{e: {d: 1e1}}")
    assert found.dataset.options == {"e": {"d": 10.0}}
    assert from_yaml(tmp_path, text, "--dataset.options", "none").dataset.options is None


def test_a_value_that_is_not_a_mapping_of_names(tmp_path):
    expected = "dataset.options: expected a mapping such as {name: value}, got "
    for value in ("x", "3", "[x]", "{1: 2}", "true"):
        text = f"dataset: {{name: a, options: {value}}}\n"
        assert yaml_error(tmp_path, text).startswith(f"FILE: {expected}")
        message = flag_error("--dataset.name=a", f"--dataset.options={value}")
        assert message.startswith(f"--{expected}")


# refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model: {weights: {dtype: x}}",
            "model.weights.dtype: expected one of half, float, got 'x'",
        ),
        ("model: tiny", "model: expected name: value lines, got 'tiny'"),
        ("model: {adapter: 3}", "model.adapter: expected name: value lines, got 3"),
        ("model: {lengt: 3}", "model.lengt: unknown field; did you mean length?"),
        ("model: {zzzz: 3}", "model.zzzz: unknown field"),
        ("model: {texts: 3}", "model.texts: unknown field; did you mean dataset.texts?"),
        ("length: 3", "length: unknown field; did you mean model.length?"),
        ("model: {dtype: x}", "model.dtype: unknown field; did you mean model.weights.dtype?"),
        ("model.length: 3", "model.length: unknown field; did you mean model?"),
    ],
)
def test_a_yaml_error_names_the_dotted_field(tmp_path, text, message):
    assert yaml_error(tmp_path, NAMED + text) == f"FILE: {message}"


def test_a_missing_field(tmp_path):
    missing = "dataset.name: is required (name on the Hub)"
    for text in ("", "dataset:\n", "dataset: {}\n", "dataset: {texts: 3}\n"):
        assert yaml_error(tmp_path, text) == f"FILE: {missing}"
    assert flag_error("--model.length", "3") == f"--{missing}"


# from Python
