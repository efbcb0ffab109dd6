"""The page's parts put together: one file, nothing fetched."""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.report.payload import Header, encoded
from attention_plasticity.tables.metric_words import METRIC_WORDS

_SCRIPTS = (
    "data.js",
    "words.js",
    "colours.js",
    "map.js",
    "charts.js",
    "heads_table.js",
    "head_panel.js",
    "downloads.js",
    "main.js",
)
_WRAPPER = re.compile(
    r"(?P<licence>/\*\*.*?\*/\s*)"
    r"\(\s*function\(root, factory\) \{[^{}]*\{[^{}]*\}[^{}]*\{[^{}]*\}\s*\}"
    r" ?\(typeof self[^,]*, \(\) => \{(?P<body>.*)\}\)\);?\s*",
    re.DOTALL,
)
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def page_html(title: str, runs: Sequence[tuple[dict[str, Any], Header, bytes]]) -> str:
    """The whole page; `runs` are descriptions, headers and packed columns."""
    described = [{**about, "tables": header} for about, header, _ in runs]
    data = {"title": title, "version": __version__, "words": _words(), "runs": described}
    blocks = [_plotly_block()]
    blocks += [_block(f"run-{number}", packed) for number, (_, _, packed) in enumerate(runs)]
    page = files("attention_plasticity.report") / "page"
    parts = {
        "title": html.escape(title.encode("utf-8", "replace").decode("utf-8")),
        "style": (page / "page.css").read_text(encoding="utf-8"),
        "data": safe_json(data),
        "blocks": "\n".join(blocks),
        "script": "\n".join((page / name).read_text(encoding="utf-8") for name in _SCRIPTS),
    }
    skeleton = (page / "page.html").read_text(encoding="utf-8")
    return re.sub(r"@@(\w+)@@", lambda found: parts[found[1]], skeleton)


def safe_json(value: object) -> str:
    """JSON that can stand inside a script element whatever its texts hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII alone
    return re.sub("[<>&]", lambda found: _UNSAFE[found[0]], text)


def _words() -> dict[str, dict[str, Any]]:
    return {
        name: {"label": words.label, "meaning": words.meaning, "signed": words.signed}
        for name, words in METRIC_WORDS.items()
    }


@cache
def _plotly_block() -> str:
    return _block("plotly", called_at_once(plotly_code()).encode())


def plotly_code() -> str:
    """plotly.js, the bundle that comes with the package."""
    bundle = files("attention_plasticity.report") / "plotly" / "plotly-cartesian.min.js.gz"
    return gzip.decompress(bundle.read_bytes()).decode("utf-8")


def called_at_once(code: str) -> str:
    """A library with its module wrapper taken off, where it has the one we know.

    A browser reads a function twice, first to skip it and again when it is called, unless it is
    called where it stands.
    """
    wrapped = _WRAPPER.fullmatch(code)
    return f"{wrapped['licence']}(() => {{{wrapped['body']}}})();\n" if wrapped else code


def _block(name: str, content: bytes) -> str:
    return f'<script type="text/plain" id="{name}">{encoded(content)}</script>'
