"""Plasticity by length of the context, against plain sums over the rows of the CSV files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.comparison.runs import ComparedRun, labelled
from attention_plasticity.family.lengths import length_parts, length_table
from attention_plasticity.family.lengths_figure import lengths_figure, phase_fifths_figure
from attention_plasticity.plots.captions import caption_of
from attention_plasticity.tables.finished_run import FinishedRun
from family_models import small_models
from qk_toolkit.errors import ConfigError
from report_runs import BIN_SIZE, write_run

STUDENT_11 = 2.2009851600  # 97.5 % point of Student's t with 11 degrees of freedom, from a table


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ComparedRun]:
    return small_models(tmp_path_factory.mktemp("lengths"), 2)


def test_the_parts_of_long_and_short_contexts() -> None:
    names = {tokens: [part.name for part in length_parts(tokens)] for tokens in (16384, 131072)}
    assert names[16384] == ["0–2K", "2–4K", "4–8K", "8–16K"]
    assert names[131072] == ["0–8K", "8–16K", "16–32K", "32–64K", "64–128K"]
    assert [part.name for part in length_parts(131073)][-1] == "128–256K"
    assert [part.name for part in length_parts(16385)] == ["0–8K", "8–16K", "16–32K"]
    assert [part.name for part in length_parts(896)] == ["0–128", "128–256", "256–512", "512–1K"]
    for tokens in (1, 2, 100, 8192, 40_000):
        parts = length_parts(tokens)
        assert parts[0].start == 0
        assert parts[-1].start < tokens <= parts[-1].end


def sums(
    folder: Path, quantity: str, bins: range
) -> tuple[dict[tuple[int, int], float], list[float]]:
    """Mean of the values of each head, and the influence of each group on the mean over heads."""
    rows = pd.read_csv(folder / "head_influences.csv")
    rows = rows[(rows["quantity"] == quantity) & rows["bin"].isin(list(bins))]
    found: dict[tuple[int, int], list[float]] = {}
    groups = [0.0] * 16
    for row in rows.to_dict("records"):
        found.setdefault((row["layer"], row["q_head"]), []).append(row["value"])
        for group in range(16):
            groups[group] += row[f"group_{group:02d}"]
    assert {len(values) for values in found.values()} == {len(bins)}
    means = {head: sum(values) / len(values) for head, values in found.items()}
    return means, [total / len(found) / len(bins) for total in groups]


@pytest.mark.parametrize(("part", "bins"), [("128–256", range(2, 4)), ("512–1K", range(8, 14))])
def test_values_and_errors_are_those_of_plain_sums(
    runs: list[ComparedRun], part: str, bins: range
) -> None:
    table = length_table(runs)
    chosen = (table["run"] == "m1") & (table["layer_type"] == "all") & (table["part"] == part)
    rows = table[chosen].set_index("quantity")
    first, first_groups = sums(runs[1].run.folder, "ap_bin", range(1, 2))  # bin 0 has no value
    own, groups = sums(runs[1].run.folder, "ap_bin", bins)
    pooled, pooled_groups = sums(runs[1].run.folder, "ap_bin_pooled", bins)
    heads = len(own)
    aligned = sum(own.values()) / heads
    expected = {
        "ap_aligned": (aligned, groups),
        "ap_phase": (
            sum(pooled.values()) / heads - aligned,
            [one - other for one, other in zip(pooled_groups, groups, strict=True)],
        ),
        "ap_aligned_drop": (
            sum(first.values()) / heads - aligned,
            [one - other for one, other in zip(first_groups, groups, strict=True)],
        ),
    }
    for quantity, (value, shares) in expected.items():
        row = rows.loc[quantity]
        error = math.sqrt(sum(share * share for share in shares))
        assert row["mean"] == pytest.approx(value, abs=1e-12)
        assert row["standard_error"] == pytest.approx(error, abs=1e-12)
        assert row["high"] - row["mean"] == pytest.approx(STUDENT_11 * error, rel=1e-8)
        assert (row["heads"], row["bins"], row["texts"]) == (29, len(bins), 6)
        assert row["first_position"] == bins[0] * BIN_SIZE
        assert row["last_position"] == (bins[-1] + 1) * BIN_SIZE - 1


def test_types_of_layers_have_rows_of_their_own(runs: list[ComparedRun]) -> None:
    table = length_table(runs)
    rows = table[(table["run"] == "m0") & (table["part"] == "256–512")]
    by_type = rows[rows["quantity"] == "ap_aligned"].set_index("layer_type")
    assert by_type["heads"].to_dict() == {"all": 29, "full_attention": 23, "sliding_attention": 6}
    own, _ = sums(runs[0].run.folder, "ap_bin", range(4, 8))
    windowed = [value for (layer, _), value in own.items() if layer == 1]
    mean = by_type.loc["sliding_attention", "mean"]
    assert mean == pytest.approx(sum(windowed) / len(windowed), abs=1e-12)


def test_fifths_have_the_phase_only(runs: list[ComparedRun]) -> None:
    table = length_table(runs)
    fifths = table[table["divided"] == "fifth"]
    assert set(fifths["quantity"]) == {"ap_phase", "ap_phase_drop"}
    # 896 tokens: fifths end at 179.2, 358.4, 537.6, ...; the middle of bin b is at 64 b + 32
    rows = fifths[(fifths["run"] == "m0") & (fifths["layer_type"] == "all")]
    phase = rows[rows["quantity"] == "ap_phase"].set_index("part")
    assert phase["bins"].tolist() == [2, 3, 2, 3, 3]  # bin 0 has no value
    own, _ = sums(runs[0].run.folder, "ap_bin", range(3, 6))
    pooled, _ = sums(runs[0].run.folder, "ap_bin_pooled", range(3, 6))
    plain = (sum(pooled.values()) - sum(own.values())) / len(own)
    assert phase.loc["20–40 %", "mean"] == pytest.approx(plain, abs=1e-12)


def test_a_bin_without_a_value_takes_part_in_no_mean(tmp_path: Path) -> None:
    """Bin 3 has too few texts; the part from 128 to 256 has the bins 2 and 3."""
    folder = write_run(tmp_path / "run", position=True)
    for file, column, names in (
        ("head_bin_plasticity.csv", "q_bin", ["plasticity", "pooled"]),
        ("head_influences.csv", "bin", ["value"]),
    ):
        table = pd.read_csv(folder / file)
        table.loc[table[column] == 3, names] = np.nan
        table.to_csv(folder / file, index=False, na_rep="nan")
    table = length_table(labelled([FinishedRun.open(folder)], ["m"]))
    chosen = (table["part"] == "128–256") & (table["layer_type"] == "all")
    row = table[chosen & (table["quantity"] == "ap_aligned")].iloc[0]
    own, groups = sums(folder, "ap_bin", range(2, 3))
    assert row["bins"] == 1
    assert row["mean"] == pytest.approx(sum(own.values()) / len(own), abs=1e-12)
    assert row["standard_error"] == pytest.approx(np.linalg.norm(groups))


def test_a_run_without_influences_has_values_and_no_errors(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", position=True)
    (folder / "head_influences.csv").unlink()
    info = json.loads((folder / "run.json").read_text())
    del info["tables"]["influences"]
    (folder / "run.json").write_text(json.dumps(info))
    runs = labelled([FinishedRun.open(folder)], ["m"])
    table = length_table(runs)
    assert table["mean"].notna().all()
    assert table["standard_error"].isna().all()
    cells = pd.read_csv(folder / "head_bin_plasticity.csv")
    only = cells[cells["q_bin"] == 1]  # one cell per head; windowed layers weigh by pairs
    rows = table[(table["part"] == "0–128") & (table["quantity"] == "ap_aligned")]
    assert rows.set_index("layer_type").loc["all", "mean"] == pytest.approx(
        only["plasticity"].mean(), abs=1e-12
    )
    assert "errors are not known" in lengths_figure(table, runs).get_supxlabel()


def test_runs_without_bins_have_no_rows_and_are_named(
    tmp_path: Path, runs: list[ComparedRun]
) -> None:
    plain = labelled([FinishedRun.open(write_run(tmp_path / "plain", errors=True))], ["plain"])
    table = length_table([*runs, *plain])
    assert set(table["run"]) == {"m0", "m1"}
    caption = caption_of(lengths_figure(table, [*runs, *plain]))
    assert caption is not None
    assert "No plasticity at one position: plain." in caption
    nothing = length_table(plain)
    assert nothing.empty
    with pytest.raises(ConfigError, match="nothing to draw"):
        lengths_figure(nothing, plain)


@pytest.mark.parametrize(("number", "width"), [(2, 3.3), (2, 7.0), (5, 7.0)])
def test_the_figure_has_labels_and_a_line_per_model(
    tmp_path: Path, number: int, width: float
) -> None:
    models = small_models(tmp_path, number)
    table = length_table(models)
    figure = lengths_figure(table, models, width=width)
    labels = [axes.get_ylabel().replace("\n", " ") for axes in figure.axes]
    assert labels[0].startswith("plasticity at one position")
    assert labels[1:] == [
        "rotary phase",
        "drop of plasticity at one position",
        "drop of rotary phase",
    ]
    assert {axes.get_xlabel() for axes in figure.axes} == {"position (tokens)"}
    assert len(figure.legends[0].get_texts()) == number
    caption = caption_of(figure)
    assert caption is not None
    assert "A drop is the value at 0–128 minus the value at this length." in caption
    assert caption_of(phase_fifths_figure(table, models, width=width)) is not None
