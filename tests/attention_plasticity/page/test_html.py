"""The modules of the page as one script."""

from __future__ import annotations

import re
from importlib.resources import files

from attention_plasticity.page.html import script

PARTS = files("attention_plasticity.page") / "parts"
MODULES = sorted(part.name for part in PARTS.iterdir() if part.name.endswith(".js"))


def test_every_module_comes_once_and_after_those_that_it_imports() -> None:
    text = script()
    order = re.findall(r'^modules\["(\w+\.js)"\] =', text, re.MULTILINE)
    assert sorted(order) == MODULES
    assert order[-1] == "page.js"
    for place, name in enumerate(order):
        source = (PARTS / name).read_text(encoding="utf-8")
        for imported in re.findall(r'from "\./(\w+\.js)";', source):
            assert imported in order[:place], f"{name} imports {imported}"
    assert not re.search(r"^(import|export) ", text, re.MULTILINE)


def test_every_imported_name_is_exported() -> None:
    for name in MODULES:
        source = (PARTS / name).read_text(encoding="utf-8")
        for names, module in re.findall(r'import \{([^}]+)\} from "\./(\w+\.js)";', source):
            other = (PARTS / module).read_text(encoding="utf-8")
            for one in re.findall(r"\w+", names):
                assert re.search(rf"^export (async )?(function|const) {one}\b", other, re.MULTILINE)
