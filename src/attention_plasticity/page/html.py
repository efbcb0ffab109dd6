"""Builds the page from its parts, as one HTML file."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.measure.grid import FEWEST_TEXTS
from attention_plasticity.metrics import shown_groups
from attention_plasticity.page.cells import kinds
from attention_plasticity.page.payload import Header, compressed
from attention_plasticity.page.shown_columns import words_of_tables
from attention_plasticity.roles import NAMES, ROLES, UNSURE
from attention_plasticity.tables.head_roles import COLOURS, DARK_COLOURS

_FOLDER = files("attention_plasticity.page")
_IMPORT = re.compile(r'^import \{(?P<names>[^}]+)\} from "\./(?P<module>\w+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:function|const) (\w+)", re.MULTILINE)
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def page_html(
    title: str, runs: Sequence[tuple[dict[str, Any], Header, bytes]], beside: int | None = None
) -> str:
    """The page. Each run has a description, a header and packed columns.

    `beside` is the number of the run that the first one is compared with when the page opens.
    """
    descriptions = [{**about, "tables": header} for about, header, _ in runs]
    data = {
        "title": title,
        "version": __version__,
        "words": words_of_tables(),
        "groups": list(shown_groups()),
        "kinds": kinds(),
        "fewest_texts": FEWEST_TEXTS,
        "roles": {
            "names": [*NAMES, UNSURE],
            "meanings": {role.name: role.meaning for role in ROLES},
            "colours": {"light": COLOURS, "dark": DARK_COLOURS},
        },
        "beside": beside,
        "runs": descriptions,
    }
    parts_folder = _FOLDER / "parts"
    blocks = [_block("plotly", plotly_bundle())]
    for number, (_, _, packed) in enumerate(runs):
        blocks.append(_block(f"run-{number}", compressed(packed)))
    parts = {
        "title": html.escape(title.encode("utf-8", "replace").decode("utf-8")),
        "style": (parts_folder / "page.css").read_text(encoding="utf-8"),
        "data": safe_json(data),
        "blocks": "\n".join(blocks),
        "script": script(),
    }
    skeleton = (parts_folder / "page.html").read_text(encoding="utf-8")
    return re.sub(r"@@(\w+)@@", lambda found: parts[found[1]], skeleton)


def safe_json(value: object) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII only
    return re.sub("[<>&]", lambda found: _UNSAFE[found[0]], text)


def plotly_bundle() -> bytes:
    """plotly.js compressed by gzip. The script defines `window.Plotly`."""
    return (_FOLDER / "plotly" / "plotly-cartesian.min.js.gz").read_bytes()


def script() -> str:
    """The modules of the page as one script, each after those that it imports.

    A module becomes a function of its own, so that only what it exports is seen by others. Browsers
    do not load modules from the disk, so the imports are resolved here.
    """
    sources: dict[str, str] = {}

    def add(name: str) -> None:
        if name in sources:
            return
        text = (_FOLDER / "parts" / name).read_text(encoding="utf-8")
        for imported in _IMPORT.finditer(text):
            add(imported["module"])
        sources[name] = _as_function(name, text)

    add("page.js")
    return "\n".join(["const modules = {};", *sources.values()])


def _as_function(name: str, text: str) -> str:
    body = _IMPORT.sub(r'const {\g<names>} = modules["\g<module>"];', text)
    exported = ", ".join(_EXPORT.findall(body))
    body = _EXPORT.sub(lambda found: found[0].removeprefix("export "), body)
    return f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();'


def _block(name: str, content: bytes) -> str:
    text = base64.b64encode(content).decode("ascii")
    return f'<script type="text/plain" id="{name}">{text}</script>'
