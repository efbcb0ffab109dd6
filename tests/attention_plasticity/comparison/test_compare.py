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
from attention_plasticity.comparison.profiles import profile_table
from attention_plasticity.comparison.runs import COMPARED, compare_runs, labelled
from attention_plasticity.comparison.scores import correlations, read_scores
from attention_plasticity.comparison.tables import as_csv, markdown_table, means_table
from attention_plasticity.metrics import ALIGNED_DROP, ALIGNED_LAST
from attention_plasticity.plots import profiles_figure, scores_figure, trajectory_figure
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.labels import labels_of
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, OVER_BUCKETS
from attention_plasticity.tables.profiles import head_profiles
from qk_toolkit.errors import ConfigError
from run_tables import (
    add_bins,
    add_errors,
    bins_table,
    cells_table,
    metrics_table,
    write_run,
)

SHIFTS = {"small": -0.1, "middle": 0.0, "large": 0.05}


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Three runs with plasticity over a bucket only."""
    return [
        write_run(tmp_path / name, model=f"owner/{name}", shift=shift)
        for name, shift in SHIFTS.items()
    ]


@pytest.fixture
def aligned(runs: list[Path]) -> list[Path]:
    """The same runs with plasticity at one position, each with a drop of its own."""
    for number, run in enumerate(runs):
        path = add_bins(run) / "head_metrics.csv"
        table = pd.read_csv(path)
        table[ALIGNED_LAST] -= 0.03 * number
        table[ALIGNED_DROP] += 0.03 * number
        table.to_csv(path, index=False)
    return runs


def compare(*words: object) -> int:
    return main(["compare", *(str(word) for word in words)])


def test_a_row_holds_the_means_over_heads(aligned: list[Path]) -> None:
    opened = [FinishedRun.open(run) for run in aligned]
    compared = compare_runs(labelled(opened))
    assert compared["layer_type"].tolist() == ["all"] * 3
    assert compared["run"].tolist() == ["small", "middle", "large"]
    assert compared["heads"].tolist() == [12, 12, 12]
    assert compared["context"].tolist() == [768, 768, 768]
    for row, run in zip(compared.to_dict(orient="records"), opened, strict=True):
        for name in COMPARED:
            assert row[name] == pytest.approx(run.head_metrics[name].mean())


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


DROP, SHOWN = ALIGNED_DROP, AT_ONE_POSITION


def table_of(*labels: str) -> pd.DataFrame:
    rows = [{"run": label, "heads": 1, "context": math.nan, DROP: -0.25} for label in labels]
    return pd.DataFrame(rows).reindex(columns=["run", "heads", "context", *SHOWN.all])


def test_labels_stand_in_markdown_as_they_are() -> None:
    text = markdown_table(means_table(table_of(*LABELS), SHOWN))
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    inlines = [token for token in tokens if token.type == "inline"]
    cells = [inlines[at] for at in range(0, len(inlines), len(SHOWN.all) + 3)][1:]
    for cell, label in zip(cells, LABELS, strict=True):
        assert "".join(child.content for child in cell.children or []) == label
        assert {child.type for child in cell.children or []} <= {"text", "text_special"}
    assert "$" not in text.replace(r"\$", "")


def test_labels_stand_in_csv_and_start_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(table_of(*LABELS)))))
    for row, label in zip(rows, LABELS, strict=True):
        assert row["run"] == (f"'{label}" if label[0] in "=+-@" else label)
        assert row[DROP] == "-0.25"


def test_labels_stand_in_latex_as_they_are() -> None:
    compared = table_of("a_b|50% <c> {d} & $e$ #1 ~^ \\", "[x]*`-", "--")
    text = latex_float(means_table(compared, SHOWN), "caption", "label", [])
    lines = [line for line in text.splitlines() if line.endswith(r"\\")][1:]
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
    for form, lines in (("markdown", 11), ("csv", 4), ("latex", 24)):
        assert compare(*runs, "--labels", labels, "--format", form) == 0
        told = capsys.readouterr().out
        assert told.count("\n") == lines
        assert "\x1b" not in told
        assert "one two" in told
    assert as_csv(table_of("a\nb", "c\rd")).count("\n") == 3


def test_names_of_scores_start_no_formula(aligned: list[Path], tmp_path: Path) -> None:
    scores = tmp_path / "scores.csv"
    scores.write_text("model,=cmd\nlarge,80\nsmall,60\nmiddle,65\n")
    assert compare(*aligned, "--scores", scores, "--output_dir", tmp_path / "out") == 0
    text = (tmp_path / "out" / "correlations.csv").read_text()
    assert text.splitlines()[1].startswith("'=cmd,3,")


def test_everything_is_written_where_asked(aligned: list[Path], tmp_path: Path) -> None:
    scores = tmp_path / "scores.csv"
    scores.write_text("model,ruler,other\nlarge,80,1\nsmall,60,\nmiddle,65,2\n")
    out = tmp_path / "out"
    words = ("--scores", scores, "--trajectory", "--output_dir", out, "--figures", "svg")
    assert compare(*aligned, *words) == 0
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
    drop = pd.read_csv(out / "compare.csv")[DROP]
    assert table.loc["ruler", "models"] == 3
    assert table.loc["ruler", "pearson"] == pytest.approx(pearsonr(drop, [60, 65, 80]).statistic)
    assert table.loc["ruler", "spearman"] == pytest.approx(1.0)
    assert table.loc["other", "models"] == 2
    assert math.isnan(table.loc["other", "pearson"])


def test_correlations_are_scipys() -> None:
    rng = np.random.default_rng(0)
    drop, score = rng.normal(size=(2, 9))
    compared = pd.DataFrame({DROP: drop})
    scores = pd.DataFrame({"model": [str(i) for i in range(9)], "s": score})
    (found,) = correlations(compared, scores)
    assert found.pearson == pytest.approx(pearsonr(drop, score).statistic)
    assert found.spearman == pytest.approx(spearmanr(drop, score).statistic)


def test_profiles_are_means_over_heads(aligned: list[Path]) -> None:
    """At one position with intervals; buckets have no errors."""
    runs = labelled([FinishedRun.open(add_errors(run)) for run in aligned[:2]], ["a", "b"])
    profiles = profile_table(runs, AT_ONE_POSITION)
    bins = bins_table().groupby(["layer", "q_head", "q_bin"])["plasticity"].mean()
    expected = bins.groupby("q_bin").mean()
    for _, rows in profiles.groupby("run"):
        np.testing.assert_allclose(rows["plasticity"], expected)
        np.testing.assert_allclose(rows["position"], expected.index * 256 + 128)
        assert (rows["half_width"] > 0).all()
        assert set(rows["n_groups"]) == {8}
    over = profile_table(runs, OVER_BUCKETS)
    cells = head_profiles(cells_table()).groupby("q_bucket")["plasticity"].mean()
    np.testing.assert_allclose(over.query("run == 'a'")["plasticity"], cells)
    assert over["half_width"].isna().all()


def test_a_bin_without_a_value_is_not_in_a_profile(aligned: list[Path]) -> None:
    path = aligned[0] / "head_bin_plasticity.csv"
    bins = pd.read_csv(path)
    bins.loc[bins["q_bin"] == 3, ["plasticity", "pooled"]] = np.nan
    bins.to_csv(path, index=False, na_rep="nan")
    runs = labelled([FinishedRun.open(aligned[0])], ["a"])
    assert profile_table(runs, AT_ONE_POSITION)["part"].tolist() == [1, 2]


def test_figures_draw_the_tables(aligned: list[Path]) -> None:
    opened = [FinishedRun.open(add_errors(run)) for run in aligned]
    runs = labelled(opened, ["a", "b", "c"])
    profiles = profile_table(runs, AT_ONE_POSITION)
    figure = profiles_figure(profiles, AT_ONE_POSITION)
    lines = [line for line in figure.axes[0].lines if line.get_label() in "abc"]
    for line, (_, rows) in zip(lines, profiles.groupby("run"), strict=True):
        np.testing.assert_allclose(line.get_xdata(), rows["position"])
        np.testing.assert_allclose(line.get_ydata(), rows["plasticity"])
    assert len(figure.axes[0].collections) == 3  # bands
    assert figure.axes[0].get_xlabel() == "query position (tokens)"
    unknown = profiles.drop(columns="position").assign(position=np.nan)
    assert profiles_figure(unknown, OVER_BUCKETS).axes[0].get_xlabel() == "query bucket"
    compared = compare_runs(runs)
    trajectory = trajectory_figure(compared).axes[0]
    assert [tick.get_text() for tick in trajectory.get_xticklabels()] == ["a", "b", "c"]
    drawn = [line for line in trajectory.lines if "fifth" in str(line.get_label())]
    assert [line.get_label() for line in drawn] == ["first fifth", "last fifth"]
    np.testing.assert_allclose(drawn[1].get_ydata(), compared[ALIGNED_LAST])
    scores = pd.DataFrame({"model": ["a", "b", "c"], "ruler": [1.0, 3.0, 2.0]})
    figure = scores_figure(compared, scores, correlations(compared, scores))
    points = [line.get_xydata()[0] for line in figure.axes[0].lines if line.get_marker() in "osD"]
    np.testing.assert_allclose(points, np.column_stack([compared[DROP], scores["ruler"]]))
    assert "Spearman 0.50\n3 runs: no interval" in figure.axes[0].get_title(loc="left")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]


def test_a_trajectory_over_buckets_has_one_line(runs: list[Path]) -> None:
    comparison = ap.compare(runs)
    axes = comparison.plot("trajectory").axes[0]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), comparison.table["ap_overall"])
    legend = [text.get_text() for text in comparison.plot("trajectory").legends[0].get_texts()]
    assert legend == ["whole context"]
    assert "fifth" not in comparison.caption("trajectory")


def test_many_runs_with_long_names_can_be_drawn() -> None:
    names = [f"checkpoint-{step:06}$" for step in range(0, 30_000, 1000)]
    rows = [
        {"run": name, **dict.fromkeys(COMPARED, 0.5 + place / 100)}
        for place, name in enumerate(names)
    ]
    lines = [
        {"run": name, "layer_type": "all", "heads": 1, "part": part, "position": 100.0 * part}
        for name in names
        for part in range(3)
    ]
    profiles = pd.DataFrame(lines).assign(plasticity=0.5, half_width=0.01, n_groups=8)
    trajectory = trajectory_figure(pd.DataFrame(rows))
    for figure in (profiles_figure(profiles, AT_ONE_POSITION), trajectory):
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


def test_other_choices_of_texts_are_obstacles(tmp_path: Path) -> None:
    given = {"new": True, "old": False}
    folders = [write_run(tmp_path / name, equal_texts=equal) for name, equal in given.items()]
    runs = labelled([FinishedRun.open(folder) for folder in folders], list(given))
    (found,) = obstacles(runs)
    assert found.text.startswith(
        "equal_texts differs: new True, old False; analyse the dumps again"
    )
    (folders[1] / "run.json").unlink()
    assert not obstacles(labelled([FinishedRun.open(folder) for folder in folders], ["a", "b"]))


def cautions_of(folders: list[Path]) -> list[str]:
    runs = labelled([FinishedRun.open(run) for run in folders], list("abc")[: len(folders)])
    found = [caution.text for caution in run_cautions(runs)]
    assert "no plasticity at one position, so plasticity over a bucket" in found[-1]
    return found[:-1]


def test_what_a_reader_should_know_is_noted(runs: list[Path]) -> None:
    assert cautions_of(runs) == []
    short = metrics_table().assign(q_position_max=99)
    short.to_csv(runs[0] / "head_metrics.csv", index=False)
    info = json.loads((runs[1] / "run.json").read_text())
    info["heads"] |= {"not_captured": 5, "failed": 1}
    kinds = {"few_texts": "Fewer than 4 texts.", "attended_unknown": "Of attended pairs."}
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
            {ALIGNED_LAST: [0]},
            [
                "ap_aligned_last20, ap_aligned_drop: b minus a is a difference of means over "
                "different heads: b 8 heads (layers 1-2: 0-3), a all 12 heads."
            ],
        ),
    ],
)
def test_a_difference_of_means_over_different_heads_is_told(
    layout: dict[str, int], left_out: dict[str, list[int]], expected: list[str], tmp_path: Path
) -> None:
    """`left_out` are heads by a column of their numbers, or layers without a value of a column."""
    folders = [add_errors(add_bins(write_run(tmp_path / name))) for name in ("a", "b")]
    table = pd.read_csv(folders[1] / "head_metrics.csv")
    for column, numbers in left_out.items():
        if column in ("layer", "q_head"):
            table = table[~table[column].isin(numbers)]
        else:
            table.loc[table["layer"].isin(numbers), [column, DROP]] = np.nan
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
    assert same[DROP] == (layout == LAYOUT and not left_out)
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
        (["{0}", "{1}", "--scores", "{scores}"], "the drop at one position, which no run has"),
        (["{0}", "{1}", "--scores", "{0}/run.json"], "has no column 'model'"),
        (["{0}", "{1}", "--output_dir", "{0}/run.json/x"], "run.json/x"),
    ],
)
def test_misuse_is_one_line(
    words: list[str], told: str, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    scores = runs[0] / "scores.csv"
    scores.write_text("model,ruler\nsmall,1\nmiddle,2\n")
    assert compare(*(word.format(*runs, scores=scores) for word in words)) in (1, 2)
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
