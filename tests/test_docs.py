"""The documentation: links and anchors, and names of the API reference."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import attention_plasticity
import qk_sniffer
from attention_plasticity.metrics import HEAD_METRICS, TABLES
from dumps import make_dump
from tools.write_columns import with_columns
from tools.write_glossary import with_glossary

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    ROOT / "results" / "smollm2-135m" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def without_code(text):
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_and_anchors_exist():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
            if "://" in link:
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name) if name else page
            assert target.exists(), (page, link)
            assert target.resolve().is_relative_to(ROOT), (page, link)
            assert not anchor or anchor in anchors(target), (page, link)


def test_nothing_is_installed_by_our_name_from_an_index():
    """The package is on no index, so the name there could be anybody's."""
    shipped = [*PAGES, *(ROOT / "examples").iterdir(), *(ROOT / "src").rglob("*.py")]
    for file in shipped:
        text = file.read_text(encoding="utf-8")
        found = re.search(r"install\W[^\n]*\battention-plasticity\[|\"attention-plasticity\[", text)
        assert found is None, (file, found)


def test_what_examples_write_is_ignored_by_git():
    """In a clone, in the folder in which a reader runs them."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    place = r"(?:--output(?:_dir)?|--output\.data_root|output_dir=|\.save\w*\(|export [a-z]\S+)"
    examples = "\n".join(
        block
        for page in PAGES
        for block in re.findall(r"^```(?:bash|python)\n(.*?)^```$", page.read_text(), re.M | re.S)
    )
    written = {*re.findall(rf"{place} ?\"?([\w-]+[/.][\w./-]+)", examples)}
    assert {"data/mine", "budgets/mine", "map.svg", "profile.pdf"} <= written
    command = ["git", "check-ignore", *written]
    ignored = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {*ignored.split()} == written


def test_formulas_are_mathematics_and_not_code():
    """`$…$` and `$$…$$` are set as formulas, in the site and by code hosts; code is not."""
    signs = re.compile(r"`[^`\n]*[Α-Ωα-ω√²³⁰ᵀ₀-₉·−∈∝⟨‖½⌈⌊′″][^`\n]*`")
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for line in text.splitlines():
            spans = "".join(re.findall(r"`[^`\n]*`", line))
            assert not signs.search(spans), (page, line)
        assert not re.search(r"^    .*[√Σ²].*", text, flags=re.MULTILINE), page
        for formula in re.findall(r"\$\$.*?\$\$|\$[^\s$][^$\n]*\$", without_code(text), re.DOTALL):
            assert not re.search(r"\\[^a-zA-Z]", formula), (page, formula)  # lost on code hosts


@pytest.mark.parametrize("package", [attention_plasticity, qk_sniffer], ids=lambda it: it.__name__)
def test_the_api_reference_has_every_public_name(package):
    name, public = package.__name__, set(package.__all__)
    pages = (ROOT / "docs" / "api" / f"{name}.md", ROOT / "docs" / "api" / "errors.md")
    shown = re.findall(r"^::: \S+\.(\w+)$", "\n".join(page.read_text() for page in pages), re.M)
    assert public - {"__version__"} <= set(shown)


def test_the_tables_of_columns_are_those_of_the_metrics():
    """`make columns` writes them."""
    page = (ROOT / "docs" / "data-format.md").read_text(encoding="utf-8")
    assert with_columns(page) == page
    for table in TABLES.values():
        for name in table.names:
            own = name.removesuffix("_se")
            listed = {f"`{own}`", f"`{own.removesuffix('_unrotated')}`"}
            many = name.startswith(("group_", "mass_"))
            assert many or any(each in page for each in listed), (table.file, name)


FORMER = ("plasticity at one position", "turned to one position", "report page")
"""Words of earlier pages, which have one other word now: docs/plasticity.md#glossary."""


def test_a_thing_has_one_word_in_all_pages():
    for page in PAGES:
        text = " ".join(page.read_text(encoding="utf-8").lower().split())
        assert [word for word in FORMER if word in text] == [], page


def test_the_glossary_is_that_of_the_metrics():
    """`make columns` writes it."""
    page = (ROOT / "docs" / "plasticity.md").read_text(encoding="utf-8")
    assert with_glossary(page) == page


@pytest.mark.long
def test_the_example_of_a_new_column_works(tmp_path):
    """The lines of CONTRIBUTING.md, in a copy of the package: CSV, map and page."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = text[text.index("**Another column in head_metrics.csv.**") :]
    computed, declared = re.findall(r"((?:^    .+\n)+)", text, flags=re.MULTILINE)[:2]
    package = tmp_path / "copy" / "attention_plasticity"
    ignored = shutil.ignore_patterns("smollm2-135m", "__pycache__")
    shutil.copytree(ROOT / "src" / "attention_plasticity", package, ignore=ignored)
    for name, after, new in (
        ("measure/position.py", "from __future__ import annotations\n", _IMPORTS),
        ("measure/position.py", "    found = Found()\n", computed),
        ("metrics.py", _LAST_COLUMN, f"\n        {declared.strip()}"),
    ):
        before, found, rest = (package / name).read_text().partition(after)
        assert found, after
        (package / name).write_text(f"{before}{after}{new}{rest}")
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1, n=300, d=4)
    script = f"""
import attention_plasticity as ap
run = ap.analyze_dump({str(dump)!r}, output_dir={str(tmp_path / "out")!r})
run.plot("map", metric="q_mean_length")
run.report().save({str(tmp_path / "page.html")!r})
"""
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        env=os.environ | {"PYTHONPATH": str(package.parent)},
    )
    table = pd.read_csv(tmp_path / "out" / "head_metrics.csv")
    assert list(table.columns) == [*HEAD_METRICS.names, "q_mean_length", "q_mean_length_se"]
    vectors = pq.read_table(dump / "l00h00q" / "data.parquet").column("vector").to_pylist()
    lengths = np.linalg.norm(np.array(vectors, np.float64), axis=1)
    assert table["q_mean_length"].tolist() == pytest.approx([lengths.mean()], rel=0.01)
    assert 0 < table["q_mean_length_se"].item() < 0.1 * lengths.mean()
    assert '"q_mean_length":{"label":"mean length"' in (tmp_path / "page.html").read_text()


_IMPORTS = """
import numpy as np

from attention_plasticity.estimate.quantity import ratio_of_means
"""
_LAST_COLUMN = next(  # of head_metrics.csv
    line
    for line in (ROOT / "src" / "attention_plasticity" / "metrics.py").read_text().splitlines()
    if f'"{HEAD_METRICS.columns[-2].label}"' in line
)
