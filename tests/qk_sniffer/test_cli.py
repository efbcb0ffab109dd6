"""`sniff-qk` and `attention-plasticity capture`: help, flags, exit codes, what is started."""

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from attention_plasticity.cli import main as attention_plasticity
from qk_sniffer.cli import main as sniff_qk
from qk_sniffer.config import CaptureConfig
from qk_toolkit.settings import fields_of

ROOT = Path(__file__).parents[2]
REQUIRED = ["--model.name", "m", "--dataset.path", "d", "--output.data_root", "o"]

Started = list[tuple[str, CaptureConfig]]


@pytest.fixture
def started(monkeypatch):
    """Captures and dry runs that the command starts, which here do nothing."""
    calls = []

    def note(name):
        return lambda config, *_: calls.append((name, config))

    replace(monkeypatch, "capture.run", run_capture=note("capture"))
    replace(monkeypatch, "capture.estimate", estimate=note("dry_run"))
    replace(monkeypatch, "summary", print_result=ignore, print_estimate=ignore)
    return calls


def ignore(*_):
    """Print nothing."""


def replace(monkeypatch, name, **functions):
    module = ModuleType(f"qk_sniffer.{name}")
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def help_of(words, capsys):
    with pytest.raises(SystemExit) as left:
        (sniff_qk if len(words) == 1 else attention_plasticity)(words)
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help_all"], ["capture", "--help_all"]])
def test_help_explains_every_field_and_ends_with_commands(words, capsys):
    text = help_of(words, capsys)
    assert text.startswith(f"usage: {'sniff-qk' if len(words) == 1 else 'attention-plasticity'} ")
    for name, field in fields_of(CaptureConfig).items():
        if field.description:
            assert re.search(rf"--{re.escape(name)}\s", text)
            assert " ".join(field.description.split()[:3]) in " ".join(text.split())
    assert "sniff-qk --config" in text[text.index("commands to paste") :]


def test_the_commands_to_paste_work(started, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = help_of(["--help"], capsys)
    pasted = text[text.index("commands to paste") :].replace("\\\n", " ")
    commands = re.findall(r"^  (sniff-qk|attention-plasticity) (.*)$", pasted, re.M)
    assert len(commands) == 3
    for program, words in commands:
        run = sniff_qk if program == "sniff-qk" else attention_plasticity
        assert run(shlex.split(words)) == 0
    assert len(started) == len(commands)


@pytest.mark.parametrize("command", [sniff_qk, lambda w: attention_plasticity(["capture", *w])])
def test_flags_and_the_config_reach_the_capture(command, started, tmp_path):
    path = tmp_path / "capture.yaml"
    path.write_text("model: {name: a, dtype: bfloat16}\ncapture: {head_sampling: {count: 9}}\n")
    words = ["--config", str(path), *REQUIRED, "--capture.head-sampling.seed=5"]
    assert command(words) == 0
    ((name, config),) = started
    assert name == "capture"
    assert (config.model.name, config.model.dtype) == ("m", "bfloat16")
    assert config.capture.head_sampling.model_dump() == {"count": 9, "seed": 5}
    assert command([*REQUIRED, "--dry_run"]) == 0
    assert [name for name, _ in started] == ["capture", "dry_run"]


def test_what_the_capture_works_on_comes_first_and_without_a_flag(started):
    assert attention_plasticity(["capture", "m", "texts/", "data/m", "--dry-run"]) == 0
    assert sniff_qk(["m", "texts/", "data/m", "--engine", "hf"]) == 0
    for _, config in started:
        given = config.model.name, config.dataset.path, config.output.data_root
        assert given == ("m", "texts/", "data/m")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--dataset.path: is required (Hub dataset, or"),
        (["m", "a.txt", "b.txt", "d"], "capture takes MODEL TEXTS DUMP, got 4 places; for the "),
        (["m", "t", "--model.name=n"], "--model.name: MODEL is given twice; leave one out"),
        (["--max_length", "3"], "--max_length: unknown flag; did you mean --tokenizer.max_length?"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(words, told, started, capsys):
    assert sniff_qk(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {told}")
    assert captured.err.count("\n") == 1
    assert not started
