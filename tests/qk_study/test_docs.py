"""The example of docs/study.md, as it is printed there."""

import re
import shlex
import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from attention_plasticity.cli import main
from commands_here import analyze_here
from dumps import make_dump
from lasting_workers import workers as workers  # a fixture of all tests here

PAGE = Path(__file__).parents[2] / "docs" / "study.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


@pytest.mark.long
def test_the_example_runs(tmp_path, capsys):
    make_dump(tmp_path / "path" / "to" / "dump", layers=1, q_heads=2, k_heads=1, n=200)
    (tmp_path / "study.yaml").write_text(blocks("yaml")[0])
    with chdir(tmp_path):
        assert analyze_here("path/to/dump", "--output_dir", "results/base").returncode == 0
        shutil.copytree("results/base", "results/tuned")
        [commands] = [one for one in blocks("bash") if "study study.yaml" in one]
        for line in commands.splitlines():
            assert main(shlex.split(line)[1:]) == 0
            assert ("Nothing was written" in capsys.readouterr().out) == ("dry_run" in line)
    written = {path.name for path in (tmp_path / "results" / "my-study").iterdir()}
    assert {"README.md", "tables", "figures", "report.html", "study.json"} <= written
