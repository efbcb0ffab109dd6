"""The verb `budget` on tables with known values, and on a dump with planted heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from attention_plasticity.budget.evidence import EVIDENCE
from attention_plasticity.budget.orders import ORDERS
from attention_plasticity.cli import main
from attention_plasticity.metrics import GROUP_COLUMNS
from commands_here import analyze_here, run_here
from dumps import add_rotary, head_rows
from key_head_runs import add_key_heads, name_layout
from qk_dump.layout import HeadId
from qk_dump.writer import write_head
from run_tables import HEADS, LAYERS, add_bins, add_errors, write_run

KEY_HEADS = HEADS // 2
STATIC = [0.3, 0.1, 0.2, 0.4, 0.05, 0.35]  # of three layers with two key heads
LAYOUT = {"num_layers": LAYERS, "num_q_heads": HEADS, "num_k_heads": KEY_HEADS}


def make_run(folder: Path, **values: Any) -> Path:
    """A run with all heads of its model."""
    add_bins(write_run(folder))
    add_key_heads(folder, {"static_error": STATIC, **values})
    return name_layout(folder, *LAYOUT.values())


def change_info(folder: Path, **entries: Any) -> Path:
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(info | entries))
    return folder


def table_of(run: Path, out: Path, *words: object) -> pd.DataFrame:
    done = run_here("budget", run, "--output_dir", out, *words)
    assert done.returncode == 0, done.stderr
    return pd.read_csv(out / "budget.csv")


def refusal(run: Path, *words: object) -> str:
    out = run.parent / "refused"
    done = run_here("budget", run, "--output_dir", out, *words)
    assert done.returncode == 2
    assert not out.exists()
    return done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def test_budgets_follow_the_ranks(run: Path, tmp_path: Path) -> None:
    table = table_of(run, tmp_path / "out", "--keep", "0.25")
    assert table["rank"].tolist() == [3, 5, 4, 1, 6, 2]
    factors = np.array([1.16, 0.52, 0.84, 1.8, 0.2, 1.48])  # 1.8, 1.48, …, 0.2 by rank
    assert table["budget"].to_numpy() == pytest.approx(0.25 * factors)
    assert table["budget"].mean() == pytest.approx(0.25, abs=1e-12)
    assert table["value"].tolist() == STATIC
    assert (table["standard_error"] == 0.004).all()
    assert (table["rank_low"] == table["rank"]).all()  # errors are small
    assert table[["layer", "k_head"]].to_numpy().tolist() == [
        [layer, head] for layer in range(LAYERS) for head in range(KEY_HEADS)
    ]


def test_the_same_numbers_are_in_all_files(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    table = table_of(run, out, "--keep", 0.5, "--spread", 0.3)
    readable = yaml.safe_load((out / "budget.yaml").read_text())
    rows = table["budget"].to_numpy().reshape(LAYERS, KEY_HEADS)
    assert [readable["budgets"][layer] for layer in range(LAYERS)] == rows.tolist()
    assert readable["model"] == "owner/Tiny-1B"
    assert (readable["keep"], readable["order"], readable["spread"]) == (0.5, "static_error", 0.3)
    assert readable["evidence"] == EVIDENCE["static_error"]
    gates = np.loadtxt(out / "full_attention_heads.tsv", delimiter="\t")
    assert gates.tolist() == [[1, 0], [0, 1], [0, 1]]  # half of the heads, those above 0.25
    assert json.loads((out / "config.json").read_text()) == {"sink_size": 4, "recent_size": 256}
    facts = json.loads((out / "PROVENANCE.json").read_text())
    assert facts["made_by"] == "attention-plasticity budget"
    assert facts["evidence"] == EVIDENCE["static_error"]
    assert [one["budget"] for one in facts["heads"]] == table["budget"].tolist()
    assert set(facts["sha256"]) == {path.name for path in out.iterdir()} - {"PROVENANCE.json"}


def test_what_is_printed(run: Path, tmp_path: Path) -> None:
    done = run_here("budget", run, "--keep", 0.25, "--output_dir", tmp_path / "out")
    first, *_, last = done.stdout.splitlines()
    assert first == (
        "Tiny-1B: 6 key heads, texts of up to 768 tokens, order static_error; mean budget 0.25, "
        "from 0.05 to 0.45"
    )
    assert "layer 1 key head 1" in done.stdout
    assert EVIDENCE["static_error"] in done.stdout
    assert last == str(tmp_path / "out")


@pytest.mark.parametrize(
    ("order", "column"),
    [("static_error_attended", "attended_static_error"), ("far", "far_mass")],
)
def test_orders_of_the_table_of_key_heads(tmp_path: Path, order: str, column: str) -> None:
    run = make_run(tmp_path / "run", **{column: STATIC[::-1]})
    table = table_of(run, tmp_path / "out", "--keep", 0.25, "--order", order)
    assert table["value"].tolist() == STATIC[::-1]
    assert table["rank"].tolist() == [2, 6, 1, 4, 5, 3]


def test_orders_of_query_heads_use_shared_texts(run: Path, tmp_path: Path) -> None:
    add_errors(run)
    heads = pd.read_csv(run / "head_metrics.csv")
    influences = pd.read_csv(run / "head_influences.csv")
    for order in ("ap_overall", "ap_aligned"):
        table = table_of(run, tmp_path / order, "--keep", 0.25, "--order", order)
        for row in table.itertuples():
            own = (heads["layer"] == row.layer) & (heads["q_head"] // 2 == row.k_head)
            assert row.value == pytest.approx(heads.loc[own, order].mean())
            chosen = influences[influences["quantity"] == order]
            chosen = chosen[(chosen["layer"] == row.layer) & (chosen["q_head"] // 2 == row.k_head)]
            moved = chosen[list(GROUP_COLUMNS)].mean().to_numpy()
            assert row.standard_error == pytest.approx(np.sqrt((moved**2).sum()))
        facts = json.loads((tmp_path / order / "PROVENANCE.json").read_text())
        assert "which all heads share" in facts["rules"]["ranks"]


def test_uniform_has_no_gates(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    table = table_of(run, out, "--keep", 0.25, "--order", "uniform")
    assert (table["budget"] == 0.25).all()
    assert table["value"].isna().all()
    names = {"budget.csv", "budget.yaml", "PROVENANCE.json"}
    assert {path.name for path in out.iterdir()} == names


def test_layers_with_a_window_are_not_counted(tmp_path: Path) -> None:
    types = ["sliding_attention"] * 2 + ["full_attention"] * 4
    windows = [64.0, 64.0, *[np.nan] * 4]
    run = make_run(tmp_path / "run", layer_type=types, sliding_window=windows)
    out = tmp_path / "out"
    table = table_of(run, out, "--keep", 0.25)
    assert table["counted"].tolist() == [0, 0, 1, 1, 1, 1]
    assert table["budget"][:2].tolist() == [1.0, 1.0]
    assert table["budget"][2:].mean() == pytest.approx(0.25, abs=1e-12)
    assert table["rank"][2:].tolist() == [3, 1, 4, 2]
    assert yaml.safe_load((out / "budget.yaml").read_text())["not_counted_layers"] == [0]
    gates = np.loadtxt(out / "full_attention_heads.tsv", delimiter="\t")
    assert gates.tolist() == [[1, 1], [0, 1], [0, 0]]
    done = run_here("budget", run, "--keep", 0.25, "--output_dir", tmp_path / "again")
    assert "not counted: 2 key heads of layers 0" in done.stdout
    chunks = make_run(tmp_path / "chunks", layer_type="chunked_attention")
    assert "all layers have a window" in refusal(chunks, "--keep", 0.25)


def test_wrong_values_are_refused(run: Path) -> None:
    for keep in ("0", "-0.1", "1.01"):
        assert "--keep: expected a share above 0 and at most 1" in refusal(run, "--keep", keep)
    assert "--keep: expected a number" in refusal(run, "--keep", "nan")
    assert "did you mean static_error" in refusal(run, "--keep", 0.2, "--order", "static_eror")
    assert "there are static_error, " in refusal(run, "--keep", 0.2, "--order", "xyz")
    assert "--spread: expected a number from 0 to" in refusal(run, "--keep", 0.2, "--spread", 1)


def test_an_existing_folder(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    table_of(run, out, "--keep", 0.25)
    words = ("budget", run, "--keep", 0.5, "--output_dir", out)
    assert "exists; give --overwrite" in run_here(*words).stderr
    assert table_of(run, out, "--keep", 0.5, "--overwrite")["budget"].mean() == pytest.approx(0.5)
    (out / "budget.csv").write_text("changed")
    assert "has files that budget did not write" in run_here(*words, "--overwrite").stderr


def test_runs_that_lack_heads_are_refused(run: Path, tmp_path: Path) -> None:
    words = ("--keep", 0.25)
    without = change_info(write_run(tmp_path / "without"), head_layout=LAYOUT)
    assert "has no key_head_metrics.csv" in refusal(without, *words)
    layout = make_run(tmp_path / "layout")
    change_info(layout, head_layout={})
    assert "numbers of layers and heads" in refusal(layout, *words)
    change_info(layout, head_layout={**LAYOUT, "num_layers": 4})
    message = refusal(layout, *words)
    assert "6 of 8 key heads; not analysed: layer 3 key head 0, layer 3 key head 1" in message
    failed = make_run(tmp_path / "failed", n_q_heads=[2, 2, 1, 2, 2, 2])
    assert "layer 1 key head 0: fewer than 2 query heads" in refusal(failed, *words)


def test_missing_values_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", far_mass=[0.1, np.nan, 0.2, 0.3, 0.1, np.nan])
    reason = {
        "table": "key_heads",
        "columns": ["far_mass"],
        "reason": "no attention columns",
        "heads": 2,
        "values": 1,
        "where": {"0": "1", "2": "1"},
    }
    change_info(run, missing=[reason])
    message = refusal(run, "--keep", 0.25, "--order", "far")
    assert "2 key heads of 6 have no far_mass: layer 0 key head 1, layer 2 key head 1" in message
    assert "(no attention columns). It needs a capture with attention" in message
    message = refusal(run, "--keep", 0.25, "--order", "ap_attended")
    assert "6 key heads of 6 have no ap_attended: all of them" in message


def test_values_without_errors(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", static_error_se=np.nan)
    table = table_of(run, tmp_path / "out", "--keep", 0.25)
    assert table["rank_low"].isna().all()
    assert table["rank"].tolist() == [3, 5, 4, 1, 6, 2]
    done = run_here("budget", run, "--keep", 0.25, "--output_dir", tmp_path / "again")
    assert "How sure the ranks are is not known" in done.stdout


def test_every_order_has_its_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert EVIDENCE.keys() == set(ORDERS)
    with pytest.raises(SystemExit):
        main(["budget", "--help"])
    told = capsys.readouterr().out
    assert all(f"  {order} " in told for order in ORDERS)


def plant(root: Path) -> Path:
    """Keys on a line. Two query heads look in the same direction of it, in random directions of
    each query, or in opposite directions: static errors 0, about 0.25 and 0.5."""
    rng = np.random.default_rng(0)
    signs = [[1.0, 1.0], [1.0, rng.choice([-1.0, 1.0], 300)], [1.0, -1.0]]
    for k_head, group in enumerate(signs):
        for place, sign in enumerate(group):
            q_head = 2 * k_head + place
            rows = head_rows(n=300, d=4, examples=12, seed=q_head)
            rows["vectors"] *= 0.0
            rows["vectors"][:, 0] = sign * rng.uniform(1, 2, 300)
            write_head(root, HeadId(0, q_head, "q"), **rows)
        keys = head_rows(n=300, d=4, examples=12, seed=[k_head, 99])
        keys["vectors"][:, 1:] = 0.0
        write_head(root, HeadId(0, k_head, "k"), **keys)
    return add_rotary(root, width=4, rope=False, rotary=None)


def test_planted_heads_of_a_dump(tmp_path: Path) -> None:
    dump, run = plant(tmp_path / "dump"), tmp_path / "run"
    layout = ("--num_layers", 1, "--num_q_heads", 6, "--num_k_heads", 3)
    done = analyze_here("--dataset_local_root", dump, "--output_dir", run, *layout)
    assert done.returncode == 0, done.stderr
    table = table_of(run, tmp_path / "out", "--keep", 0.25)
    assert table["value"].tolist() == pytest.approx([0.0, 0.25, 0.5], abs=0.05)
    assert table["rank"].tolist() == [3, 2, 1]
    assert table["budget"].tolist() == pytest.approx([0.05, 0.25, 0.45])
    gates = np.loadtxt(tmp_path / "out" / "full_attention_heads.tsv", delimiter="\t", ndmin=2)
    assert gates.tolist() == [[0, 0, 1]]
