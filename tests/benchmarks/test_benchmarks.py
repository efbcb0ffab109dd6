"""The benchmarks run, on dumps and models that are much smaller. Their times are not looked at."""

from argparse import Namespace
from dataclasses import replace

import pytest

from benchmarks import analysis, attention, capture, scale
from benchmarks.dumps import Shape, make_dump
from benchmarks.models import SMALL

TINY = Shape(1_000, 8, q_heads=2)


@pytest.fixture
def options(tmp_path):
    def of(**changes):
        values = {"data": tmp_path, "rounds": 1, "tokens": None, "earlier": None}
        return Namespace(**{**values, **changes})

    return of


def _cells(printed):
    """The cells of the rows of all tables that were printed."""
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines if "---" not in line]


def test_analysis_against_the_floor_and_another_version(options, monkeypatch, capsys):
    case = analysis.Case(make_dump(options().data, replace(TINY, layers=2)), "0", "0-1", 2, 2)
    monkeypatch.setattr(analysis, "cases", lambda data: {"tiny": case})
    analysis.benchmark(options())
    analysis.benchmark(options(earlier=analysis.SOURCE))
    heading, row, both, of_both = _cells(capsys.readouterr().out)
    assert heading == ["rows used, dimensions", "this version", "the floor", "ratio"]
    assert both[2:] == ["the earlier version", "ratio", "the floor", "ratio"]
    for cells in (row, of_both):
        assert cells[0] == "tiny"
        assert all(one.endswith(" ms") for one in (cells[1], *cells[2::2]))


def test_capture_against_bare_forwards(options, monkeypatch, capsys):
    small = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 32}
    monkeypatch.setattr(capture, "SMALL", {**SMALL, **small, "head_dim": 8, "vocab_size": 64})
    monkeypatch.setattr(capture, "_memory", lambda: None)  # starts processes
    capture.benchmark(options(tokens=128))
    heading, bare, *kept = _cells(capsys.readouterr().out)
    assert bare[:1] == ["nothing"]
    assert [row[0] for row in kept] == list(capture.kept(64))
    assert len(heading) == len(bare) == 7


def test_blocks_of_attention(options, capsys):
    attention.benchmark(options(tokens=600))
    heading, small, large = _cells(capsys.readouterr().out)
    assert heading[0] == "logits of a block"
    assert small[::2] == ["1,048,576 (used here)", "1.0"]
    assert large[0] == "16,777,216"
    assert float(large[2]) > 0


@pytest.mark.long
def test_growth_and_first_heads(options, monkeypatch, capsys):
    monkeypatch.setattr(scale, "FILES", {"four files": Shape(1_000, 8, q_heads=1, files=2)})
    other = Shape(2_000, 8, q_heads=2)
    dumps = {rows.rows: make_dump(options().data, rows) for rows in (TINY, other)}
    scale.growth("rows", dumps, 1)
    scale.first_heads(options().data, 1)
    rows = _cells(capsys.readouterr().out)
    assert [row[0] for row in rows] == [
        "rows",
        "1,000",
        "2,000",
        "each further",
        "dump",
        "four files",
    ]
