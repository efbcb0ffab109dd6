"""Flags: their spellings, their help, and unknown flags."""

from __future__ import annotations

import pytest

import sectioned_settings
from flat_settings import FlatSettings, flag_error, from_flags, parser
from sectioned_settings import SectionedSettings


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
def test_flags_are_accepted_in_every_spelling(arguments: tuple[str, ...]) -> None:
    assert from_flags(*arguments) == FlatSettings(pre_rope=True, batch_size=3)


def test_none_means_no_value_only_where_that_is_the_default() -> None:
    for text in ("none", "None", "NULL"):
        found = from_flags("--cache_dir", text, "--buffer", text, "--model", text)
        assert (found.cache_dir, found.buffer, found.model) == (None, None, text)


def test_unknown_flags_and_arguments() -> None:
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
def test_an_unknown_flag_of_a_section(flag: str, hint: str) -> None:
    name = flag[2:].replace("-", "_")
    message = sectioned_settings.flag_error(flag, "3")
    assert message.startswith(f"--{name}: unknown flag; {hint}")


def whole_help(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        parser(SectionedSettings).parse_args(["--help_all"])
    return capsys.readouterr().out


def test_rare_flags_are_in_the_whole_help_only(capsys: pytest.CaptureFixture[str]) -> None:
    text = parser(SectionedSettings).format_help()
    for name in ("--dataset.skip", "--model.adapter", "--model.adapter.rank", "model.adapter:"):
        assert name not in text
        assert name in whole_help(capsys)
    assert "--dataset.texts" in text
