"""The commands of docs/first-study.md run in their order, on a tiny model."""

import json
import re
import shlex
from pathlib import Path

import pytest

from attention_plasticity.cli import main as attention_plasticity
from attention_plasticity.figures import style
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_sniffer.cli import main as sniff_qk
from tiny_texts import save_texts, save_tiny_model

PAGE = Path(__file__).parents[2] / "docs" / "first-study.md"
MODEL = "HuggingFaceTB/SmolLM2-135M"
PROGRAMS = {"attention-plasticity": attention_plasticity, "sniff-qk": sniff_qk}
TEXTS, TOKENS = 12, "384"  # shorter than those of the page


def commands():
    """The commands of the page, as words."""
    found = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    lines = "".join(found).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line]


@pytest.mark.long
def test_the_commands_of_the_page_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(style._STYLE, "savefig.dpi", 60)  # faster
    model = str(save_tiny_model(tmp_path / "model"))
    save_texts(tmp_path / "texts", [400] * TEXTS)
    done = []
    for words in commands():
        if not words or words[0] not in PROGRAMS:
            assert words[:2] in ([], ["pip", "install"], ["python3", "-m"])
            continue
        words = [model if word == MODEL else word for word in words]
        words = [TOKENS if word == "3584" else word for word in words]
        assert PROGRAMS[words[0]](words[1:]) == 0, words
        done.append((words, capsys.readouterr()))
    dry, cut = (output for words, output in done if "--dry_run" in words)
    assert "Nothing was written" in dry.out + dry.err
    assert "expected per head: fewer than" not in cut.out + cut.err
    info = json.loads((tmp_path / "results" / "mine" / "run.json").read_text())
    assert not info["warnings"]
    assert (tmp_path / "results" / "mine" / "report.html").stat().st_size > 100_000
    assert len(list((tmp_path / "results" / "mine" / "figures").glob("*.png"))) >= 10
    summary = next(output.out for words, output in done if "analyze" in words)
    assert "RoPE-aligned plasticity" in summary
    assert "rotary phase" in summary
