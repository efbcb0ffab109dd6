"""`attention-plasticity atlas`, with a real tiny model whose heads do known things."""

from __future__ import annotations

import io
import json
import shutil
import signal
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from attention_plasticity.metrics import ROLES
from attention_plasticity.tables.finished_run import FinishedRun
from lasting_workers import workers as workers  # a fixture of all tests here
from planted_models import HEADS, save_planted_model
from qk_study.atlas import command
from qk_study.atlas.command import atlas
from rank_processes import Forwards, ended, start_alone
from sniffing import same_bytes
from tiny_texts import save_texts, tiny_tokenizer

ATLAS = "qk_study.atlas.command:atlas"
LENGTH, PERIOD = 150, 24
TEXTS = 6
FLAGS = (
    *("--capture.sampler.type", "all", "--capture.min_bucket_size", "32", "--max_workers", "1"),
    *("--repeated.length", str(2 * PERIOD), "--repeated.number", "8", "--capture.attended_keys"),
    "0",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and texts."""
    folder = tmp_path_factory.mktemp("atlas")
    save_planted_model(folder / "model")
    save_texts(folder / "texts", [LENGTH] * TEXTS)
    return folder


def words(place: Path, out: Path, *more: str) -> list[str]:
    inputs = [str(place / "model"), "--texts", str(place / "texts")]
    return [*inputs, "--output_dir", str(out), *FLAGS, *more]


@pytest.fixture(scope="module")
def made(place: Path) -> Path:
    with redirect_stdout(io.StringIO()) as told:
        assert atlas(words(place, place / "out")) == 0
    roles = "Roles duplicate 1, previous 1, sink 1, mixed 1"
    assert roles in " ".join(told.getvalue().split())
    assert "Next" not in told.getvalue()  # figures and page are made
    assert told.getvalue().splitlines()[-1].endswith("out/report.html")
    return place / "out"


def weights_of(place: Path, tokens: list[list[int]]) -> torch.Tensor:
    """(texts, heads, n, n) the attention of the model, computed by itself."""
    model = AutoModelForCausalLM.from_pretrained(place / "model", attn_implementation="eager")
    with torch.inference_mode():
        told = model(torch.tensor(tokens), output_attentions=True)
    return told.attentions[0].double()


def tokens_of_texts(place: Path) -> list[list[int]]:
    tokenizer = tiny_tokenizer()
    texts = [path.read_text() for path in sorted((place / "texts").iterdir())]
    return [tokenizer(text)["input_ids"] for text in texts]


def mean_over(values: list[float]) -> float:
    return float(np.mean(values))


def test_the_labels_are_those_of_the_planted_heads(made: Path) -> None:
    run = FinishedRun.open(made)
    assert run.table("roles")["role"].tolist() == list(HEADS)
    assert run.table("roles")["likely_role"].tolist() == list(HEADS)
    assert run.table("roles")["repeated_groups"].tolist() == [8] * len(HEADS)


def test_roles_equal_scores_of_the_full_weights(made: Path, place: Path) -> None:
    tokens = tokens_of_texts(place)
    weights = weights_of(place, tokens).numpy()
    roles = FinishedRun.open(made).table("roles")
    for head in range(len(HEADS)):
        found: dict[str, list[float]] = {name: [] for name in ROLES.with_error}
        for text, ids in enumerate(tokens):
            for p in range(len(ids)):
                row = weights[text, head, p, : p + 1]
                found["self_mass"].append(row[p])
                found["top_weight"].append(row.max())
                found["effective_keys"].append(float(np.exp(-(row * np.log(row + 1e-300)).sum())))
                if p >= 1:
                    found["previous_mass"].append(row[p - 1])
                    found["first_mass"].append(row[0])
                    found["sink_rate"].append(float(row[0] > 0.3))
                if p >= 2:
                    found["local_mass"].append(row[max(p - 7, 0) : p - 1].sum())
                same = [k for k in range(p) if ids[k] == ids[p]]
                after = [k for k in range(1, p + 1) if ids[k - 1] == ids[p]]
                for name, keys in (("duplicate", same), ("induction", after)):
                    if keys:
                        mass, chance = row[keys].sum(), len(keys) / (p + 1)
                        found[f"{name}_mass"].append(mass)
                        found[f"{name}_chance"].append(chance)
                        found[f"{name}_excess"].append(mass - chance)
        for name, values in found.items():
            if values:
                expected = pytest.approx(mean_over(values), abs=1e-4)
                assert roles.loc[head, name] == expected, (HEADS[head], name)
    assert roles["far_mass"].tolist() == [0.0] * len(HEADS)  # texts are shorter than 256 tokens


def test_standard_scores_equal_diagonals_of_the_full_weights(made: Path, place: Path) -> None:
    rows = pd.read_parquet(made / "dumps" / "repeated" / "l00h00q")
    tokens = [part.sort_values("position")["token_id"] for _, part in rows.groupby("example_id")]
    ids = [part.tolist() for part in tokens]
    start = len(ids[0]) - 2 * PERIOD  # 1 with a begin token
    assert all(one[start : start + PERIOD] == one[start + PERIOD :] for one in ids)
    weights = weights_of(place, ids)
    roles = FinishedRun.open(made).table("roles")
    second = slice(start + PERIOD, None)  # queries of the second half
    for head in range(len(HEADS)):
        own = weights[:, head]
        diagonals = {
            "repeated_duplicate": own[:, second].diagonal(start, 1, 2),
            "repeated_induction": own[:, second].diagonal(start + 1, 1, 2),
            "repeated_previous": own.diagonal(-1, 1, 2),
        }
        for name, values in diagonals.items():
            mean = values.mean().item()
            assert roles.loc[head, name] == pytest.approx(mean, abs=1e-4), (HEADS[head], name)


def test_errors_are_those_of_means_of_texts(made: Path, place: Path) -> None:
    weights = weights_of(place, tokens_of_texts(place))
    roles = FinishedRun.open(made).table("roles")
    for head in range(len(HEADS)):
        of_texts = weights[:, head].diagonal(-1, 1, 2).mean(dim=1)  # (texts,), all of one length
        error = of_texts.std(correction=1).item() / TEXTS**0.5
        found = roles.loc[head, "previous_mass_se"]
        assert found == pytest.approx(error, rel=1e-3, abs=1e-6)


def test_words_are_those_with_the_largest_weight(made: Path, place: Path) -> None:
    tokens = tokens_of_texts(place)
    weights, tokenizer = weights_of(place, tokens), tiny_tokenizer()
    words = FinishedRun.open(made).table("words")
    assert set(words["kind"]) == {"strongest", "typical"}
    for row in words.to_dict("records"):
        query, key = int(row["q_position"]), int(row["k_position"])
        own, ids = weights[row["example_id"], row["q_head"], query], tokens[row["example_id"]]
        assert own[key].item() == pytest.approx(own.max().item(), abs=1e-5)
        assert row["weight"] == pytest.approx(own.max().item(), abs=1e-4)
        assert row["distance"] == query - key
        told = tokenizer.convert_ids_to_tokens([ids[query], ids[key]])
        assert [row["query_token"], row["key_token"]] == told
        assert row["kind"] == "typical" or key > 0
    previous = words[(words["q_head"] == 0) & (words["q_position"] > 1)]
    assert (previous["distance"] == 1).all()


def test_an_atlas_has_tables_figures_and_a_page(made: Path) -> None:
    assert {path.name for path in (made / "figures").iterdir()} >= {"plasticity.png", "phase.png"}
    page = (made / "report.html").read_text()
    assert "<title>Attention plasticity: model</title>" in page
    info = json.loads((made / "run.json").read_text())
    assert info["config"]["repeated"] == str(made / "dumps" / "repeated")


def test_a_repeated_command_keeps_dumps_and_heads(made: Path, place: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(made, tmp_path / "out"))
    rows = out / "dumps" / "texts" / "l00h00q" / "data.parquet"
    record = next(out.glob(".heads/*/l*.json.gz"))
    before = rows.stat().st_mtime_ns, record.stat().st_mtime_ns
    assert atlas(words(place, out, "--role_thresholds", "{previous: 1}")) == 0
    assert pd.read_csv(out / "head_roles.csv")["role"].tolist() == ["mixed", *HEADS[1:]]
    assert (rows.stat().st_mtime_ns, record.stat().st_mtime_ns) == before


def test_a_killed_command_continues_and_ends_the_same(
    made: Path, place: Path, tmp_path: Path
) -> None:
    out, told = tmp_path / "out", tmp_path / "told"
    forwards = Forwards(tmp_path / "log", 1, {0: TEXTS + 3})  # in the capture of repeated tokens
    assert ended(start_alone(words(place, out), told, forwards, ATLAS)) == -signal.SIGKILL
    assert (out / "dumps" / "texts" / "dump.json").exists()
    assert not (out / "run.json").exists()
    assert ended(start_alone(words(place, out), told, command=ATLAS)) == 0
    assert "is complete already; nothing to do" in told.read_text()
    for name in ("texts", "repeated"):
        assert same_bytes(out / "dumps" / name, made / "dumps" / name)
    for name in ("head_roles.csv", "head_words.csv", "head_metrics.csv"):
        assert (out / name).read_bytes() == (made / name).read_bytes()


def test_a_dry_run_writes_nothing(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert atlas(words(place, tmp_path / "out", "--dry_run")) == 0
    told = capsys.readouterr().out
    assert "capture of texts" in told
    assert "capture of repeated tokens" in told
    assert not (tmp_path / "out").exists()


def test_private_texts_give_no_words(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    flags = words(place, out, "--capture.tokens", "false")
    with monkeypatch.context() as change:
        change.setattr(command, "_draw", lambda settings: None)  # figures take time
        assert atlas(flags) == 0
    run = FinishedRun.open(out)
    assert not run.has("words")
    assert run.table("roles")["induction_mass"].isna().all()  # it needs the tokens of the texts
    assert run.table("roles")["role"].tolist() == list(HEADS)  # random tokens are not private


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--capture.attention", "false"), "capture.attention: an atlas needs it"),
        (("--texts", "synthetic:repeated"), "dataset.path: an atlas needs real texts"),
        (("--repeated.length", "7"), "repeated.length"),
        (("--role_thresholds", "{copy: 1}"), "'copy' is no role"),
        (("--wrong", "1"), "--wrong: unknown flag"),
        (("--output_dir", "s3://bucket/atlas"), "output_dir: an atlas is made in a folder"),
    ],
)
def test_wrong_settings_are_refused(
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    message: str,
) -> None:
    assert atlas(words(place, tmp_path / "out", *more)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_model_or_text_is_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert atlas(["--texts", str(place / "texts")]) == 2
    assert "model.name" in capsys.readouterr().err
    wrong = ["--output_dir", str(tmp_path / "out"), "--texts", str(place / "nothing")]
    assert atlas([str(place / "model"), *wrong]) == 2
    assert "nothing" in capsys.readouterr().err
