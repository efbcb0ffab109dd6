"""Names from files and flags: one line of harmless characters, in figures as they stand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from attention_plasticity.cli import main
from attention_plasticity.figures import style
from attention_plasticity.figures.style import figure_text
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.labels import labels_of
from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ConfigError
from run_tables import add_bins, write_run

HOSTILE = {
    "two dollars": "$$",
    "broken mathematics": r"a $\frac{ b $x$",
    "escaped dollar": r"\$5 \$",
    "TeX": r"a_b^c%d&e#f~g{h}\i",
    "lines": "new\nline\r\n and\ttab",
    "terminal": "\x1b[31mred\x07 \x9b2J",
    "half a character": "a\ud800b",
    "direction": "abc\u202edef",
    "no glyph": "模型😀",
    "long": "x" * 3000,
    "nothing to see": "\n",
}


def test_a_name_becomes_one_line_of_printable_characters() -> None:
    assert clean("  new\nline\r\n and\ttab ") == "new line and tab"
    assert clean("\x1b[31mred\x07") == "[31mred"
    assert clean("a\ud800b") == "a?b"
    assert clean("abc\u202edef") == "abcdef"
    assert clean("模型😀 $_|<>") == "模型😀 $_|<>"
    assert all(clean(name).isprintable() for name in HOSTILE.values())


def test_text_of_a_figure_is_no_mathematics() -> None:
    assert figure_text("a $x$") == r"a \$x\$"
    assert figure_text("first\nsecond") == "first\nsecond"
    assert len(figure_text("x" * 3000)) <= 200


@pytest.fixture(autouse=True)
def _small_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(style._STYLE, "savefig.dpi", 40)  # faster


@pytest.mark.long
@pytest.mark.filterwarnings("error")
def test_any_name_can_be_drawn_compared_and_put_on_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = [], tmp_path / "out"
    for kind, name in HOSTILE.items():
        runs.append(str(write_run(tmp_path / kind, model=f"owner/{name}")))
        shown = name.encode("utf-8", "replace").decode()  # a setting holds text that can be encoded
        figure = ["--title", shown, "--ylabel", shown, "--model_name", shown]
        assert main(["plot", "map", runs[-1], "--output", str(out / "map.png")]) == 0, kind
        words = ["plot", "components", runs[-1], *figure, "--output", str(out / "c.svg")]
        assert main(words) == 0, kind
    names = [f"--labels={','.join(f'{n} {kind}' for n, kind in enumerate(HOSTILE))}"]
    words = ["--output_dir", str(out), "--figures", "depth", "--format", "svg"]
    assert main(["study", *runs, *names, *words]) == 0
    assert main(["report", *runs, "--output", str(out / "page.html")]) == 0
    assert main(["report", runs[0], "--output", str(out / "one.html")]) == 0
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert "\x07" not in told.out + told.err


def test_every_figure_is_drawn_with_a_name_of_mathematics(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model=f"owner/{HOSTILE['broken mathematics']}")
    assert main(["plot", "all", str(run)]) == 0


@pytest.mark.long
def test_scores_and_metrics_may_have_any_name(tmp_path: Path) -> None:
    runs = [str(add_bins(write_run(tmp_path / name, model=name))) for name in "abc"]
    scores = tmp_path / "scores.csv"
    scores.write_text("model,$$\na,1\nb,2\nc,4\n")
    words = ["--scores", str(scores), "--output_dir", str(tmp_path / "out"), "--figures"]
    assert main(["study", *runs, *words, "relations"]) == 0
    metrics = tmp_path / "metrics.csv"
    metrics.write_text("layer,q_head,ap_overall,$$\n0,0,0.5,1\n0,1,0.5,2\n")
    path = tmp_path / "a" / "head_metrics.csv"
    pd.read_csv(path).assign(**{"$$": 1.5}).to_csv(path, index=False)
    figure = ["--metric", "$$", "--output", str(tmp_path / "m.png")]
    assert main(["plot", "map", runs[0], *figure]) == 0


def test_labels_that_look_alike_are_refused(tmp_path: Path) -> None:
    runs = [FinishedRun.open(write_run(tmp_path / name)) for name in "ab"]
    assert labels_of(runs, ["one\ntwo", "three"]) == ["one two", "three"]
    with pytest.raises(ConfigError, match="must be different and not empty"):
        labels_of(runs, ["one\ntwo", "one\ttwo"])
    with pytest.raises(ConfigError, match="must be different and not empty"):
        labels_of(runs, ["\x1b", "two"])
