"""Names from files and flags: one line of harmless characters, in figures as they stand."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_plasticity.cli import main
from attention_plasticity.figures import style
from attention_plasticity.figures.style import figure_text
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.labels import labels_of
from attention_plasticity.tables.names import clean
from helpers.run_tables import write_run
from qk_toolkit.errors import ConfigError

BROKEN = r"a $\frac{ b $x$"  # mathematics, if it were not taken as it stands


def test_a_name_becomes_one_line_of_printable_characters():
    assert clean("  new\nline\r\n and\ttab ") == "new line and tab"
    assert clean("\x1b[31mred\x07") == "[31mred"
    assert clean("a\ud800b") == "a?b"
    assert clean("abc\u202edef") == "abcdef"
    assert clean("模型😀 $_|<>") == "模型😀 $_|<>"


@given(st.text())
def test_any_name_becomes_printable(name):
    assert clean(name).isprintable()


def test_text_of_a_figure_is_no_mathematics():
    assert figure_text("a $x$") == r"a \$x\$"
    assert figure_text("first\nsecond") == "first\nsecond"
    assert len(figure_text("x" * 3000)) <= 200


@pytest.fixture(autouse=True)
def _small_figures(monkeypatch):
    monkeypatch.setitem(style._STYLE, "savefig.dpi", 40)  # faster


def test_every_figure_is_drawn_with_a_name_of_mathematics(tmp_path):
    run = str(write_run(tmp_path / "run", model=f"owner/{BROKEN}"))
    assert main(["plot", "all", run]) == 0
    words = [f"--{name}={BROKEN}" for name in ("title", "ylabel", "model_name")]
    assert main(["plot", "components", run, *words]) == 0


def test_a_metric_may_have_any_name(tmp_path):
    path = write_run(tmp_path / "run") / "head_metrics.csv"
    pd.read_csv(path).assign(**{"$$": 1.5}).to_csv(path, index=False)
    assert (
        main(
            ["plot", "map", str(path.parent), "--metric", "$$", "--output", str(tmp_path / "m.png")]
        )
        == 0
    )


def test_labels_that_look_alike_are_refused(tmp_path):
    runs = [FinishedRun.open(write_run(tmp_path / name)) for name in "ab"]
    assert labels_of(runs, ["one\ntwo", "three"]) == ["one two", "three"]
    with pytest.raises(ConfigError, match="must be different and not empty"):
        labels_of(runs, ["one\ntwo", "one\ttwo"])
    with pytest.raises(ConfigError, match="must be different and not empty"):
        labels_of(runs, ["\x1b", "two"])
