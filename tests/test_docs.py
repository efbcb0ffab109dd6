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


def test_links_and_anchors_exist() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
            if "://" in link:
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name) if name else page
            assert target.exists(), (page, link)
            assert target.resolve().is_relative_to(ROOT), (page, link)
            assert not anchor or anchor in anchors(target), (page, link)


def commands_of(page: Path) -> list[list[str]]:
    blocks = re.findall(r"^```bash\n(.*?)^```$", page.read_text(), flags=re.M | re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [command for line in lines if (command := line.partition("#")[0].split())]


def test_commands_of_the_readme_exist(capsys: pytest.CaptureFixture[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for program, *arguments in commands_of(ROOT / "README.md"):
        if program == "make":
            assert set(arguments) <= set(targets)
        elif program in COMMANDS:
            verbs = [word for word in arguments[:2] if re.fullmatch("[a-z]+", word)]
            with pytest.raises(SystemExit, match="0"):
                COMMANDS[program]([*verbs, "--help"])
            flags = {word for word in arguments if word.startswith("--")}
            assert flags <= set(capsys.readouterr().out.split()), arguments
        else:
            assert program == "pip"


@pytest.mark.parametrize("package", [attention_plasticity, qk_sniffer], ids=lambda it: it.__name__)
def test_the_api_reference_has_every_public_name(package: object) -> None:
    name, public = package.__name__, set(package.__all__)  # type: ignore[attr-defined]
    pages = (ROOT / "docs" / "api" / f"{name}.md", ROOT / "docs" / "api" / "errors.md")
    shown = re.findall(r"^::: \S+\.(\w+)$", "\n".join(page.read_text() for page in pages), re.M)
    assert public - {"__version__"} <= set(shown)
