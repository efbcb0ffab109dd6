"""run.json with members of another type: one line and exit code 2, whoever opens the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reliability.hostile_values import exchanged, places

from attention_plasticity import ToolkitError, open_run
from attention_plasticity.api import Run
from attention_plasticity.cli import main
from dumps import make_dump
from qk_dump.manifest import DumpManifest, write_manifest
from runs_here import analyse

OTHERS: list[Any] = [None, -3, 10**30, True, "text", [], [1], {"a": 1}]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, with all that its run.json can hold."""
    folder = tmp_path_factory.mktemp("run")
    dump = make_dump(folder / "dump", layers=1, q_heads=2, k_heads=1, n=300)
    told: dict[str, Any] = {"bucket_type": "uniform", "min_bucket_size": 128, "model": "owner/Tiny"}
    manifest = DumpManifest(num_layers=2, num_q_heads=2, num_k_heads=1, **told)
    write_manifest(dump, manifest)
    (dump / "l00h01q" / "data.parquet").write_text("spoilt")
    assert analyse(dump, folder / "out").failures
    return folder / "out"


def without(value: Any, path: tuple[str | int, ...]) -> Any:
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1:
        del copy[path[0]]  # type: ignore[arg-type]
    else:
        copy[path[0]] = without(value[path[0]], path[1:])  # type: ignore[index]
    return copy


def variants(whole: Any) -> Iterator[Any]:
    yield from OTHERS
    for path in places(whole):
        yield without(whole, path)
        for other in OTHERS:
            yield exchanged(whole, path, other)


def spoil(run: Path, info: object) -> None:
    (run / "run.json").write_text(json.dumps(info))


@pytest.fixture
def info(run: Path) -> Iterator[dict[str, Any]]:
    """What run.json holds; afterwards it holds that again."""
    text = (run / "run.json").read_text()
    yield json.loads(text)
    (run / "run.json").write_text(text)


def test_every_member_is_there(info: dict[str, Any]) -> None:
    expected = {"tables", "sha256", "failures", "heads", "input", "warnings", "config", "seed"}
    assert set(info) >= expected
    assert info["failures"]
    assert info["not_captured"]
    assert info["warnings"]


def refusal(call: Callable[[], object]) -> str | None:
    """What the toolkit says, None when it says nothing; any other error is a failure."""
    try:
        call()
    except ToolkitError as error:
        return str(error)
    return None


def test_the_library_refuses_or_opens_any_run_json(run: Path, info: dict[str, Any]) -> None:
    for variant in variants(info):
        spoil(run, variant)
        found: list[Run] = []
        told = refusal(lambda: found.append(open_run(run)))  # noqa: B023
        if told is not None:
            assert told.startswith(f"{run / 'run.json'}: ")
            assert "\n" not in told
            assert len(told) < 400 + len(str(run))
            continue
        if any(found[0].info.get(name) != info[name] for name in ("tables", "sha256")):
            refusal(lambda: found[0].head_metrics)  # noqa: B023


VERBS: list[list[str]] = [
    ["plot", "map", "{run}", "--output", "{tmp}/map.svg"],
    ["report", "{run}", "--output", "{tmp}/page.html"],
]


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0] + words[1])
def test_every_verb_ends_in_one_line(
    words: list[str],
    run: Path,
    info: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in run.glob("*.csv"):
        (other / file.name).write_bytes(file.read_bytes())
    (other / "run.json").write_text(json.dumps(info))
    given = [word.format(run=run, other=other, tmp=tmp_path) for word in words]
    codes = {0: 0, 1: 0, 2: 0}
    paths: list[tuple[str | int, ...]] = [(name,) for name in info]
    paths += [("input", "dump"), ("input", "dump", "model"), ("heads", "failed")]
    paths += [("config", "query_model"), ("tables", "head_metrics"), ("warnings", 0, "text")]
    wrong = [None, {"a": 1}]
    for variant in [*OTHERS, *(exchanged(info, path, other) for path in paths for other in wrong)]:
        spoil(run, variant)
        code = main(given)
        told = capsys.readouterr().err
        codes[code] += 1
        if code:
            (error,) = [line for line in told.splitlines() if not line.startswith("note: ")]
            assert error.startswith("error: ")
        if code == 1:
            assert "was changed after the run" in told
    assert codes[2] > 25
    assert codes[1] < 5


def test_an_analysis_into_the_folder_replaces_a_strange_run_json(
    run: Path, info: dict[str, Any]
) -> None:
    for variant in (None, {**info, "tables": [1]}, {**info, "sha256": 3}, {**info, "content": {}}):
        spoil(run, variant)
        analyse(Path(info["input"]["path"]), run)
        assert json.loads((run / "run.json").read_text())["tables"] == info["tables"]
