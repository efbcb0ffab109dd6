"""The documentation: links and anchors, commands of the README, names of the API reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import attention_plasticity
import qk_sniffer
from attention_plasticity.cli import main as attention_plasticity_main
from qk_sniffer.cli import main as sniff_qk_main

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "results" / "smollm2-135m" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
COMMANDS = {"attention-plasticity": attention_plasticity_main, "sniff-qk": sniff_qk_main}


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        assert target.resolve().is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def commands_of(page: Path) -> list[list[str]]:
    blocks = re.findall(r"^```bash\n(.*?)^```$", page.read_text(), flags=re.M | re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := line.partition("#")[0].split())]


@pytest.mark.parametrize("words", commands_of(ROOT / "README.md"), ids=" ".join)
def test_commands_of_the_readme_exist(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert set(words[1:]) <= set(targets)
    elif words[0] in COMMANDS:
        verb = [word for word in words[1:3] if re.fullmatch("[a-z]+", word)]
        with pytest.raises(SystemExit, match="0"):
            COMMANDS[words[0]]([*verb, "--help"])
        shown = capsys.readouterr().out
        assert all(word in shown for word in words if word.startswith("--"))


@pytest.mark.parametrize("package", [attention_plasticity, qk_sniffer], ids=lambda it: it.__name__)
def test_the_api_reference_has_every_public_name(package: object) -> None:
    name, public = package.__name__, set(package.__all__)  # type: ignore[attr-defined]
    pages = (ROOT / "docs" / "api" / f"{name}.md", ROOT / "docs" / "api" / "errors.md")
    shown = re.findall(r"^::: \S+\.(\w+)$", "\n".join(page.read_text() for page in pages), re.M)
    assert public - {"__version__"} <= set(shown)
