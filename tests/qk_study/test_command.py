"""`attention-plasticity study`: three tiny models, from the YAML file to the README."""

import json
import re
import shlex
import shutil
import signal
from contextlib import chdir
from pathlib import Path

import pandas as pd
import pytest

from attention_plasticity.cli import main
from helpers.report_runs import write_run
from helpers.small_study import (
    CAPTURE,
    FOLDERS,
    MODELS,
    STUDY_IN,
    TEXTS,
    made_files,
    make_inputs,
    study_in,
    write_study,
)
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_toolkit.files import try_lock
from rank_processes import Forwards, ended, start_alone

LABELS = [model["label"] for model in MODELS]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_inputs(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def made(place):
    assert study_in([str(place), "study.yaml"]) == 0
    return place / "results" / "study"


def test_one_folder_has_everything(made):
    names = {path.name for path in made.iterdir() if not path.name.startswith(".")}
    assert names == {
        *("README.md", "study.json", "report.html"),
        *("tables", "figures", "runs", "dumps", "settings"),
    }
    assert {path.name for path in (made / "runs").iterdir()} == set(FOLDERS[:2])
    assert {path.name for path in (made / "dumps").iterdir()} == {"tiny"}
    figures = {str(path.relative_to(made / "figures")) for path in made.glob("figures/**/[!.]*.*")}
    own = {f"{folder}/map-plasticity.{end}" for folder in FOLDERS for end in ("png", "txt")}
    shared = {f"profiles.{end}" for end in ("png", "txt")}
    assert figures == own | shared


def test_tables_have_the_values_of_the_runs(made, place):
    runs = [made / "runs" / "tiny", made / "runs" / "dump-u-x", place / "finished"]
    means = pd.read_csv(made / "tables" / "means.csv").set_index(["run", "metric"])
    for label, folder in zip(LABELS, runs, strict=True):
        heads = pd.read_csv(folder / "head_metrics.csv")
        for name in ("ap_aligned", "ap_phase", "ap_overall", "ap_aligned_last20"):
            plain = heads[name].mean()
            assert means.loc[(label, name), "mean"] == pytest.approx(plain, abs=1e-12)
        recorded = json.loads((folder / "run.json").read_text())["means"]["ap_aligned"]
        row = means.loc[(label, "ap_aligned")]
        assert row["se"] == pytest.approx(recorded["standard_error"])
        assert row["low"] < row["mean"] < row["high"]
    differences = pd.read_csv(made / "tables" / "differences.csv").set_index(["run", "metric"])
    one, other = (means.loc[(label, "ap_aligned"), "mean"] for label in ("tiny", LABELS[1]))
    assert differences.loc[(LABELS[1], "ap_aligned"), "mean"] == pytest.approx(other - one)
    models = pd.read_csv(made / "tables" / "models.csv").set_index("model")
    assert models["heads_analysed"].tolist() == [2, 2, 2]
    assert models["texts"].tolist() == [TEXTS, TEXTS, 4]
    assert models.loc["tiny", "size"] == 1e5


def test_tables_are_also_markdown_and_latex(made):
    for name in ("models", "means", "differences", "key_heads"):
        assert LABELS[1] in (made / "tables" / f"{name}.md").read_text()
        latex = (made / "tables" / f"{name}.tex").read_text()
        assert latex.startswith("% in the preamble")
        assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") >= 1


def test_every_command_of_the_readme_runs_and_makes_the_same(made, place, tmp_path):
    before = made_files(made)
    text = (made / "README.md").read_text()
    lines = re.findall(r"^attention-plasticity .*$", text, re.M)
    verbs = [shlex.split(line)[1] for line in lines]
    assert verbs == ["study", "capture", "analyze", "analyze", "study"]
    assert shlex.split(lines[-1])[-1] == "--baselines"  # makes more than this study
    folder = Path(shutil.copytree(place, tmp_path / "copy"))
    with chdir(folder):
        for line in lines[1:-1]:
            assert main(shlex.split(line)[1:]) == 0, line
    after = made_files(folder / "results" / "study")
    assert {name: after[name] for name in before} == before


def test_the_readme_names_models_tables_and_figures(made):
    text = (made / "README.md").read_text()
    for model in ("**tiny**: captured from `model`", "analysed from the dump `dump`"):
        assert model in text
    assert "read from the finished run `finished`; 2 heads" in text
    assert "## Failures" not in text
    for path in (made / "tables").iterdir():
        assert f"`tables/{path.stem}`" in text
    assert "`figures/profiles.png`" in text
    for label, folder in zip(LABELS, FOLDERS, strict=True):  # titles and captions have the labels
        caption = (made / "figures" / folder / "map-plasticity.txt").read_text()
        assert f"query heads of {label};" in caption


def test_no_file_has_a_path_of_this_machine(made, place):
    for name, content in made_files(made).items():
        if not name.startswith("dumps/"):
            assert str(place).encode() not in content, name


def test_a_repeated_command_changes_no_file(made, place, capsys):
    before = made_files(made)
    info = (made / "runs" / "tiny" / "run.json").read_bytes()
    (made / "figures" / "c" / "map-plasticity.png").write_bytes(b"damaged")
    assert study_in([str(place), "study.yaml"]) == 0
    assert made_files(made) == before
    assert (made / "runs" / "tiny" / "run.json").read_bytes() == info
    told = capsys.readouterr()
    assert "model 1 of 3, tiny: results/study/dumps/tiny is captured already" in told.err
    assert "Every model minus tiny, with 95 % intervals." in told.out


@pytest.mark.long
def test_a_dump_can_be_removed_after_its_analysis(made, place, tmp_path, capsys):
    folder = Path(shutil.copytree(place, tmp_path / "copy"))
    out = folder / "results" / "study"
    shutil.rmtree(out / "dumps")
    shutil.rmtree(folder / "dump")
    assert study_in([str(folder), "study.yaml", "--dry_run"]) == 0
    assert "capture" not in capsys.readouterr().out
    assert study_in([str(folder), "study.yaml"]) == 0
    told = capsys.readouterr().err
    assert "tiny: results/study/runs/tiny is analysed already; its dump was removed" in told
    expected = {name: text for name, text in made_files(made).items() if name[:6] != "dumps/"}
    assert made_files(out) == expected
    (out / "runs" / "dump-u-x" / "head_metrics.csv").write_text("layer\n")  # changed by hand
    capture = {"capture": {**CAPTURE, "min_bucket_size": 64}}
    write_study(folder, "changed.yaml", capture=capture, figures="none")
    words = [str(folder), "changed.yaml", "--output_dir", "results/study"]
    assert study_in(words) == 2
    told = capsys.readouterr().err
    assert "tiny: results/study/dumps/tiny was captured with other settings: capture.min" in told
    assert study_in([str(folder), "study.yaml", "--dry_run"]) == 1
    assert "will fail: Dump ü/../x: dump: does not exist" in capsys.readouterr().err


def test_a_study_that_is_being_made_is_not_begun_again(place, tmp_path, capsys):
    lock = try_lock(tmp_path / ".study.lock")
    assert study_in([str(place), "study.yaml", "--output_dir", str(tmp_path)]) == 2
    lock.release()
    assert "another study is being made there" in capsys.readouterr().err


def test_a_study_in_a_place_that_cannot_be_a_folder_is_refused(place, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert study_in([str(place), "study.yaml", "--output_dir", f"{tmp_path}/file/out"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"error: output_dir: {tmp_path}/file/out/.study.lock: cannot be written")
    assert told.endswith("Choose another output_dir.")


@pytest.mark.long
def test_a_killed_study_continues_and_ends_the_same(made, place, tmp_path):
    folder = Path(shutil.copytree(place, tmp_path / "copy"))
    shutil.rmtree(folder / "results")
    out, told = folder / "results" / "study", tmp_path / "told"
    words = [str(folder), "study.yaml"]
    forwards = Forwards(tmp_path / "log", 1, {0: 3})  # in the third text of the capture
    assert ended(start_alone(words, told, forwards, STUDY_IN)) == -signal.SIGKILL
    assert not (out / "runs").exists()
    assert not (out / "README.md").exists()
    (out / "tables").mkdir(exist_ok=True)
    (out / "tables" / ".means.csv.part-1-0a").write_text("unfinished")
    assert study_in(words) == 0
    assert made_files(out) == made_files(made)
    assert not list(out.glob("**/.*.part-*"))


def test_failing_models_are_named_and_the_others_go_on(place, capsys, monkeypatch):
    def broken(*given):
        raise RuntimeError(f"{place}/model.py:\nno kernel for hf_abcdefghijklmnopqrstuvwxyzABCDEF")

    monkeypatch.setattr("qk_sniffer.capture.run.run_capture", broken)
    models = [{"label": "gone", "dump": "nowhere"}, dict(MODELS[0]), dict(MODELS[2])]
    write_study(place, "failing.yaml", models=models, figures="none")
    assert study_in([str(place), "failing.yaml"]) == 1
    out = place / "results" / "failing"
    told = capsys.readouterr()
    assert "error: gone: nowhere: does not exist" in told.err
    assert "does not exist" not in told.out  # the reason is told once
    assert "failed: gone, tiny; the reasons are in results/failing/README.md\n" in told.out
    text = (out / "README.md").read_text()
    assert "**gone**: **failed**, so it is missing in tables and figures" in text
    assert "- gone: nowhere: does not exist" in text
    assert pd.read_csv(out / "tables" / "models.csv")["model"].tolist() == LABELS[2:]
    one, other, third = json.loads((out / "study.json").read_text())["models"]
    assert one["failure"].startswith("nowhere: does not exist")
    assert other["failure"] == "RuntimeError: model.py: no kernel for …"
    assert "failure" not in third
    assert not (out / "figures").exists()
    shutil.rmtree(out)


def test_a_study_without_a_finished_model_says_so(tmp_path, capsys):
    write_study(tmp_path, models=[{"label": "gone", "run": "nowhere"}], texts=None)
    assert study_in([str(tmp_path), "study.yaml"]) == 1
    text = (tmp_path / "results" / "study" / "README.md").read_text()
    assert "# Attention plasticity of 0 models" in text
    assert "nowhere: does not exist" in text
    assert "report.html" not in capsys.readouterr().out


def test_one_model_has_tables_without_a_comparison(place, tmp_path):
    shutil.copytree(place / "finished", tmp_path / "finished")
    write_study(tmp_path, models=[dict(MODELS[2])], texts=None, figures=["profiles"])
    assert study_in([str(tmp_path), "study.yaml"]) == 0
    tables = {path.stem for path in (tmp_path / "results" / "study" / "tables").glob("*.csv")}
    assert tables == {
        *("models", "means", "lengths", "depth"),
        *("role_shares", "role_scores", "band_shares", "key_heads"),
    }
    text = (tmp_path / "results" / "study" / "README.md").read_text()
    assert "- profiles (needs two models)" in text


def test_changed_settings_of_a_finished_part_are_refused(made, place, capsys):
    before = made_files(made)
    write_study(place, "changed.yaml", analysis={"max_workers": 1, "seed": 7})
    assert study_in([str(place), "changed.yaml", "--output_dir", "results/study"]) == 2
    assert (
        "tiny: results/study/runs/tiny was analysed with other settings: seed (0 then, 7 now). "
        "Repeat the command with the settings of then, or give the study another output_dir"
    ) in capsys.readouterr().err
    assert made_files(made) == before


def test_failed_heads_are_named_in_the_last_lines(tmp_path, capsys):
    write_run(tmp_path / "a", 0)  # one of its heads failed
    models = [{"label": "a", "run": "a"}]
    write_study(tmp_path, models=models, texts=None, capture=None, figures="none")
    assert study_in([str(tmp_path), "study.yaml"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert "failed: a (1 head); the reasons are in results/study/README.md" in told
