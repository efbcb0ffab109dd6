"""The documentation, built as `make docs` builds it and opened from the disk: formulas, search."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.report_pages import new_page

ROOT = Path(__file__).parents[2]
SOURCE = re.compile(r"\\[(\[]|\\[a-zA-Z]{2,}|\$[^\s$]([^$\n]*[^\s$])?\$")  # of a formula
PROSE = """() => {
    const article = document.querySelector("article").cloneNode(true);
    article.querySelectorAll("code, pre, .katex").forEach(part => part.remove());
    return article.textContent;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run(build, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture
def page(browser):
    with browser.new_context(offline=True) as context:
        yield new_page(context)


def _missing(request):
    """The file that could not be read. The next page ends requests of the page before it."""
    return [] if request.failure == "net::ERR_ABORTED" else [request.url]


@pytest.mark.long
def test_every_formula_of_every_page_is_set(page, site):
    """No error of KaTeX, no message in the console, and no source of a formula in the text."""
    messages = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("requestfailed", lambda request: messages.extend(_missing(request)))
    formulas = {}
    for path in sorted(set(site.rglob("*.html")) - {site / "404.html"}):
        page.goto(path.as_uri())
        name = path.relative_to(site).as_posix()
        formulas[name] = page.locator(".arithmatex .katex-html").count()
        assert formulas[name] == page.locator(".arithmatex").count(), name
        assert page.locator(".katex-error").all_inner_texts() == [], name
        assert SOURCE.findall(page.evaluate(PROSE)) == [], name
        assert messages == [], name
    assert formulas["method.html"] > 100
    assert formulas["index.html"] > 0


@pytest.mark.long
def test_the_search_works_from_the_disk(page, site):
    page.goto((site / "api" / "errors.html").as_uri())
    page.locator("[data-md-component=search-query]").click()
    page.keyboard.type("Householder reflection")
    found = page.locator(".md-search-result__item a").first
    found.wait_for()
    found.click()
    page.wait_for_url(f"{(site / 'method.html').as_uri()}*")


@pytest.mark.parametrize(
    "text", sorted((ROOT / "docs").glob("*/README.txt")), ids=lambda it: it.parent.name
)
def test_scripts_of_others_are_the_documented_versions(text):
    told = re.findall(r"sha256 of (\S+): +(\w+)", text.read_text(encoding="utf-8"))
    assert told
    for name, digest in told:
        assert hashlib.sha256((text.parent / name).read_bytes()).hexdigest() == digest
    assert (text.parent / "LICENSE").exists()
