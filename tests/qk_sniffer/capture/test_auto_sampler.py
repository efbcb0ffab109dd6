"""Captures with the sampler `auto`, the default: what is chosen, kept and recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from qk_sniffer.cli import main
from qk_sniffer.config import make_config
from sniffing import same_rows, sniff_first
from tiny_texts import save_texts, some_text

LENGTHS = [255, 100, 511, 30, 12, 60]
BUCKET = 32  # 512 / 16


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return save_texts(tmp_path / "texts", LENGTHS)


def flags(model: Path, texts: Path, dump: Path, **fields: object) -> list[str]:
    """The command without any setting of the sampler."""
    given = {"model.name": model, "dataset.path": texts, "output.data_root": dump}
    given |= {name.replace("__", "."): value for name, value in fields.items()}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def recorded(dump: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((dump / "dump.json").read_text())
    return content


def test_auto_is_the_default_and_recorded_as_uniform(
    model: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = tmp_path / "dump"
    assert main([*flags(model, texts, dump), "--dry_run"]) == 0
    planned = capsys.readouterr().out
    assert main(flags(model, texts, dump)) == 0
    line = next(line for line in capsys.readouterr().err.splitlines() if "sampler auto" in line)
    assert "buckets of 32 tokens" in line
    assert line in planned
    rates = {"base_rate": 128 / 6, "key_base_rate": 32.0}  # bounded by the bucket
    found = recorded(dump)
    assert (found["bucket_type"], found["min_bucket_size"]) == ("uniform", BUCKET)
    assert found["sampler"] == {"type": "uniform", "seed": 0, **rates}
    chosen = {"min_bucket_size": BUCKET, **rates, "texts": 6, "longest": 512}
    assert found["capture"]["capture"]["sampler"] == {"type": "auto", "seed": 0, "chosen": chosen}
    named = {"type": "uniform", **{name: str(rate) for name, rate in rates.items()}}
    more = {f"capture__sampler__{name}": value for name, value in named.items()}
    other = flags(model, texts, tmp_path / "named", capture__min_bucket_size=BUCKET, **more)
    assert main(other) == 0
    assert same_rows(dump, tmp_path / "named")


def test_a_resume_keeps_the_choice_when_texts_become_longer(
    model: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only texts that are not finished may change."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for number in (0, 2):
        (texts / f"{number:03d}.txt").write_text(some_text(60, seed=number))
    given = {"capture__sampler__type": "auto", "capture__min_bucket_size": "none"}
    given |= {"capture__sampler__base_rate": "none"}
    dump = tmp_path / "dump"
    sniff_first(monkeypatch, 2, model, texts, dump, **given)
    plan = json.loads((dump / ".capture" / "plan.json").read_text())
    chosen = plan["capture"]["sampler"]["chosen"]
    assert (chosen["min_bucket_size"], chosen["longest"], chosen["texts"]) == (16, 101, 6)
    (texts / "002.txt").write_text(some_text(500))
    (texts / "006.txt").write_text(some_text(500, seed=9))
    capsys.readouterr()
    assert main([*flags(model, texts, dump), "--dry_run"]) == 0
    assert "buckets of 16 tokens" in capsys.readouterr().out
    assert main(flags(model, texts, dump)) == 0
    assert "buckets of 16 tokens" in capsys.readouterr().err
    assert recorded(dump)["capture"]["capture"]["sampler"]["chosen"] == chosen
    assert recorded(dump)["num_examples"] == 7
    assert main(flags(model, texts, dump)) == 0  # complete: nothing is chosen anew
    assert "is complete already" in capsys.readouterr().err
    assert main(flags(model, texts, dump, capture__min_bucket_size=64)) == 2
    assert "min_bucket_size (null then, 64 now)" in capsys.readouterr().err
    assert main([*flags(model, texts, dump), "--overwrite"]) == 0
    assert recorded(dump)["min_bucket_size"] == BUCKET


@pytest.mark.parametrize("command", [[], ["--dry_run"]])
def test_a_stream_needs_the_number_of_texts(
    model: Path, tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": some_text(n)}) + "\n" for n in LENGTHS))
    stream = flags(model, rows, tmp_path / "dump", dataset__streaming="true")
    assert main([*stream, *command]) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith("error: dataset.max_samples: is required, because the sampler auto")
    assert main([*stream, *command, "--dataset.max_samples", "4"]) == 0
    told = "".join(capsys.readouterr())
    assert "buckets of 32 tokens" in told
    assert "from 4 texts" in told


def test_texts_without_tokens_are_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = save_texts(tmp_path / "empty", [0, 0])
    assert main(flags(model, empty, tmp_path / "dump")) == 2
    assert f"dataset.path: {empty}: holds no texts" in capsys.readouterr().err
    assert main([str(model), str(empty), str(tmp_path / "dump")]) == 2
    assert f"TEXTS: {empty}: holds no texts" in capsys.readouterr().err


def test_a_named_sampler_has_the_plan_of_earlier_versions(
    model: Path, texts: Path, tmp_path: Path
) -> None:
    """So that a dump that they made is found complete."""
    few = {"capture__layers": 0, "capture__sampler__base_rate": 8.0}
    assert main(flags(model, texts, tmp_path / "dump", **few)) == 0
    plan = recorded(tmp_path / "dump")["capture"]
    rates = {"base_rate": 8.0, "key_base_rate": None}
    assert plan["capture"]["sampler"] == {"type": "log_uniform", **rates, "seed": 0}
    assert plan["capture"]["min_bucket_size"] == 128
    assert "synthetic" not in plan["dataset"]
    assert not {"random_weights", "random_seed"} & plan["model"].keys()


def sampler_settings(**sampler: Any) -> Any:
    required = {"dataset": {"path": "d"}, "model": {"name": "m"}, "output": {"data_root": "o"}}
    return make_config(required, capture={"sampler": sampler}).capture.sampler


def test_a_rate_without_a_type_stays_log_uniform() -> None:
    assert sampler_settings().type == "auto"
    assert sampler_settings(seed=3).type == "auto"
    assert sampler_settings(base_rate=None).type == "auto"
    assert sampler_settings(base_rate=2.0).type == "log_uniform"
    assert sampler_settings(key_base_rate=2.0).type == "log_uniform"
    assert sampler_settings(base_rate=2.0, type="uniform").type == "uniform"
    for name in ("base_rate", "key_base_rate"):
        with pytest.raises(Exception, match=rf"sampler\.{name}: is chosen by the sampler auto"):
            sampler_settings(type="auto", **{name: 2.0})
