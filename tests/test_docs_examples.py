"""Every example of the README and of docs/ runs as it stands.

A Python block runs alone, in a folder with runs and dumps under the names that the pages use. A
command of the analysis runs too; of other commands the flags are checked. A block whose first line
is `# needs the network` or `# needs a GPU` is not run.
"""

import itertools
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from attention_plasticity.cli import main as attention_plasticity
from attention_plasticity.config import make_config as analysis_config
from attention_plasticity.demo.sample import sample_path
from attention_plasticity.figures import style
from dumps import make_dump
from helpers import report_runs, run_tables
from helpers.added_tables import add_attention, add_drift, add_key_heads, add_roles, name_layout
from helpers.run_tables import add_bins
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_sniffer.cli import main as sniff_qk
from qk_sniffer.config import make_config as capture_config
from qk_study.plan import make_plans
from qk_study.reading import read_study
from qk_toolkit.errors import ConfigError

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "docs" / "first-study.md"  # end_to_end/test_first_study.py runs its commands
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {STUDY})]
SHORT = [ROOT / "README.md"]  # `make test-all` runs every page
MARK = re.compile(r"# needs (the network|a GPU)")
RUNS = [
    *("mine", "smollm2-135m", "a", "b", "c", "base", "tuned", "qwen3-0.6b", "qwen3-8b", "sample"),
    *(f"step-{number}000" for number in range(1, 5)),
]
RUN_VERBS = ("analyze", "plot", "report")
OTHER_PROGRAMS = ("pip", "python3", "export", "git")
LAUNCHERS = ("torchrun", "accelerate", "srun")
FLAG = re.compile(r"--[a-z_.-]+")


def blocks(language):
    """The fenced blocks of a language, with the page and the line as name."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.M | re.S):
            line = text.count("\n", 0, match.start()) + 1
            marks = () if page in SHORT or language == "yaml" else pytest.mark.long
            name = f"{page.relative_to(ROOT)}:{line}"
            found.append(pytest.param(match[1], id=name, marks=marks))
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with 13 layers that has every table, one with all heads of its model, and a dump."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_runs, "LAYERS", 13)
        patch.setattr(report_runs, "HEADS", 4)
        run = report_runs.write_run(folder / "run", model="owner/tiny", errors=True, position=True)
    add_drift(add_key_heads(add_roles(add_attention(run), bands=True)))
    add_key_heads(add_bins(run_tables.write_run(folder / "whole")))
    name_layout(folder / "whole", run_tables.LAYERS, run_tables.HEADS, run_tables.HEADS // 2)
    make_dump(folder / "dump", layers=1, q_heads=2, k_heads=1, n=200)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The current folder of all examples, so that they can use the same worker processes."""
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture
def workspace(made, folder, block, monkeypatch):
    """The current folder, with the files that the pages name, and those runs that a block names.

    A run that the block makes itself is not there.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setitem(style._STYLE, "savefig.dpi", 60)  # faster
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / "results").mkdir()
    for name in RUNS:
        if re.search(rf"(output_dir[ =]\"?|analyze \S+ )results/{name}\b", block):
            continue
        if f"results/{name}" in block or f"results/{name.split('-')[0]}-*" in block:
            kind = "whole" if "plasticity export results/" in block else "run"
            shutil.copytree(made / kind, folder / "results" / name)
    (folder / "path" / "to").mkdir(parents=True)
    (folder / "path" / "to" / "dump").symlink_to(sample_path())
    steps = "".join(f"step-{number}000,{number * number}\n" for number in range(1, 5))
    scores = f"model,ruler\nsmall,40\nmiddle,60\nlarge,50\n{steps}"
    (folder / "scores.csv").write_text(scores)
    return folder


@pytest.mark.parametrize("block", blocks("python"))
def test_a_python_block_runs(block, workspace, monkeypatch):
    code = compile(block, "example", "exec")
    if MARK.match(block):
        return
    if "load_dataset" in block:
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", workspace / "cache")
    exec(code, names_for(block))


def names_for(block):
    """What a reader of a block about models has: a model, its tokenizer and texts."""
    if "tokenizer" not in block:
        return {}
    from tiny_models import VOCABULARY, other_model
    from tiny_texts import some_text, tiny_tokenizer

    shape = {"num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2}
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 48, "head_dim": 8, "intermediate_size": 32}
    model = other_model("llama", shape | sizes)
    texts = [some_text(length) for length in (240, 260, 280, 300)]
    return {"model": model, "tokenizer": tiny_tokenizer(), "text": texts[0], "texts": texts}


@pytest.mark.parametrize("block", blocks("bash"))
def test_a_block_of_commands_runs(block, made, workspace, capsys):
    shutil.copytree(made / "dump", workspace / "data" / "mine")
    (workspace / "path" / "to" / "dump").unlink()
    shutil.copytree(made / "dump", workspace / "path" / "to" / "dump")  # faster than the sample
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        program, arguments = words[0] if words else "", expanded(words[1:])
        if program == "attention-plasticity":
            of_run = arguments[0] == "export" and arguments[1].startswith("results/")
            if arguments[0] == "study" and "--baselines" not in arguments:
                of_run = set(places(arguments)) <= set(RUNS)
            if (of_run or arguments[0] in RUN_VERBS) and not MARK.match(block):
                code = attention_plasticity(arguments)
                assert code == (1 if arguments[0] == "study" else 0), (
                    line
                )  # a head of `made` failed
            else:
                verb = arguments[: 2 if arguments[0] == "plot" else 1]
                require_flags(attention_plasticity, verb, arguments, capsys)
        elif program == "sniff-qk" or program in LAUNCHERS:
            own = re.split(r"sniff-qk|qk_sniffer", line)[-1]
            require_flags(sniff_qk, [], shlex.split(own, comments=True), capsys)
        elif program == "python":
            require_script(arguments)
        elif program == "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert arguments[0] in targets, line
        else:
            assert program in ("", *OTHER_PROGRAMS), line


def places(words):
    """The names of the runs that a command of a study begins with; other places as they are."""
    own = itertools.takewhile(lambda word: not word.startswith("-"), words[1:])
    return [word.removeprefix("results/") for word in own]


def expanded(words):
    """Words as a shell passes them: with the names of files, without a redirection."""
    if ">" in words:
        words = words[: words.index(">")]
    return [
        name
        for word in words
        for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
    ]


def require_flags(command, verb, arguments, capsys):
    known = set()
    for flag in ("--help", "--help_all"):  # the second lists rare flags; not every verb has some
        if flag == "--help" or flag in known:
            with pytest.raises(SystemExit, match="0"):
                command([*verb, flag])
            known.update(FLAG.findall(capsys.readouterr().out))
    assert {word for word in arguments if FLAG.fullmatch(word)} <= known


def require_script(arguments):
    """A script, a module or a file of settings exists in the repository."""
    if arguments[0] == "-m":
        assert (ROOT / arguments[1].replace(".", "/")).with_suffix(".py").is_file()
    elif arguments[0] != "-c":
        files = [word for word in arguments if word.endswith((".py", ".yaml"))]
        assert all((ROOT / name).is_file() for name in files), arguments


@pytest.mark.parametrize("block", blocks("yaml"))
def test_a_block_of_settings_is_accepted(block, tmp_path):
    settings = yaml.safe_load(block)
    if "models" in settings:
        (tmp_path / "study.yaml").write_text(block)
        assert make_plans(read_study([str(tmp_path / "study.yaml")], {}))
        return
    required = {"dataset": {"path": "texts/"}, "model": {"name": "model"}}
    refusals = []
    for accept, others in ((capture_config, required), (analysis_config, {})):
        try:
            accept({**others, **settings})
        except ConfigError as error:
            refusals.append(str(error))
    assert len(refusals) < 2, refusals
