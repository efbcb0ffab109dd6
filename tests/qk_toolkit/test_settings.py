"""Settings from flags and YAML: where a value comes from, and one line for each refusal."""

import os
import threading
from pathlib import Path

import pytest

import sectioned_settings
from flat_settings import FlatSettings, flag_error, from_flags, from_yaml, parser, saved, yaml_error
from qk_toolkit.command_line import FlagParser
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import add_switch, is_on, parse_flags
from qk_toolkit.settings import parse_indices, settings_from, validated
from sectioned_settings import SectionedSettings


def test_a_yaml_value_of_every_type(tmp_path):
    text = (
        "{batch_size: 3, rate: 0.25, pre_rope: true, dtype: float, model: x, cache_dir: y, "
        "layers: 0-2}"
    )
    assert from_yaml(tmp_path, text) == FlatSettings(
        batch_size=3,
        rate=0.25,
        pre_rope=True,
        dtype="float",
        model="x",
        cache_dir="y",
        layers=[0, 1, 2],
    )


def test_empty_yaml_and_null_give_the_defaults(tmp_path):
    for text in ("", "# nothing yet\n", "{}", "---\n", "cache_dir: null\nlayers: ~\nbuffer:\n"):
        assert from_yaml(tmp_path, text) == FlatSettings()


def test_fields_may_be_in_a_section_or_flat(tmp_path):
    for text, size in (("run:\n  batch_size: 5\n", 5), ("batch_size: 5\n", 5), ("run:\n", 2)):
        assert from_yaml(tmp_path, text, section="run").batch_size == size
    message = yaml_error(tmp_path, "run:\n  bach_size: 5\n", section="run")
    assert message == "bach_size: unknown field; did you mean batch_size?"
    for text in ("run: 3\n", "run: [batch_size]\n"):
        assert "expected 'name: value' lines" in yaml_error(tmp_path, text, section="run")
    text = "run:\n  rate: 0.1\nmodel: x\nbuffer: 3\n"
    message = yaml_error(tmp_path, text, section="run")
    assert message == "run: must hold all fields; move these into it: model, buffer"


def test_settings_can_come_from_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("batch_size: 7",), daemon=True)
    writer.start()
    assert settings_from(FlatSettings, yaml_path=path).batch_size == 7
    writer.join()


# indices


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("8,0-3", [0, 1, 2, 3, 8]),
        ("0", [0]),
        ("4-4", [4]),
        ("1, 2 ,3", [1, 2, 3]),
        ("3,1-3", [1, 2, 3]),
        (5, [5]),
        ([2, 1, 2], [1, 2]),
        ([], []),
    ],
)
def test_indices_are_sorted_without_duplicates(given, expected):
    assert parse_indices(given) == expected
    assert validated(FlatSettings, {"layers": given}).layers == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ("--pre_rope", "--batch_size", "3"),
        ("--pre-rope=true", "--batch-size=3"),
        ("--batch_size", "3", "--pre_rope", "YES"),
        ("--pre_rope", "1", "--batch_size", "2", "--batch-size", "3"),
    ],
    ids=" ".join,
)
def test_flags_are_accepted_in_every_spelling(arguments):
    assert from_flags(*arguments) == FlatSettings(pre_rope=True, batch_size=3)


@pytest.mark.parametrize("off", ["--no_pre_rope", "--no-pre-rope", "--pre_rope=no"])
def test_a_switch_of_the_file_is_turned_off_by_a_flag(off, tmp_path):
    file = saved(tmp_path, "pre_rope: true")
    assert from_flags("--batch_size", "3", yaml_path=file).pre_rope
    assert not from_flags(off, "--batch_size", "3", yaml_path=file).pre_rope


def switched(*words):
    """The place, and whether the switch is on."""
    made = FlagParser(prog="program", allow_abbrev=False)
    made.add_argument("place")
    add_switch(made, "overwrite", "replace files")
    flags = parse_flags(made, words)
    return flags["place"], is_on(flags, "overwrite")


def test_a_switch_takes_no_place_as_its_value():
    for words in (("out", "--overwrite"), ("--overwrite", "out"), ("--overwrite", "true", "out")):
        assert switched(*words) == ("out", True)
    for words in (("out",), ("out", "--no-overwrite"), ("--overwrite", "false", "out")):
        assert switched(*words) == ("out", False)
    with pytest.raises(ConfigError, match="--overwrite: expected true or false, got 'maybe'"):
        switched("out", "--overwrite=maybe")


def test_none_means_no_value_only_where_that_is_the_default():
    for text in ("none", "None", "NULL"):
        found = from_flags("--cache_dir", text, "--buffer", text, "--model", text)
        assert (found.cache_dir, found.buffer, found.model) == (None, None, text)


def test_unknown_flags_and_arguments():
    for argument, message in (
        ("--pre-rop", "--pre_rop: unknown flag; did you mean --pre_rope?"),
        ("--bach_size=3", "--bach_size: unknown flag; did you mean --batch_size?"),
        ("--batch", "--batch: unknown flag; did you mean --batch_size?"),  # no abbreviations
        ("--zzzzzz", "--zzzzzz: unknown flag; --help lists them all"),
        ("tiny", "'tiny': unexpected argument; put its flag before it, --flag tiny"),
    ):
        assert flag_error(argument, "--rate", "0.1") == message


# flags of sections


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--model.max-length", "did you mean --model.length?"),
        ("--texts", "did you mean --dataset.texts?"),
        ("--model.texts", "did you mean --dataset.texts?"),
        ("--dtype", "did you mean --model.weights.dtype?"),
        ("--model", ""),  # a section has no flag
    ],
)
def test_an_unknown_flag_of_a_section(flag, hint):
    name = flag[2:].replace("-", "_")
    message = sectioned_settings.flag_error(flag, "3")
    assert message.startswith(f"--{name}: unknown flag; {hint}")


def whole_help(capsys):
    with pytest.raises(SystemExit):
        parser(SectionedSettings).parse_args(["--help_all"])
    return capsys.readouterr().out


def test_rare_flags_are_in_the_whole_help_only(capsys):
    text = parser(SectionedSettings).format_help()
    for name in ("--dataset.skip", "--model.adapter", "--model.adapter.rank", "model.adapter:"):
        assert name not in text
        assert name in whole_help(capsys)
    assert "--dataset.texts" in text


BATCH_SIZE = "batch_size: expected an integer of at least 1, got"
RATE = "rate: expected a number above 0 and below 1, got"

# values


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("batch_size: many", f"{BATCH_SIZE} 'many'"),
        ("batch_size: 3.0", f"{BATCH_SIZE} 3.0"),
        ("batch_size: true", f"{BATCH_SIZE} true"),
        ("batch_size: 0", f"{BATCH_SIZE} 0"),
        ("batch_size: |\n  a\n  b\n", f"{BATCH_SIZE} 'a\\nb\\n'"),
        ("rate: 1.0", f"{RATE} 1.0"),
        ("rate: .nan", f"{RATE} nan"),
        ("buffer: 91", "buffer: expected an integer of at least 1 and of at most 90, got 91"),
        ("pre_rope: 'true'", "pre_rope: expected true or false, got 'true'"),
        ("dtype: double", "dtype: expected one of half, float, got 'double'"),
        ("model: {a: 1}", "model: expected text, got {'a': 1}"),
    ],
)
def test_a_wrong_value_in_yaml(tmp_path, line, message):
    assert yaml_error(tmp_path, line) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch_size", "many"), f"--{BATCH_SIZE} 'many'"),
        (("--batch_size", "none"), f"--{BATCH_SIZE} 'none'"),
        (("--rate", "nan"), f"--{RATE} nan"),
        (("--dtype", "Float"), "--dtype: expected one of half, float, got 'Float'"),
        *(
            (
                ("--layers", text),
                f"--layers: expected a list of integers such as 0-3,8, got {text!r}",
            )
            for text in ("1-", "3-1", "1,,2", "1.5", "1-2-3", "²", "0-99999999999")
        ),
        (("--batch_size", "5", "--buffer", "4"), "--buffer: smaller than batch_size"),
    ],
)
def test_a_wrong_value_of_a_flag(arguments, message):
    assert flag_error(*arguments) == message


def test_integers_beyond_64_bits(tmp_path):
    beyond = "does not fit 64 bits"
    for number in ("9" * 20, "9" * 300, "-" + "9" * 20, "-" + "9" * 300):
        for message in (
            yaml_error(tmp_path, f"batch_size: {number}"),
            flag_error("--batch_size", number),
        ):
            assert BATCH_SIZE in message
            assert beyond in message
        assert beyond in yaml_error(tmp_path, f"rate: {number}")
        assert beyond in yaml_error(tmp_path, f"layers: [1, {number}]")
    assert beyond in yaml_error(tmp_path, "batch_size: 0x" + "f" * 10_000)


def test_text_that_is_invalid_in_a_path(tmp_path):
    invalid = "which is invalid in a name or path"
    for field in ("model", "cache_dir"):
        message = yaml_error(tmp_path, f'{field}: "a\\0b"')
        assert message == f"{field}: holds the character NUL, {invalid}"
        message = yaml_error(tmp_path, f'{field}: "\\ud800"')
        assert message == f"{field}: holds '\\ud800', {invalid}"
    message = sectioned_settings.flag_error("--dataset.name", "caf\udce9")
    assert message == "--dataset.name: expected text in UTF-8, got 'caf\\udce9'"


# names


def test_an_unknown_name_comes_with_a_hint(tmp_path):
    for key in ("bach_size", "Batch_Size", "batch-size"):
        message = yaml_error(tmp_path, f"{key}: 3")
        assert message == f"{key}: unknown field; did you mean batch_size?"
    for key in ("zzzz", "3", "2024-01-01", "~", "!!binary aGk=", '"a\\nb"'):
        assert "unknown field" in yaml_error(tmp_path, f"{key}: 3")
    assert yaml_error(tmp_path, "zzzz: 3") == "zzzz: unknown field"


# files


LAUGHS = "\n".join(
    [
        "a0: &a0 [lol]",
        *(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(12)),
        "batch_size: *a12",
    ]
)
INVALID_YAML = {
    "nested lists": ("rate: " + "[" * 2000 + "]" * 2000, "it is nested too deep"),
    "a list in itself": ("batch_size: &a [*a]", ""),
    "billion laughs": (LAUGHS, ""),
    "a large file": ("# " + "x" * 1_000_000, "is larger than 1,000,000 bytes"),
    "timestamp": ("rate: !!timestamp x", "is not valid YAML"),
    "date": ("model: 2024-13-45\n", "is not valid YAML"),
    "int": ('rate: !!int ""', "is not valid YAML"),
    "a list as key": ("? [a]\n: b", "is not valid YAML"),
    "NUL": (b"rate: \0", "is not valid YAML"),
    "not UTF-8": (b"model: \xe9", "cannot be read"),
    "5,000 digits": ("rate: " + "9" * 5000, "is not valid YAML"),
    "indentation": ("batch_size: 3\n  rate: 1\n", "is not valid YAML: line 2: "),
    "a tab": ("\trate: 3", "line 1: indent with spaces, not tabs"),
    "two documents": ("rate: 3\n---\nrate: 4\n", "is not valid YAML"),
    "an unknown alias": ("rate: *missing\n", "is not valid YAML"),
    "a duplicate key": ("rate: 3\nmodel: x\nrate: 4\n", "line 3: 'rate' is given twice"),
    "a duplicate in a section": ("a:\n  rate: 3\n  rate: 4\n", "line 3: 'rate' is given twice"),
    "a list": ("- rate\n", "expected 'name: value' lines"),
    "a Python object": ("model: !!python/name:os.getcwd", "could not determine a constructor"),
}


@pytest.mark.parametrize(("text", "problem"), INVALID_YAML.values(), ids=INVALID_YAML)
def test_a_file_that_is_not_valid(tmp_path, text, problem):
    message = yaml_error(tmp_path, text)
    assert problem in message
    assert len(message) < 300


@pytest.mark.parametrize("path", ["/dev/zero", "a\0b", "\ud800", "/", "missing.yaml"])
def test_a_path_that_is_not_a_settings_file(path):
    with pytest.raises(ConfigError) as caught:
        settings_from(FlatSettings, yaml_path=Path(path))
    assert "\n" not in str(caught.value)
    if path == "missing.yaml":
        assert str(caught.value) == "missing.yaml: does not exist"
