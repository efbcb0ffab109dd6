"""The page as text, where it is written, the verb `report`, its modules and its packed columns."""

import gzip
import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.page import make_report
from attention_plasticity.page.html import plotly_bundle
from attention_plasticity.page.payload import compressed, pack
from attention_plasticity.tables.finished_run import FinishedRun
from dumps import make_dump
from helpers.added_tables import add_roles
from helpers.plain_runs import edit_info
from helpers.report_runs import write_run
from lasting_workers import workers as workers  # a fixture of all tests here

EVIL = "</script><script>alert(1)</script><!--\u2028&amp;"


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


def test_a_title_cannot_leave_its_place(tmp_path, run):
    opened = [FinishedRun.open(run)]
    html = make_report(opened, title=EVIL).html
    assert EVIL not in html
    data = re.search(r'id="page-data">(.*?)</script>', html)
    assert data
    assert not {*"<>&"} & {*data[1]}
    make_report(opened, title="\udcff").save(tmp_path / "odd.html")
    with pytest.raises(ap.ConfigError, match="title: must be text, got 3"):
        make_report(opened, title=3)


def test_no_token_is_in_the_html(run):
    assert "whale" not in make_report([FinishedRun.open(add_roles(run))]).html


def test_the_same_run_gives_the_same_bytes(run):
    assert make_report([FinishedRun.open(run)]).html == make_report([FinishedRun.open(run)]).html


@pytest.mark.parametrize(
    ("pair_sampling", "runs", "beside"),
    [("bucket", 1, None), ("bucket", 2, 1), ("local", 2, None)],
)
def test_the_page_opens_with_the_second_run_if_it_can_be_compared(
    tmp_path, pair_sampling, runs, beside
):
    folders = [write_run(tmp_path / str(number), number) for number in range(runs)]
    for folder, pairs in zip(folders, ("bucket", pair_sampling), strict=False):
        edit_info(folder, config__pair_sampling=pairs)
    html = make_report([FinishedRun.open(folder) for folder in folders]).html
    data = re.search(r'id="page-data">(.*?)</script>', html)
    assert data
    assert json.loads(data[1])["beside"] == beside


def test_a_notebook_shows_the_page_in_a_frame(tmp_path):
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=2, k_heads=1, n=200)
    run = ap.analyze_dump(dump, output_dir=str(tmp_path / "out"), max_workers=1)
    report = run.report()
    frame = report._repr_html_()
    assert frame.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert frame.count("<") == 2
    assert repr(report) == "Report()"
    assert report.save(tmp_path / "a" / "page.html").read_text() == report.html


def test_the_verb_writes_the_page_and_prints_its_path(run, tmp_path, capsys, monkeypatch):
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


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        (["nowhere"], "nowhere: does not exist"),
        ([".", "--output", "head_metrics.csv"], "is a file of the run; choose another path"),
        ([".", "--output", "."], "is a folder, not a file"),
    ],
)
def test_bad_input_is_one_line(words, phrase, run, capsys, monkeypatch):
    monkeypatch.chdir(run)
    before = sorted(run.iterdir())
    assert main(["report", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert phrase in printed.err
    assert sorted(run.iterdir()) == before


def test_plotly_is_the_documented_bundle_and_defines_a_global():
    code = gzip.decompress(plotly_bundle())
    digest = hashlib.sha256(code).hexdigest()
    assert digest == "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    assert b"\nwindow.Plotly = Plotly;\n" in code


def test_the_page_of_the_published_run_is_small():
    """About 6 kB a head, beside plotly. docs/figures.md tells sizes of larger runs."""
    run = ap.open_run(Path(__file__).parents[3] / "results" / "smollm2-135m")
    assert len(make_report([run]).html) < 2_400_000


PARTS = files("attention_plasticity.page") / "parts"
MODULES = sorted(part.name for part in PARTS.iterdir() if part.name.endswith(".js"))


def test_every_imported_name_is_exported():
    for name in MODULES:
        source = (PARTS / name).read_text(encoding="utf-8")
        for names, module in re.findall(r'import \{([^}]+)\} from "\./(\w+\.js)";', source):
            other = (PARTS / module).read_text(encoding="utf-8")
            for one in re.findall(r"\w+", names):
                assert re.search(rf"^export (async )?(function|const) {one}\b", other, re.MULTILINE)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0, 255], "u1"),
        ([0, 256], "u2"),
        ([0, 65_536], "u4"),
        ([-1, 5], "i4"),
        ([0, 2**32], "f8"),
        ([-(2**31) - 1, 0], "f8"),
        ([], "u1"),
    ],
)
def test_integers_take_the_smallest_type(values, kind):
    header, block = pack({"t": {"c": np.array(values, dtype=np.int64)}})
    assert header["t"] == {"rows": len(values), "columns": [["c", kind, 0]]}
    assert np.frombuffer(block, f"<{kind}", len(values)).tolist() == values


@given(
    st.lists(
        st.one_of(
            st.lists(st.floats(width=64), min_size=3, max_size=3).map(np.array),
            st.lists(st.floats(width=32), min_size=3, max_size=3).map(
                lambda values: np.array(values, dtype=np.float32)
            ),
            st.lists(st.integers(-(2**31), 2**32 - 1), min_size=3, max_size=3).map(
                lambda values: np.array(values, dtype=np.int64)
            ),
            st.lists(st.booleans(), min_size=3, max_size=3).map(np.array),
        ),
        min_size=1,
    )
)
def test_every_column_reads_back_as_it_was(columns):
    table = {str(number): column for number, column in enumerate(columns)}
    header, block = pack({"t": table})
    for name, kind, offset in header["t"]["columns"]:
        assert offset % 8 == 0
        read = np.frombuffer(block, f"<{kind}", 3, offset)
        np.testing.assert_array_equal(read, table[name])


def test_the_same_content_gives_the_same_text():
    content = bytes(range(256)) * 50
    assert compressed(content) == compressed(content)
    assert gzip.decompress(compressed(content)) == content
    assert compressed(content)[4:8] == b"\0" * 4  # no time in it
