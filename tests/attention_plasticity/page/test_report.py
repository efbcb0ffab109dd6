"""The page as text, where it is written, and the verb `report`."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.metrics import (
    BIN_PLASTICITY,
    BIN_QUANTITY,
    GROUP_COLUMNS,
    HEAD_NUMBERS,
)
from attention_plasticity.page import make_report
from attention_plasticity.page.html import plotly_bundle, safe_json
from attention_plasticity.tables.finished_run import FinishedRun
from dumps import make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from report_runs import write_run
from role_runs import add_roles

EVIL = "</script><script>alert(1)</script><!--\u2028&amp;"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


class Scripts(HTMLParser):
    """Counts script elements, and finds addresses that would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def scripts_of(html: str) -> Scripts:
    parser = Scripts()
    parser.feed(html)
    return parser


def test_names_cannot_leave_their_place(tmp_path: Path, run: Path) -> None:
    tame = make_report([FinishedRun.open(run)]).html
    evil = make_report(
        [FinishedRun.open(write_run(tmp_path / "evil", model=EVIL))], title=EVIL
    ).html
    assert scripts_of(evil).scripts == scripts_of(tame).scripts
    assert "alert(1)</script>" not in evil
    assert json.loads(safe_json([EVIL, "\ud800"])) == [EVIL, "\ud800"]
    make_report([FinishedRun.open(run)], title="\udcff").save(tmp_path / "odd.html")
    with pytest.raises(ap.ConfigError, match="title: must be text, got 3"):
        make_report([FinishedRun.open(run)], title=3)  # type: ignore[arg-type]


def test_nothing_is_fetched(run: Path) -> None:
    html = make_report([FinishedRun.open(run)]).html
    assert set(scripts_of(html).addresses) == {"#head-panel", "data:,"}
    assert "@@" not in re.sub(r'<script type="text/plain".*?</script>', "", html)


def test_no_token_is_in_the_html(run: Path) -> None:
    add_roles(run, tokens={"whale": EVIL})
    html = make_report([FinishedRun.open(run)]).html
    assert "alert(1)" not in html
    assert "whale" not in make_report([FinishedRun.open(add_roles(run))]).html


def test_the_same_run_gives_the_same_bytes(run: Path) -> None:
    assert make_report([FinishedRun.open(run)]).html == make_report([FinishedRun.open(run)]).html


@pytest.mark.parametrize(
    ("settings", "runs", "beside"),
    [
        ({}, 1, None),
        ({}, 2, 1),
        ({"pair_sampling": "local"}, 2, None),
    ],
)
def test_the_page_opens_with_the_second_run_if_it_can_be_compared(
    tmp_path: Path, settings: dict[str, str], runs: int, beside: int | None
) -> None:
    folders = [write_run(tmp_path / str(number), number) for number in range(runs)]
    for folder, changed in zip(folders, ({"pair_sampling": "bucket"}, settings), strict=False):
        info = json.loads((folder / "run.json").read_text())
        info["config"] |= changed
        (folder / "run.json").write_text(json.dumps(info))
    html = make_report([FinishedRun.open(folder) for folder in folders]).html
    data = re.search(r'id="page-data">(.*?)</script>', html)
    assert data
    assert json.loads(data[1])["beside"] == beside


def test_a_notebook_shows_the_page_in_a_frame(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=2, k_heads=1, n=200)
    run = ap.analyze_dump(dump, output_dir=str(tmp_path / "out"), max_workers=1)
    report = run.report()
    frame = report._repr_html_()
    assert frame.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert frame.count("<") == 2
    assert repr(report) == "Report()"
    assert report.save(tmp_path / "a" / "page.html").read_text() == report.html
    (tmp_path / "out" / "head_metrics.csv").write_text("layer\n1\n")
    with pytest.raises(ap.ToolkitError, match="was changed after the run"):
        ap.open_run(tmp_path / "out").report()


def test_the_verb_writes_the_page_and_prints_its_path(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    monkeypatch.chdir(tmp_path)
    other = write_run(tmp_path / "other", seed=1)
    words = ["report", str(run), str(other), "--labels", "a, b", "--title", "Both & more"]
    assert main(words) == 0
    assert capsys.readouterr().out == "report.html\n"
    assert "<title>Both &amp; more</title>" in (tmp_path / "report.html").read_text()
    assert main([*words, "--output", "sub/x.html"]) == 0
    assert (tmp_path / "sub" / "x.html").exists()
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["x.html"]


def without(run: Path, file: str, column: str) -> None:
    pd.read_csv(run / file).drop(columns=column).to_csv(run / file, index=False)


def study_in(folder: Path) -> None:
    folder.mkdir()
    (folder / "study.json").write_text("{}")


METRICS, CELLS = "head_metrics.csv", "head_bucket_plasticity.csv"
SPOILT: dict[str, tuple[Callable[[Path], object], str, list[str]]] = {
    "no run": (lambda run: None, "nowhere: does not exist", ["nowhere"]),
    "an empty table": (lambda run: (run / METRICS).write_text(""), "is empty", []),
    "words": (
        lambda run: (run / METRICS).write_text("layer,q_head,ap_overall\n0,0,high\n"),
        "ap_overall: expected numbers, got 'high'",
        [],
    ),
    "run.json": (lambda run: (run / "run.json").write_text("{"), "cannot be read", []),
    "a table as output": (
        lambda run: None,
        "is a file of the run; choose another path",
        [".", "--output", METRICS],
    ),
    "a folder as output": (
        lambda run: None,
        "is a folder, not a file",
        [".", "--output", "."],
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_bad_input_is_one_line(
    name: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, phrase, words = SPOILT[name]
    spoil(run)
    monkeypatch.chdir(run)
    before = sorted(run.iterdir())
    assert main(["report", *(words or ["."])]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert phrase in printed.err
    assert sorted(run.iterdir()) == before


def test_a_full_disk_leaves_the_earlier_page(run: Path, small_disk: Path) -> None:
    target = small_disk / "report.html"
    target.write_text("earlier")
    with pytest.raises(ap.OutputError, match="cannot be written: No space left"):
        make_report([FinishedRun.open(run)]).save(target)
    assert [path.name for path in small_disk.iterdir()] == ["report.html"]
    assert target.read_text() == "earlier"


def test_plotly_is_the_documented_bundle_and_defines_a_global() -> None:
    code = gzip.decompress(plotly_bundle())
    digest = hashlib.sha256(code).hexdigest()
    assert digest == "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    assert b"\nwindow.Plotly = Plotly;\n" in code


def test_a_large_run_stays_below_8_mb(tmp_path: Path) -> None:
    """1,200 heads, 140,000 cells and 128 dimensions with errors; noise cannot be compressed."""
    rng = np.random.default_rng(0)
    heads = np.argwhere(np.ones((30, 40)))

    def table(each: int, names: str, **columns: Any) -> pd.DataFrame:
        ids = pd.DataFrame(np.repeat(heads, each, axis=0), columns=["layer", "q_head"])
        floats = {name: rng.random(len(ids)) for name in names.split()}
        values = pd.DataFrame({"k_head": ids["q_head"] // 4, **floats, **columns})
        return pd.concat([ids, values], axis=1)

    run = FinishedRun(tmp_path, {})
    query, key = (np.tile(part[:117], len(heads)) for part in np.tril_indices(16, -1))
    floats = [
        name
        for name in BIN_PLASTICITY.names
        if name.startswith(("plasticity", "pooled", "q_pos", "k_pos"))
    ]
    cells = table(117, " ".join(floats), q_bin=query, k_bin=key)
    for name, number in (("q", query), ("k", key)):
        cells[f"{name}_start"], cells[f"{name}_end"] = 512 * number, 512 * number + 511
    cells["n_pairs"], cells["n_queries"] = 256, rng.integers(1, 5000, len(cells))
    dimensions = np.tile(np.arange(128), len(heads))
    vars(run)["_tables"].update(
        head_metrics=table(1, " ".join(HEAD_NUMBERS[3:])),
        bins=cells,
        component_weights=table(128, "weight r2", component=dimensions),
        influences=table(
            15,
            " ".join(("value", "n_groups", *GROUP_COLUMNS)),
            quantity=BIN_QUANTITY,
            bin=np.tile(np.arange(1, 16), len(heads)),
        ),
    )
    for name in ("head_component_weights.csv", "head_bin_plasticity.csv"):
        (tmp_path / name).touch()
    assert len(make_report([run]).html) < 8_000_000
