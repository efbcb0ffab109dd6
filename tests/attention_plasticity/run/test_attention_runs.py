"""Runs on dumps with attention columns: tables, resume, warnings, comparison and summary."""

from __future__ import annotations

import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from attention_dumps import Layer, make_attention_dump
from attention_plasticity import ConfigError, analyze_dump, open_run
from attention_plasticity.cli import main
from attention_plasticity.config import make_config
from attention_plasticity.read.pool import NO_ATTENDED_KEYS
from attention_plasticity.run.finish import Outcome
from attention_plasticity.run.plan import estimate, make_plan
from attention_plasticity.run.runner import run_analysis
from attention_plasticity.tables.intervals import mean_over_heads
from attention_plasticity.tables.summary import print_summary
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.source import open_dump

TABLE = "head_attention.csv"


WITHOUT_ROPE = {"layers": [{**Layer().entry(0), "rope": False}]}


def run(dump: Path, out: Path, **fields: Any) -> Outcome:
    return run_analysis(
        make_config(
            dataset_local_root=str(dump), output_dir=str(out), **{"max_workers": 1, **fields}
        )
    )


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("dumps")
    how: dict[str, Any] = {"q_heads": 3, "received": True, "manifest": WITHOUT_ROPE}
    return {
        "some": make_attention_dump(root / "some", without=(1,), **how),
        "none": make_attention_dump(root / "none", q_heads=3, without=(0, 1, 2)),
    }


@pytest.fixture(scope="module")
def outcomes(dumps: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("runs")
    return {name: run(dump, root / name) for name, dump in dumps.items()}


def test_heads_without_columns_have_no_rows(outcomes: dict[str, Outcome]) -> None:
    found = open_run(outcomes["some"].paths.folder)
    assert found.has_attention
    assert sorted(set(found.attention["q_head"])) == [0, 2]
    assert found.attention["q_bucket"].tolist() == 2 * [0, 1, 2, 3, 4, 5]
    masses = [name for name in found.attention if name.startswith("mass") and "_se" not in name]
    np.testing.assert_allclose(found.attention[masses].sum(axis=1), 1.0, rtol=1e-5)
    metrics = found.head_metrics.set_index("q_head")
    assert metrics["attn_entropy"].notna().tolist() == [True, False, True]
    assert metrics["ap_attended"].notna().all()  # from the attention that keys receive
    weights = found.attention["n_tokens"]
    for name in ("entropy", "sink_mass", "max_logit"):
        of_head = found.attention["q_head"] == 0
        mean = np.average(found.attention[name][of_head], weights=weights[of_head])
        assert metrics.loc[0, f"attn_{name}"] == pytest.approx(mean, rel=1e-9)


def test_a_dump_without_columns_has_no_table(outcomes: dict[str, Outcome]) -> None:
    folder = outcomes["none"].paths.folder
    found = open_run(folder)
    assert not found.has_attention
    assert not (folder / TABLE).exists()
    assert "attention" not in found.info["tables"]
    assert not any(name.startswith("attn") for name in found.info["means"])
    assert (folder / TABLE) not in outcomes["none"].paths.all


def test_means_over_heads_agree_with_the_tables(outcomes: dict[str, Outcome]) -> None:
    found = open_run(outcomes["some"].paths.folder)
    for name, heads in (("attn_sink_mass", 2), ("ap_attended", 3)):
        mean = mean_over_heads(found, name)
        recorded = found.info["means"][name]
        assert recorded["heads"] == heads
        assert recorded["value"] == pytest.approx(mean.value, rel=1e-12)
        assert recorded["standard_error"] == pytest.approx(mean.standard_error, rel=1e-12)


def test_an_earlier_table_does_not_stay(dumps: dict[str, Path], tmp_path: Path) -> None:
    run(dumps["some"], tmp_path)
    assert (tmp_path / TABLE).exists()
    run(dumps["none"], tmp_path, overwrite=True)
    assert not (tmp_path / TABLE).exists()
    assert (tmp_path / "previous-1" / TABLE).exists()
    (tmp_path / TABLE).write_text("of somebody else")
    run(dumps["none"], tmp_path)  # from the records
    assert not (tmp_path / TABLE).exists()
    assert (tmp_path / "previous-2" / TABLE).read_text() == "of somebody else"


def test_a_run_continues_with_the_same_bytes_and_not_with_other_settings(
    dumps: dict[str, Path], outcomes: dict[str, Outcome], tmp_path: Path
) -> None:
    first = run(dumps["some"], tmp_path)
    (tmp_path / ".heads" / "l00h02.json").unlink()
    again = run(dumps["some"], tmp_path)
    for path, other in zip(again.paths.all[:-1], outcomes["some"].paths.all[:-1], strict=True):
        assert path.read_bytes() == other.read_bytes()
    assert again.means.estimates.keys() == first.means.estimates.keys()
    with pytest.raises(ConfigError, match=r"distant_from \(256 then, 4 now\)"):
        run(dumps["some"], tmp_path, distant_from=4)


def test_another_scale_is_another_input(tmp_path: Path) -> None:
    dump = make_attention_dump(tmp_path / "dump")
    run(dump, tmp_path / "out")
    layers = [{"layer": 0, "type": "full_attention", "scale": 0.39}]
    write_manifest(dump, DumpManifest(num_q_heads=1, num_k_heads=1, num_layers=1, layers=layers))
    with pytest.raises(ConfigError, match=r"holds results of another dump, .*dump\.json"):
        run(dump, tmp_path / "out")


def test_the_plan_needs_more_memory_for_attention(dumps: dict[str, Path]) -> None:
    config = make_config()
    memory = []
    for path in dumps.values():
        dump = open_dump(path)
        found = estimate(dump, make_plan(dump, config), config)
        assert found.problems == ()
        memory.append(found.worker_memory)
    assert memory[0] > memory[1]


def test_names_of_the_table_are_checked(dumps: dict[str, Path], tmp_path: Path) -> None:
    names = {"attention_csv": "seen.csv", "max_workers": 1}
    found = analyze_dump(dumps["some"], names, output_dir=tmp_path)
    assert found.path("attention") == tmp_path / "seen.csv"
    assert len(found.attention) == 12
    with pytest.raises(ConfigError, match="must be different files"):
        analyze_dump(dumps["some"], output_dir=tmp_path, attention_csv="head_metrics.csv")


def test_runs_with_and_without_columns_can_be_compared(
    outcomes: dict[str, Outcome], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(outcome.paths.folder) for outcome in outcomes.values()]
    assert main(["compare", *folders, "--output_dir", str(tmp_path)]) == 0
    assert main(["compare", *reversed(folders), "--output_dir", str(tmp_path)]) == 0
    assert "ap_overall" in (tmp_path / "compare.csv").read_text()
    capsys.readouterr()


def test_the_summary_has_lines_about_attention(outcomes: dict[str, Outcome]) -> None:
    printed = {}
    for name, outcome in outcomes.items():
        console = Console(file=io.StringIO(), width=400)
        print_summary(outcome, console)
        printed[name] = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Attention: 0." in printed["some"]
    assert "on the first four tokens of a text, 0.000 ± 0.000 on other tokens" in printed["some"]
    assert "at a distance of 256 or more; means over 2 heads" in printed["some"]
    attended = "Plasticity of keys in proportion to their attention, at one position: 0."
    assert attended in printed["some"]
    assert "Attention:" not in printed["none"]
    note = (
        "Note         The probability with which tokens were kept is not known: dump.json has no "
    )
    assert note in printed["some"]
    assert "the same weight, so they depend on how positions were sampled." in printed["some"]
    assert "tokens were kept" not in printed["none"]
    assert "in proportion" not in printed["none"]


def test_attended_plasticity_that_is_not_known_is_a_note(tmp_path: Path) -> None:
    dump = make_attention_dump(tmp_path / "dump", q_heads=2, manifest=WITHOUT_ROPE)
    outcome = run(dump, tmp_path / "out")
    (note,) = [w for w in outcome.warnings if w.kind == "attended_unknown"]
    assert (note.label, note.heads) == ("Note", 2)
    assert note.text == f"Attended plasticity is not known in 2 of 2 heads: {NO_ATTENDED_KEYS}."
    recorded = json.loads(outcome.paths.run.read_text())["warnings"]
    assert note.text in [warning["text"] for warning in recorded]


def test_keys_drawn_by_attention_give_the_same_bytes_in_every_run(tmp_path: Path) -> None:
    dump = make_attention_dump(
        tmp_path / "dump", q_heads=4, texts=8, share=0.6, received=True, manifest=WITHOUT_ROPE
    )
    first = run(dump, tmp_path / "one")
    assert all(math.isfinite(row["ap_attended"]) for row in first.metrics)
    assert not any(warning.kind == "attended_unknown" for warning in first.warnings)
    run(dump, tmp_path / "two", max_workers=2)
    (tmp_path / "two" / ".heads" / "l00h02.json").unlink()
    second = run(dump, tmp_path / "two")
    for path, other in zip(first.paths.all[:-1], second.paths.all[:-1], strict=True):
        assert path.read_bytes() == other.read_bytes()
    found = open_dump(dump)
    config = make_config()
    whole = estimate(found, make_plan(found, config), config)
    shutil.rmtree(dump / "attended")
    found = open_dump(dump)
    assert whole.worker_memory > estimate(found, make_plan(found, config), config).worker_memory
