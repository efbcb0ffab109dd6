"""`ap.compare` in a notebook, layer types, names in narrow places, LaTeX and figures."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy.stats import t

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.comparison.runs import short_names
from attention_plasticity.comparison.scores import correlations
from attention_plasticity.metrics import ALIGNED_DROP as DROP
from attention_plasticity.plots import profiles_figure, scores_figure
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, OVER_BUCKETS
from report_runs import write_run
from run_tables import add_bins, add_errors
from run_tables import write_run as write_full_run

LATEX_COMMANDS = """
    begin end centering sloppy caption label smallskip small setlength tabcolsep toprule midrule
    cmidrule bottomrule multicolumn scriptsize footnotesize raggedright medskip linewidth par
    allowbreak penalty leftskip tabularnewline ldots quad pm dag textless textgreater
"""
LONG = "model-with-a-very-long-name-of-the-second-kind"
FULL = "owner/full_attention"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs with errors and two types of layers, and one without errors, with one type."""
    root = tmp_path_factory.mktemp("runs")
    models = (f"owner/{LONG}-a", f"owner/{LONG}-b")
    mixed = [
        write_run(root / str(seed), seed, model, ["Few texts & 50 % <more>_"], position=True)
        for seed, model in enumerate(models)
    ]
    return [*mixed, without_errors(add_bins(write_full_run(root / "full", model=FULL)))]


def without_errors(run: Path) -> Path:
    """The run of a dump with few texts."""
    path = run / "head_metrics.csv"
    table = pd.read_csv(path)
    errors = [name for name in table if name.endswith("_se")]
    table.assign(**dict.fromkeys(errors, np.nan), n_text_groups=3).to_csv(path, index=False)
    return run


@pytest.fixture(scope="module")
def comparison(folders: list[Path]) -> ap.Comparison:
    scores = pd.DataFrame({"model": [f"{LONG}-a", f"{LONG}-b", "full_attention"]})
    scores["a benchmark with a very long name, over all tasks"] = [1.0, 3.0, 2.0]
    scores["ruler_50%"] = [2.0, 1.0, 4.0]
    return ap.compare([ap.open_run(folders[0]), *folders[1:]], scores=scores, force=True)


def test_the_object_has_tables_and_short_texts(
    comparison: ap.Comparison, folders: list[Path], tmp_path: Path
) -> None:
    assert repr(comparison) == (
        f"Comparison({LONG}-a, {LONG}-b, full_attention; {len(comparison.notes)} notes)"
    )
    assert comparison._repr_markdown_() == comparison.to_markdown()
    assert list(comparison.notes) == ["concerns", "runs", "text"]
    assert set(comparison.correlations["score"]) == set(comparison.scores.columns[1:])  # type: ignore[union-attr]
    for _ in range(2):  # the second time, the files are replaced
        paths = comparison.save(tmp_path / "out", "svg", trajectory=True)
    assert {path.name for path in paths} == {path.name for path in (tmp_path / "out").iterdir()}
    assert (tmp_path / "out" / "compare.csv").read_text() == comparison.to_csv()
    caption = (tmp_path / "out" / "profiles.txt").read_text()
    assert caption.startswith(comparison.caption("profiles").rstrip() + "\n\nFigure made with")
    for words in (
        "29 heads in 5 layers (4 full attention, 1 sliding window), context 896 tokens",
        f"model owner/{LONG}-a",
        "bin_size 64",
        "Student's t with 11 degrees of freedom",
        "Few texts & 50 % <more>_",
    ):
        assert words in caption
    with pytest.raises(ap.ConfigError, match="unknown figure; choose profiles, traj"):
        comparison.plot("map")
    with pytest.raises(ap.ConfigError, match="compare the runs with scores"):
        ap.compare(folders[:2]).plot("scores")
    with pytest.raises(ap.ConfigError, match="expected two runs or more, got 1"):
        ap.compare(folders[:1])


def test_intervals_are_described_as_they_are(comparison: ap.Comparison) -> None:
    """The third run has no errors."""
    for kind in ("profiles", "trajectory", "scores"):
        note = str(comparison.plot(kind).get_supxlabel())
        assert "interval over texts, where it is known" in note
        caption = comparison.caption(kind)
        assert "95 % intervals over texts, where they are known: " in caption
        assert "averaged over heads first." in caption
    rows = comparison.table[comparison.table["run"] != "full_attention"]
    both = replace(comparison, table=rows, cautions=(), runs=comparison.runs[:2])
    assert both.plot().get_supxlabel() == "bands: 95 % interval over texts"
    assert "Bands are 95 % intervals over texts: Student" in both.caption()
    assert both.plot("trajectory").get_supxlabel() == "whiskers: 95 % interval over texts"
    partly = replace(both, table=rows.assign(ap_aligned_last20_se=np.nan))
    assert "interval over texts, where it is known" in str(
        partly.plot("trajectory").get_supxlabel()
    )
    assert "intervals over texts, where they are known" in partly.caption("trajectory")


def test_every_layer_type_has_its_line_or_is_left_out(
    comparison: ap.Comparison, folders: list[Path]
) -> None:
    types = ["all", "chunked_attention", "sliding_attention", "mamba", "full_attention", "x", "y"]
    rows = comparison.profiles.query("layer_type == 'all'").iloc[[0] * len(types)]
    legend = profiles_figure(rows.assign(layer_type=types), AT_ONE_POSITION).legends[0]
    styles = {str(line._unscaled_dash_pattern) for line in legend.get_lines()}  # type: ignore[attr-defined]
    assert len(styles) == len(types)
    assert "Lines with gaps are the heads of one type" in comparison.caption()
    many = ap.compare([folders[0]] * 5, labels=list("abcde"))
    assert len(many.plot().legends[0].get_lines()) == 5
    assert "types of layers left out: more than 12 lines" in str(many.plot().get_supxlabel())
    assert "Types of layers are left out" in many.caption()
    assert "Lines with gaps" not in many.caption()


def test_warnings_of_a_selected_run_are_those_of_the_whole_run(folders: list[Path]) -> None:
    run = ap.open_run(folders[0])
    parts = [run.select(layer_type=name) for name in ("full", "sliding")]
    comparison = ap.compare([*parts, run], labels=["a", "b", "all"])
    texts = comparison.notes["text"].tolist()
    for label in "ab":
        assert f"{label}: whole run: 1 head failed." in texts
        assert f"{label}: whole run: Few texts & 50 % <more>_" in texts
    assert "all: 1 head failed." in texts
    assert "whole run: some heads failed: a, b" in str(comparison.plot().get_supxlabel())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"runs": "folder"}, "runs: expected a list of runs, got 'folder'; put it in a list"),
        ({"runs": Path("folder")}, "got PosixPath.*; put it in a list"),
        ({"runs": None}, "runs: expected a list of runs, got None"),
        ({"runs": [3, 4]}, "runs: expected runs or folders of runs, got 3"),
        ({"labels": "ab"}, "labels: expected a list of texts, one for each run, got 'ab'"),
        ({"labels": [1, 2]}, "labels: 1: expected a text, such as '1'"),
        ({"scores": {"model": ["a"]}}, "scores: expected a DataFrame or the path.*got a dict"),
        ({"scores": pd.DataFrame([["a", 1, 2]], columns=["model", 7, "7"])}, "two columns.*'7'"),
    ],
)
def test_misuse_in_python_is_explained(
    given: dict[str, Any], told: str, folders: list[Path]
) -> None:
    runs = [ap.open_run(folder) for folder in folders[:2]]
    with pytest.raises(ap.ConfigError, match=told):
        ap.compare(**({"runs": runs} | given))
    with pytest.raises(ap.ConfigError, match=r"a list of runs, got <Run .*; put it in a"):
        ap.compare(runs[0])  # type: ignore[arg-type]


def test_nothing_is_written_if_a_file_cannot_be(
    comparison: ap.Comparison,
    folders: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ap.ConfigError, match=r"profiles\.jpg: expected a name ending in"):
        comparison.save(tmp_path / "new", "jpg")
    assert not (tmp_path / "new").exists()
    for name in ("trajectory.txt", "scores.txt", "notes.csv/folder"):
        out = tmp_path / name[:5]
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
        with pytest.raises(ap.ConfigError, match=name.split("/")[0]):
            comparison.save(out, trajectory=True)
        assert len(list(out.iterdir())) == 1
    (tmp_path / "profiles.txt").write_text("mine")
    words = ["compare", *map(str, folders[:2]), "--output_dir", str(tmp_path)]
    before = sorted(tmp_path.iterdir())
    assert main(words) == 2
    assert capsys.readouterr().out == ""
    assert sorted(tmp_path.iterdir()) == before


def test_layer_types_have_rows_of_their_own(
    comparison: ap.Comparison, folders: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = comparison.table.set_index(["run", "layer_type"])
    assert list(rows.index.get_level_values("layer_type")) == [
        *("all", "full_attention", "sliding_attention") * 2,
        "all",
    ]
    assert rows["heads"].tolist() == [29, 23, 6, 29, 23, 6, 12]
    chosen = ap.open_run(folders[0]).select(layer_type="sliding").head_metrics
    mean = chosen[DROP].mean()
    assert rows.loc[(f"{LONG}-a", "sliding_attention"), DROP] == pytest.approx(mean)
    found = comparison.differences.groupby("run", sort=False)["layer_type"].unique()
    assert found[f"{LONG}-b"].tolist() == ["all", "full_attention", "sliding_attention"]
    assert found["full_attention"].tolist() == ["all", "full_attention"]
    full = comparison.differences.query("run == 'full_attention' and quantity == @DROP")
    expected = rows.loc[("full_attention", "all"), DROP]
    expected -= rows.loc[(f"{LONG}-a", "full_attention"), DROP]
    assert full["difference"].iloc[1] == pytest.approx(expected)
    assert "different types of layers" in comparison.table["cautions"].iloc[0]
    assert f"{LONG}-a · sliding window | 6 |" in comparison.to_markdown()
    assert r"\quad sliding window & 6 &" in comparison.to_latex()
    names = [text.get_text() for text in comparison.plot().legends[0].get_texts()]
    assert sum(name.endswith("· sliding window (6 heads)") for name in names) == 2
    assert len(set(names)) == 7
    assert main(["compare", *map(str, folders), "--force"]) == 0
    assert capsys.readouterr().out.count("\n  sliding window") == 2 + 1 + 2


def test_the_text_fits_in_80_columns(
    folders: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["compare", *map(str, folders), "--force"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = [line.split()[0] for line in lines[3:] if re.match(r"\S+ +\d+ +[\d,]+ ", line)]
    assert len(set(shown)) == 3
    assert f"- {shown[0]} is {LONG}-a" in lines
    assert "…" in shown[0]
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["compare", *map(str, folders), "--force"]) == 0
    narrow = capsys.readouterr().out
    assert all(line.split()[1:] == narrow.splitlines()[3].split()[1:] for line in lines[3:4])
    assert not re.search(r"[\d.]…", narrow.replace(LONG, ""))


@given(st.lists(st.text("ab-", min_size=1, max_size=40), min_size=1, unique=True))
def test_short_names_are_short_and_different(names: list[str]) -> None:
    short = short_names(names, 12)
    assert len(set(short)) == len(names)
    assert all(len(one) <= 12 for one in short)
    assert [one for one in names if len(one) <= 12] == [
        one for one, name in zip(short, names, strict=True) if len(name) <= 12
    ]


def test_latex_has_only_booktabs_and_escaped_text(comparison: ap.Comparison) -> None:
    text = comparison.to_latex()
    assert text.startswith("% in the preamble: \\usepackage{booktabs}\n")
    labels = re.findall(r"\\label{(.*)}", text)
    assert labels == [
        "tab:attention-plasticity",
        "tab:plasticity-differences",
        "tab:attention-plasticity-bucket",
        "tab:plasticity-correlations",
    ]
    depth: list[str] = []
    for kind, name in re.findall(r"\\(begin|end){([\w*]+)}", text):
        if kind == "begin":
            depth.append(name)
        else:
            assert depth.pop() == name
    assert depth == []
    body = text.split("\n", 1)[1]
    plain = re.sub(r"\\[\\&%$#_{}]", "", body)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert not re.search(r"[%#_~^<>|±·…–†]", plain)
    assert set(re.findall(r"\\([a-z]+)", plain)) <= set(LATEX_COMMANDS.split())
    for columns, table in re.findall(r"\\begin{tabular}{(lr*)}(.*?)\\end{tab", body, re.DOTALL):
        lines = [line for line in table.splitlines() if line.endswith(r"\\")]
        rows = [line for line in lines if r"\multicolumn" not in line]
        assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {len(columns)}
    assert r"Few texts \& 50 \% \textless{}more\textgreater{}\_" in text


def boxes(figure: Figure) -> tuple[list[object], list[object]]:
    figure.draw_without_rendering()
    renderer = figure._get_renderer()  # type: ignore[attr-defined]
    parts = [axes.get_tightbbox(renderer) for axes in figure.axes if axes.axison]
    return parts, [legend.get_window_extent(renderer) for legend in figure.legends]


@pytest.mark.parametrize("kind", ["profiles", "trajectory", "scores"])
def test_nothing_in_a_figure_overlaps_or_is_cut(kind: str, comparison: ap.Comparison) -> None:
    figure = comparison.plot(kind)
    panels, legends = boxes(figure)
    notes = figure._supxlabel.get_window_extent()  # type: ignore[attr-defined]
    inside = figure.bbox.padded(1.0)
    parts = [*panels, *legends, notes]
    for number, part in enumerate(parts):
        assert inside.x0 <= part.x0 < part.x1 <= inside.x1  # type: ignore[attr-defined]
        assert inside.y0 <= part.y0 < part.y1 <= inside.y1  # type: ignore[attr-defined]
        for other in parts[:number]:
            assert not part.overlaps(other)  # type: ignore[attr-defined]


@pytest.mark.parametrize("spread", [0.004, 0.02, 0.1, 0.4])
def test_a_narrow_range_has_enough_labels(spread: float) -> None:
    places = {"part": [0, 1], "position": [64.0, 192.0], "plasticity": [0.93, 0.93 - spread]}
    table = pd.DataFrame({"run": "a", "layer_type": "all", "heads": 1, **places})
    profiles = table.assign(half_width=np.nan, n_groups=np.nan)
    axes = profiles_figure(profiles, AT_ONE_POSITION).axes[0]
    low, high = axes.get_ylim()
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    labels = axes.yaxis.get_major_formatter().format_ticks(shown)
    assert 3 <= len(shown) <= 8
    assert len(set(labels)) == len(shown)
    np.testing.assert_allclose([float(label) for label in labels], shown, atol=1e-9)


def test_many_scores_are_drawn_in_rows(comparison: ap.Comparison) -> None:
    names = {f"benchmark {number}": [1.0, 2.0, number] for number in range(5)}
    scores = pd.DataFrame({"model": [run.label for run in comparison.runs], **names})
    figure = scores_figure(comparison.table, scores, correlations(comparison.table, scores))
    assert figure.get_figwidth() < 9.5
    assert [axes.axison for axes in figure.axes] == [True] * 5 + [False]


@pytest.fixture(scope="module")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs with plasticity at one position, and one without."""
    root = tmp_path_factory.mktemp("aligned")
    names = ("one", "two", "over buckets")
    runs = [
        write_full_run(root / name, model=name, shift=0.03 * place)
        for place, name in enumerate(names)
    ]
    return [add_errors(add_bins(runs[0])), add_errors(add_bins(runs[1])), runs[2]]


def test_plasticity_at_one_position_is_compared_first(
    aligned: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = ap.compare(aligned[:2])
    names = [name for name in found.table if name.startswith("ap_")]
    assert names[:4] == list(AT_ONE_POSITION.all)
    assert names[4:5] == list(OVER_BUCKETS.all)
    assert found.differences["quantity"].tolist() == names[:5]
    metrics = [pd.read_csv(folder / "head_metrics.csv") for folder in aligned[:2]]
    means = [table["ap_aligned"].mean() for table in metrics]
    assert found.table["ap_aligned"].tolist() == pytest.approx(means)
    first = found.differences.set_index("quantity").loc["ap_aligned"]
    assert first["difference"] == pytest.approx(means[1] - means[0])
    for kind in ("profiles", "trajectory"):
        figure = found.plot(kind)
        assert figure.axes[0].get_ylabel().startswith("plasticity at one position")
        assert figure.axes[0].get_title(loc="left").startswith("Plasticity at one position, ")
        assert "Queries are compared at one position of their bin" in found.caption(kind)
        assert "Settings of all runs: bin_size 256, pair_sampling bucket" in found.caption(kind)
        assert "bucket" not in str(figure.get_supxlabel())
    reach = t.ppf(0.975, 7) * found.table["ap_aligned_se"][0]
    assert f"{means[0]:.3f} ± {reach:.3f}" in found.to_markdown()  # half of the 95 % interval
    assert main(["compare", *map(str, aligned[:2])]) == 0
    text = capsys.readouterr().out
    assert text.index("Plasticity at one position: mean") < text.index("Plasticity over a bucket: ")
    assert "Plasticity at one position, minus one" in text
    markdown, latex = found.to_markdown(), found.to_latex()
    for told in (markdown, latex):
        assert 0 <= told.index("lasticity at one position") < told.index("lasticity over a bucket")
    assert r"\label{tab:attention-plasticity}" in latex
    assert r"\label{tab:attention-plasticity-bucket}" in latex


def test_scores_are_correlated_with_the_drop_at_one_position(aligned: list[Path]) -> None:
    scores = pd.DataFrame({"model": ["one", "two", "over buckets"], "ruler": [1.0, 2.0, 4.0]})
    both = ap.compare(aligned[:2], scores=scores[:2])
    assert both.correlations["quantity"].tolist() == [DROP]
    assert both.plot("scores").axes[0].get_xlabel() == "drop of plasticity\nat one position"
    assert "drop of plasticity at one position" in both.caption("scores").replace("Drop", "drop")
    assert "Queries are compared at one position" in both.caption("scores")
    mixed = ap.compare(aligned, scores=scores)
    assert mixed.correlations["models"].tolist() == [2]  # one run has no drop
    with pytest.raises(ap.ConfigError, match="the drop at one position, which no run has"):
        ap.compare([aligned[2], aligned[2]], ["a", "b"], scores.assign(model=["a", "b", "c"]))


def test_a_run_without_plasticity_at_one_position_is_noted(aligned: list[Path]) -> None:
    mixed = ap.compare(aligned)
    note = "over buckets: no plasticity at one position, so plasticity over a bucket is compared"
    assert [text for text in mixed.notes["text"] if text.startswith(note)]
    assert mixed.plot().axes[0].get_ylabel() == "plasticity over a bucket"
    assert "over a bucket: RoPE's rotation counts" in str(mixed.plot().get_supxlabel())
    assert "Standard errors are not known." in mixed.caption()
    markdown = mixed.to_markdown()
    assert markdown.index("over a bucket:") < markdown.index("at one position:")
    start = "| over buckets | 12 | 768 | –"
    (row,) = [line for line in markdown.splitlines() if line.startswith(start)]
    assert row.count("–") == 4
    unknown = mixed.differences.query("run == 'over buckets' and quantity == 'ap_aligned'")
    assert np.isnan(unknown["difference"]).all()
    assert not mixed.notes["text"].str.contains("0 heads").any()
