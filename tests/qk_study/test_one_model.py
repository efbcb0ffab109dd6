"""`study MODEL --texts DIR`, with a real tiny model whose heads do known things."""

import io
import shutil
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from attention_plasticity.tables.finished_run import FinishedRun
from lasting_workers import workers as workers  # a fixture of all tests here
from planted_models import HEADS, save_planted_model
from qk_study.command import study
from tiny_texts import save_texts

LENGTH, PERIOD, TEXTS = 150, 24, 6
WHOLE = 144  # tokens of whole buckets in a text, with its first token
FLAGS = (
    *("--capture.sampler.type", "all", "--capture.min_bucket_size", "32", "--max_workers", "1"),
    *("--repeated_length", str(2 * PERIOD), "--repeated_texts", "8", "--capture.attended_keys"),
    *("0", "--figures", "profile"),
)


def run_in(place, *words):
    """The exit code of a study in a folder, what it prints, and its messages."""
    out, messages = io.StringIO(), io.StringIO()
    with chdir(place), redirect_stdout(out), redirect_stderr(messages):
        code = study(words)
    return code, out.getvalue(), messages.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model and texts, of which two are longer."""
    folder = tmp_path_factory.mktemp("one")
    save_planted_model(folder / "model")
    save_texts(folder / "texts", [LENGTH] * (TEXTS - 2) + [LENGTH + 10] * 2)
    return folder


@pytest.fixture(scope="module")
def told(place):
    code, out, messages = run_in(place, "model", "--texts", "texts", *FLAGS)
    assert code == 0
    return out, messages


@pytest.fixture(scope="module")
def made(place, told):
    return place / "results" / "study-model"


def test_the_time_and_the_length_are_told(told):
    out, messages = told
    lines = messages.splitlines()
    assert lines[0] == "time: < 1 min on this machine when it is idle (--dry_run has the parts)"
    assert f"texts are cut to {WHOLE} tokens, so that they have one length" in messages
    assert "Roles duplicate 1, previous 1, sink 1, mixed 1" in " ".join(out.split())
    assert "Next" not in out  # figures and page are made
    assert out.count("--baselines") == 1
    command = "attention-plasticity study results/study-model/runs/model --baselines"
    assert f"baselines: {command}" in out.splitlines()
    assert out.splitlines()[-1].endswith("results/study-model/report.html")


def test_the_labels_are_those_of_the_planted_heads(made):
    run = FinishedRun.open(made / "runs" / "model")
    assert run.table("roles")["role"].tolist() == list(HEADS)
    assert run.table("roles")["repeated_groups"].tolist() == [8] * len(HEADS)
    assert run.context == WHOLE
    assert (made / "figures" / "model" / "profile.png").is_file()
    assert "![profile.png](figures/model/profile.png)" in (made / "README.md").read_text()
    readme = (made / "README.md").read_text()
    command = "attention-plasticity study results/study-model/runs/model --baselines"
    assert readme.count(f"\n{command}\n") == readme.count("--baselines") == 1
    assert "<title>Attention plasticity of model</title>" in (made / "report.html").read_text()


def test_standard_scores_equal_diagonals_of_the_full_weights(made, place):
    rows = pd.read_parquet(made / "repeated" / "model" / "l00h00q")
    tokens = [part.sort_values("position")["token_id"] for _, part in rows.groupby("example_id")]
    ids = torch.tensor([part.tolist() for part in tokens])
    assert (ids[:, :PERIOD] == ids[:, PERIOD:]).all()
    model = AutoModelForCausalLM.from_pretrained(place / "model", attn_implementation="eager")
    with torch.inference_mode():
        weights = model(ids, output_attentions=True).attentions[0].double()  # (texts, heads, n, n)
    roles = FinishedRun.open(made / "runs" / "model").table("roles")
    for head in range(len(HEADS)):
        own = weights[:, head]
        diagonals = {
            "repeated_duplicate": own[:, PERIOD:].diagonal(0, 1, 2),
            "repeated_induction": own[:, PERIOD:].diagonal(1, 1, 2),
            "repeated_previous": own.diagonal(-1, 1, 2),
        }
        for name, values in diagonals.items():
            assert roles.loc[head, name] == pytest.approx(values.mean().item(), abs=1e-4)


def test_a_repeated_command_keeps_dumps_and_heads(made, place, tmp_path):
    out = Path(shutil.copytree(place, tmp_path / "copy")) / "results" / "study-model"
    rows = out / "dumps" / "model" / "l00h00q" / "data.parquet"
    record = next(out.glob("runs/model/.heads/*/l*.record"))
    before = rows.stat().st_mtime_ns, record.stat().st_mtime_ns
    words = ("model", "--texts", "texts", *FLAGS, "--role_thresholds", "{previous: 1}")
    code, _, messages = run_in(tmp_path / "copy", *words)
    assert code == 0
    assert "time:" not in messages  # nothing is captured
    roles = pd.read_csv(out / "runs" / "model" / "head_roles.csv")["role"]
    assert roles.tolist() == ["mixed", *HEADS[1:]]
    assert (rows.stat().st_mtime_ns, record.stat().st_mtime_ns) == before


def test_other_weights_at_the_same_path_are_told(made, place, tmp_path):
    """Also when the dump was removed after its analysis."""
    folder = Path(shutil.copytree(place, tmp_path / "copy"))
    out = folder / "results" / "study-model"
    before = (out / "dumps" / "model" / "dump.json").read_bytes()
    weights = load_file(folder / "model" / "model.safetensors")
    weights[max(weights)] *= 1.5
    save_file(weights, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    words = ("model", "--texts", "texts", *FLAGS)
    told = "dumps/model: the files of the model have changed since it was captured. Give --capture"
    for more in ((), ("--dry_run",)):
        code, _, messages = run_in(folder, *words, *more)
        assert code != 0
        assert told in messages
    assert (out / "dumps" / "model" / "dump.json").read_bytes() == before
    moved = (out / "dumps" / "model").rename(tmp_path / "dump")
    assert told in run_in(folder, *words)[2]
    moved.rename(out / "dumps" / "model")
    code, _, messages = run_in(folder, *words, "--capture_again")
    assert code == 0
    assert "texts or model have changed: captured again" in messages
    assert (out / "dumps" / "model" / "dump.json").read_bytes() != before


def test_replaced_texts_are_captured_again(made, place, tmp_path):
    folder = Path(shutil.copytree(place, tmp_path / "copy"))
    out = folder / "results" / "study-model"
    repeated = (out / "repeated" / "model" / "dump.json").stat().st_mtime_ns
    before = (out / "runs" / "model" / "head_metrics.csv").read_bytes()
    save_texts(folder / "texts", [LENGTH - 30] * TEXTS)  # at the same path
    words = ("model", "--texts", "texts", *FLAGS)
    assert "the texts have changed since it was captured" in run_in(folder, *words)[2]
    assert (out / "runs" / "model" / "head_metrics.csv").read_bytes() == before
    code, _, messages = run_in(folder, *words, "--capture_again")
    assert code == 0
    assert "texts or model have changed: captured again" in messages
    assert (out / "runs" / "model" / "head_metrics.csv").read_bytes() != before
    assert FinishedRun.open(out / "runs" / "model").context == 120
    assert (out / "repeated" / "model" / "dump.json").stat().st_mtime_ns == repeated


def test_private_texts_give_no_words(place):
    words = ("model", "--texts", "texts", *FLAGS, "--capture.tokens", "false", "--figures", "none")
    assert run_in(place, *words, "--output_dir", "private")[0] == 0
    run = FinishedRun.open(place / "private" / "runs" / "model")
    assert not run.has("words")
    assert run.table("roles")["induction_mass"].isna().all()  # it needs the tokens of the texts
    assert run.table("roles")["role"].tolist() == list(HEADS)  # random tokens are not private
