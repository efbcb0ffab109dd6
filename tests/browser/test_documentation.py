"""The documentation, built as `make docs` builds it and opened from the disk: formulas."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
KATEX = ROOT / "docs" / "katex"
SOURCE = re.compile(r"\\[(\[]|\\[a-zA-Z]{2,}|\$[^\s$]([^$\n]*[^\s$])?\$")  # of a formula
PROSE = """() => {
    const article = document.querySelector("article").cloneNode(true);
    article.querySelectorAll("code, pre, .katex").forEach(part => part.remove());
    return article.textContent;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run(build, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context(offline=True) as context:
        yield context.new_page()


def test_every_formula_of_every_page_is_set(page: Page, site: Path) -> None:
    """No error of KaTeX, no message in the console, and no source of a formula in the text."""
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("requestfailed", lambda request: messages.append(request.url))
    formulas = {}
    for path in sorted(set(site.rglob("*.html")) - {site / "404.html"}):
        page.goto(path.as_uri())
        name = path.relative_to(site).as_posix()
        formulas[name] = page.locator(".arithmatex .katex-html").count()
        assert formulas[name] == page.locator(".arithmatex").count(), name
        assert page.locator(".katex-error").all_inner_texts() == [], name
        assert SOURCE.findall(page.evaluate(PROSE)) == [], name
        assert messages == [], name
    assert formulas["method.html"] > 200
    assert formulas["index.html"] > 0


def test_formulas_have_their_fonts_and_fit_on_a_phone(page: Page, site: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto((site / "method.html").as_uri())
    page.evaluate("document.fonts.ready")
    fonts = "[...document.fonts].filter(font => font.status == 'loaded').map(font => font.family)"
    assert {"KaTeX_Main", "KaTeX_Math"} <= set(page.evaluate(fonts))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_katex_is_the_documented_version() -> None:
    told = (KATEX / "README.txt").read_text(encoding="utf-8")
    for name in ("katex.min.js", "katex.min.css"):
        digest = hashlib.sha256((KATEX / name).read_bytes()).hexdigest()
        assert f"sha256 of {name}: {digest}" in re.sub(" +", " ", told)
