"""Several runs side by side."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt
from scipy.stats import pearsonr, spearmanr

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.comparison.cautions import obstacles, run_cautions
from attention_plasticity.comparison.latex import latex_float
from attention_plasticity.comparison.runs import compare_runs, labelled
from attention_plasticity.comparison.scores import correlations, read_scores
from attention_plasticity.comparison.tables import as_csv, markdown_table, means_table
from attention_plasticity.metrics import FIFTHS, MEAN_COLUMNS
from attention_plasticity.plots import profiles_figure, scores_figure, trajectory_figure
from attention_plasticity.tables.finished_run import FinishedRun, labels_of
from attention_plasticity.tables.main_plasticity import OVER_BUCKETS
from qk_toolkit.errors import ConfigError
from run_tables import add_errors, metrics_table, write_run

SHIFTS = {"small": -0.1, "middle": 0.0, "large": 0.05}


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        write_run(tmp_path / name, model=f"owner/{name}", shift=shift)
        for name, shift in SHIFTS.items()
    ]


def compare(*words: object) -> int:
    return main(["compare", *(str(word) for word in words)])


def drop_differently(runs: list[Path]) -> None:
    """Give each run a drop of its own."""
    for number, run in enumerate(runs):
        table = metrics_table(shift=SHIFTS[run.name])
        table["ap_last20"] -= 0.03 * number
        table["ap_drop"] = table["ap_first20"] - table["ap_last20"]
        table.to_csv(run / "head_metrics.csv", index=False)


def test_a_row_holds_the_means_over_heads(runs: list[Path]) -> None:
    opened = [FinishedRun.open(run) for run in runs]
    compared = compare_runs(labelled(opened))
    assert compared["layer_type"].tolist() == ["all"] * 3
    assert compared["run"].tolist() == ["small", "middle", "large"]
    assert compared["heads"].tolist() == [12, 12, 12]
    assert compared["context"].tolist() == [768, 768, 768]
    for row, shift in zip(compared.to_dict(orient="records"), SHIFTS.values(), strict=True):
        table = metrics_table(shift=shift)
        for name in MEAN_COLUMNS:
            assert row[name] == pytest.approx(table[name].mean())


@pytest.mark.parametrize("form", ["text", "csv", "markdown", "latex"])
def test_the_table_in_every_form(
    form: str, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(*runs, "--format", form) == 0
    told = capsys.readouterr()
    assert told.err.count("\n") == (form != "text")  # no plasticity at one position
    expected = metrics_table(shift=0.05)["ap_overall"].mean()
    if form == "csv":
        table = pd.read_csv(io.StringIO(told.out))
        assert table["ap_overall"].iloc[2] == pytest.approx(expected, abs=1e-15)
    else:
        assert f"{expected:.3f}" in told.out
        assert "large" in told.out
        assert "…" not in told.out


LABELS = [
    "a_b|50%",
    r"back\slash \| `code` *bold* _em_ ~~gone~~ $x$ #1 @me !",
    "<script>alert(1)</script> &amp; <b>",
    "[link](http://x.example) ![image](x)",
    "=cmd|' /C calc'!A0",
    "+1",
    "-2",
    "@SUM(1)",
    "a--b ?` ^",
]


def table_of(*labels: str) -> pd.DataFrame:
    rows = [{"run": label, "heads": 1, "context": math.nan, "ap_drop": -0.25} for label in labels]
    return pd.DataFrame(rows).reindex(columns=["run", "heads", "context", *MEAN_COLUMNS])


def test_labels_stand_in_markdown_as_they_are() -> None:
    text = markdown_table(means_table(table_of(*LABELS), OVER_BUCKETS))
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    inlines = [token for token in tokens if token.type == "inline"]
    cells = [inlines[at] for at in range(0, len(inlines), len(MEAN_COLUMNS) + 3)][1:]
    for cell, label in zip(cells, LABELS, strict=True):
        assert "".join(child.content for child in cell.children or []) == label
        assert {child.type for child in cell.children or []} <= {"text", "text_special"}
    assert "$" not in text.replace(r"\$", "")


def test_labels_stand_in_csv_and_start_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(table_of(*LABELS)))))
    for row, label in zip(rows, LABELS, strict=True):
        assert row["run"] == (f"'{label}" if label[0] in "=+-@" else label)
        assert row["ap_drop"] == "-0.25"


def test_labels_stand_in_latex_as_they_are() -> None:
    compared = table_of("a_b|50% <c> {d} & $e$ #1 ~^ \\", "[x]*`-", "--")
    text = latex_float(means_table(compared, OVER_BUCKETS), "caption", "label", [])
    lines = [line for line in text.splitlines() if line.endswith(r"\\")][2:]
    assert len(lines) == 3
    assert lines[0].startswith(
        r"\raggedright a\_b\textbar{}50\% \textless{}c\textgreater{} \{d\} \& \$e\$ \#1 "
        r"\textasciitilde{}\textasciicircum{} \textbackslash{} & 1 & -- & "
    )
    # after a line's end, [ or * would be read as an argument of it
    assert lines[1].startswith(r"{[}x]{*}\textasciigrave{}{-} & 1 &")
    assert lines[2].startswith(r"{-}{-} & 1 &")
    assert all(line.endswith(r"& $-$0.250 \\") for line in lines)


def test_labels_of_several_lines_stay_in_their_row(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    labels = "one\ntwo,tab\there,\x1b[31mred"
    for form, lines in (("markdown", 11), ("csv", 4), ("latex", 26)):
        assert compare(*runs, "--labels", labels, "--format", form) == 0
        told = capsys.readouterr().out
        assert told.count("\n") == lines
        assert "\x1b" not in told
        assert "one two" in told
    assert as_csv(table_of("a\nb", "c\rd")).count("\n") == 3


def test_names_of_scores_start_no_formula(runs: list[Path], tmp_path: Path) -> None:
    drop_differently(runs)
    scores = tmp_path / "scores.csv"
    scores.write_text("model,=cmd\nlarge,80\nsmall,60\nmiddle,65\n")
    assert compare(*runs, "--scores", scores, "--output_dir", tmp_path / "out") == 0
    text = (tmp_path / "out" / "correlations.csv").read_text()
    assert text.splitlines()[1].startswith("'=cmd,3,")


def test_everything_is_written_where_asked(runs: list[Path], tmp_path: Path) -> None:
    drop_differently(runs)
    scores = tmp_path / "scores.csv"
    scores.write_text("model,ruler,other\nlarge,80,1\nsmall,60,\nmiddle,65,2\n")
    out = tmp_path / "out"
    words = ("--scores", scores, "--trajectory", "--output_dir", out, "--figures", "svg")
    assert compare(*runs, *words) == 0
    names = sorted(path.name for path in out.iterdir())
    assert names == [
        "compare.csv",
        "compare.md",
        "compare.tex",
        "correlations.csv",
        "differences.csv",
        "key_heads.csv",
        "notes.csv",
        "profiles.svg",
        "profiles.txt",
        "scores.svg",
        "scores.txt",
        "trajectory.svg",
        "trajectory.txt",
    ]
    table = pd.read_csv(out / "correlations.csv").set_index("score")
    drop = pd.read_csv(out / "compare.csv")["ap_drop"]
    assert table.loc["ruler", "models"] == 3
    assert table.loc["ruler", "pearson"] == pytest.approx(pearsonr(drop, [60, 65, 80]).statistic)
    assert table.loc["ruler", "spearman"] == pytest.approx(1.0)
    assert table.loc["other", "models"] == 2
    assert math.isnan(table.loc["other", "pearson"])


def test_correlations_are_scipys() -> None:
    rng = np.random.default_rng(0)
    drop, score = rng.normal(size=(2, 9))
    compared = pd.DataFrame({"ap_drop": drop})
    scores = pd.DataFrame({"model": [str(i) for i in range(9)], "s": score})
    (found,) = correlations(compared, scores)
    assert found.pearson == pytest.approx(pearsonr(drop, score).statistic)
    assert found.spearman == pytest.approx(spearmanr(drop, score).statistic)


def test_figures_draw_the_table(runs: list[Path]) -> None:
    drop_differently(runs)
    opened = [FinishedRun.open(run) for run in runs]
    compared = compare_runs(labelled(opened, ["a", "b", "c"]))
    lines = [line for line in profiles_figure(compared).axes[0].lines if line.get_label() in "abc"]
    for line, row in zip(lines, compared.itertuples(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), [getattr(row, name) for name in FIFTHS])
    trajectory = trajectory_figure(compared).axes[0]
    assert [tick.get_text() for tick in trajectory.get_xticklabels()] == ["a", "b", "c"]
    np.testing.assert_allclose(trajectory.lines[0].get_ydata(), compared["ap_overall"])
    np.testing.assert_allclose(trajectory.lines[2].get_ydata(), compared["ap_last20"])
    scores = pd.DataFrame({"model": ["a", "b", "c"], "ruler": [1.0, 3.0, 2.0]})
    figure = scores_figure(compared, scores, correlations(compared, scores))
    points = [line.get_xydata()[0] for line in figure.axes[0].lines if line.get_marker() in "osD"]
    np.testing.assert_allclose(points, np.column_stack([compared["ap_drop"], scores["ruler"]]))
    assert "Spearman 0.50\n3 runs: no interval" in figure.axes[0].get_title(loc="left")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]


def test_many_runs_with_long_names_can_be_drawn() -> None:
    rows = [
        {"run": f"checkpoint-{step:06}$", **dict.fromkeys(MEAN_COLUMNS, 0.5 + step / 1e5)}
        for step in range(0, 30_000, 1000)
    ]
    compared = pd.DataFrame(rows)
    for figure in (profiles_figure(compared), trajectory_figure(compared)):
        figure.draw_without_rendering()


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("query_model", "positional", "full"), ("pair_sampling", "bucket", "context")],
)
def test_runs_of_different_methods_are_refused_unless_forced(
    name: str, first: str, second: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_run(tmp_path / "one", model="one")
    other = write_run(tmp_path / "other", model="other", **{name: second})
    assert compare(one, other) == 2
    told = capsys.readouterr().err
    assert f"{name} differs: one {first}, other {second}" in told
    assert f"; analyse the dumps again with the same {name}. --force shows them anyway" in told
    assert told.count("\n") == 1
    assert compare(one, other, "--force") == 0
    assert f"- {name} differs" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=rf"{name} differs.*force=True shows them anyway"):
        ap.compare([one, other])


def test_a_run_without_a_column_is_refused_unless_forced(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    table = metrics_table().drop(columns=["ap_20to40"])
    table.to_csv(runs[1] / "head_metrics.csv", index=False)
    assert compare(*runs) == 2
    assert "middle: the table of heads has no column ap_20to40" in capsys.readouterr().err
    assert compare(*runs, "--force", "--format", "markdown") == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "| middle |" in line]
    assert "–" in row


def test_reach_of_local_pairs_matters_to_local_pairs_alone(tmp_path: Path) -> None:
    for sampling, count in (("bucket", 0), ("local", 1)):
        opened = [
            FinishedRun.open(
                write_run(
                    tmp_path / f"{sampling}{reach}", pair_sampling=sampling, max_rel_dist=reach
                )
            )
            for reach in (0.05, 0.1)
        ]
        assert len(obstacles(labelled(opened, ["a", "b"]))) == count


def test_a_run_before_equal_texts_used_all_texts(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "new", equal_texts=True), write_run(tmp_path / "old")]
    runs = labelled([FinishedRun.open(folder) for folder in folders], ["new", "old"])
    (found,) = obstacles(runs)
    assert found.text.startswith(
        "equal_texts differs: new True, old False; analyse the dumps again"
    )
    (folders[1] / "run.json").unlink()
    assert not obstacles(labelled([FinishedRun.open(folder) for folder in folders], ["a", "b"]))


def cautions_of(folders: list[Path]) -> list[str]:
    runs = labelled([FinishedRun.open(run) for run in folders], list("abc")[: len(folders)])
    found = [caution.text for caution in run_cautions(runs, compare_runs(runs))]
    assert "no plasticity at one position, so plasticity over a bucket" in found[-1]
    return found[:-1]


def test_what_a_reader_should_know_is_noted(runs: list[Path]) -> None:
    assert cautions_of(runs) == []
    short = metrics_table().assign(q_position_max=99)
    short.to_csv(runs[0] / "head_metrics.csv", index=False)
    info = json.loads((runs[1] / "run.json").read_text())
    info["heads"] |= {"not_captured": 5, "failed": 1}
    kinds = {"few_texts": "Fewer than 4 texts.", "few_later_queries": "Of attended pairs."}
    info["warnings"] = [{"kind": kind, "text": text} for kind, text in kinds.items()]
    (runs[1] / "run.json").write_text(json.dumps(info))
    (runs[2] / "run.json").unlink()
    notes = cautions_of(runs)
    assert "different contexts (100 to 768 tokens)" in notes[0]
    assert notes[1:] == [
        "b: 5 heads were not captured.",
        "b: 1 head failed.",
        "b: Fewer than 4 texts.",
        "c: no run.json, so the settings are not known.",
    ]


@pytest.mark.parametrize(
    ("changes", "caution"),
    [
        ({"bin_size": 256}, "different bins (a 256, b 512). "),
        (
            {"dump": {"min_bucket_size": 64}},
            "different buckets (a uniform, 64 tokens, b uniform, 512 tokens). Plasticity over a",
        ),
        (
            {"dump": {"sampler": {"type": "log_uniform", "base_rate": 16.0, "seed": 1}}},
            "different samplers (a log_uniform, base_rate 16.0, b uniform, base_rate 4.0, "
            "key_base_rate 8.0). Means over captured queries",
        ),
        (
            {"config": {"layers": [0, 1, 2], "heads": [3]}},
            "different chosen heads (a layers 0-2, heads 3, b all). The means go over",
        ),
        ({"dump": {"sampler": {"type": "uniform", "base_rate": 4.0, "key_base_rate": 8.0}}}, None),
        ({"dump": {"sampler": None, "bucket_type": None}}, None),
        ({"bin_size": None}, None),
    ],
)
def test_different_samples_are_noted(
    changes: dict[str, Any], caution: str | None, tmp_path: Path
) -> None:
    dump = {
        "min_bucket_size": 512,
        "sampler": {"type": "uniform", "base_rate": 4.0, "key_base_rate": 8.0, "seed": 0},
    }
    for name, own in (("a", changes), ("b", {})):
        file = write_run(tmp_path / name) / "run.json"
        info = {"bin_size": 512} | json.loads(file.read_text())
        info["input"]["dump"] |= dump | own.get("dump", {})
        info["config"] |= own.get("config", {})
        info |= {key: value for key, value in own.items() if key == "bin_size"}
        file.write_text(json.dumps(info))
    found = cautions_of([tmp_path / "a", tmp_path / "b"])
    assert len(found) == (0 if caution is None else 1)
    if caution is not None:
        assert f"The runs have {caution}" in found[0]


def test_other_texts_are_noted_without_errors(runs: list[Path]) -> None:
    for number, run in enumerate(runs[:2]):
        info = json.loads((run / "run.json").read_text())
        info["input"]["texts"] = {"count": 4, "digest": f"d{number}"}
        (run / "run.json").write_text(json.dumps(info))
    notes = ap.compare(runs[:2], labels=["a", "b"]).notes
    assert notes["text"].tolist()[1:] == ["b and a have different texts."]


LAYOUT = {"num_layers": 3, "num_q_heads": 4, "num_k_heads": 2}


@pytest.mark.parametrize(
    ("layout", "left_out", "expected"),
    [
        (LAYOUT, {}, []),
        ({**LAYOUT, "num_q_heads": 3, "num_k_heads": 3}, {"q_head": [3]}, []),  # another model
        (
            LAYOUT,
            {"layer": [1]},
            ["b minus a is a difference of means over different heads: b 8 heads (layers 0,2: "],
        ),
        (
            {**LAYOUT, "num_layers": 5},
            {},
            ["b minus a is a difference of means over different heads: b 12 heads (layers 0-2: 0-"],
        ),
        (
            LAYOUT,
            {"ap_last20": [0]},
            [
                "ap_last20, ap_drop: b minus a is a difference of means over different heads: b 8 "
                "heads (layers 1-2: 0-3), a all 12 heads."
            ],
        ),
    ],
)
def test_a_difference_of_means_over_different_heads_is_told(
    layout: dict[str, int], left_out: dict[str, list[int]], expected: list[str], tmp_path: Path
) -> None:
    """`left_out` are heads by a column of their numbers, or layers without a value of a column."""
    folders = [add_errors(write_run(tmp_path / name)) for name in ("a", "b")]
    table = pd.read_csv(folders[1] / "head_metrics.csv")
    for column, numbers in left_out.items():
        if column in ("layer", "q_head"):
            table = table[~table[column].isin(numbers)]
        else:
            table.loc[table["layer"].isin(numbers), [column, "ap_drop"]] = np.nan
    table.to_csv(folders[1] / "head_metrics.csv", index=False, na_rep="nan")
    for folder, sizes in zip(folders, (LAYOUT, layout), strict=True):
        info = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(info | {"head_layout": sizes}))
    comparison = ap.compare(folders, labels=["a", "b"])
    found = comparison.notes[comparison.notes["concerns"] == "differences"]["text"]
    told = [text for text in found if "different heads" in text]
    assert len(told) == len(expected)
    for text, words in zip(told, expected, strict=True):
        assert text.startswith(words)
    same = comparison.differences.set_index("quantity")["same_heads"]
    assert same["ap_overall"] == (layout == LAYOUT and "layer" not in left_out)
    assert same["ap_drop"] == (layout == LAYOUT and not left_out)
    marked = "‡" in comparison.to_markdown()
    assert marked == (not same.all())
    assert marked == (r"\ddag{}" in comparison.to_latex())
    assert ("‡: the two means go over different heads." in comparison.to_markdown()) == marked


def test_runs_of_one_model_are_named_by_their_folders(tmp_path: Path) -> None:
    opened = [FinishedRun.open(write_run(tmp_path / name)) for name in ("x", "y")]
    assert labels_of(opened) == ["Tiny-1B (x)", "Tiny-1B (y)"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["{0}"], "expected two runs or more"),
        (["{0}", "nowhere"], "nowhere: does not exist"),
        (["{0}", "{1}", "--labels", "a"], "labels: 1 given for 2 runs"),
        (["{0}", "{1}", "--labels", "a,a"], "labels: must be different and not empty, got a, a"),
        (["{0}", "{1}", "--trajectory"], "add --output_dir"),
        (["{0}", "{1}", "--format", "html"], "--format"),
        (["{0}", "{1}", "--scores", "{0}/none.csv"], "none.csv: does not exist"),
        (["{0}", "{1}", "--scores", "{0}/run.json"], "has no column 'model'"),
        (["{0}", "{1}", "--output_dir", "{0}/run.json/x"], "run.json/x"),
    ],
)
def test_misuse_is_one_line(
    words: list[str], told: str, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(*(word.format(*runs) for word in words)) in (1, 2)
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert told in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model,s\na,1\n", "has no row for b (models: a); give the runs these names as labels"),
        ("model\na\nb\n", "has no column of scores"),
        ("model,s\na,1\nb,good\n", "scores.csv: s: expected finite numbers, got 'good'"),
        ("model,s,t\na,1,3\nb,,-inf\n", "scores.csv: t: expected finite numbers, got '-inf'"),
        ("model,s\na,True\nb,\n", "scores.csv: s: expected finite numbers, got 'True'"),
        ("model,s\na,1\na,2\nb,1\n", "'a' has two rows"),
        ("", "cannot be read as CSV"),
    ],
)
def test_wrong_scores_are_told(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_scores(path, ["a", "b"])
    assert told in str(caught.value)
