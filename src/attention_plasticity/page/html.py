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
from attention_plasticity.metrics import METRICS, ROLES, shown_groups
from attention_plasticity.page.drift import drift_words
from attention_plasticity.page.payload import Header, compressed
from attention_plasticity.page.roles import role_words
from attention_plasticity.page.shown_plasticity import kinds

_SCRIPTS = (
    "data.js",
    "words.js",
    "plasticity.js",
    "layer_types.js",
    "architecture.js",
    "estimates.js",
    "colours.js",
    "filters.js",
    "glossary.js",
    "images.js",
    "baselines.js",
    "roles.js",
    "map.js",
    "charts.js",
    "profile.js",
    "attention.js",
    "role_card.js",
    "drift_card.js",
    "cards.js",
    "heads_table.js",
    "head_panel.js",
    "runs_panel.js",
    "key_heads.js",
    "fidelity.js",
    "downloads.js",
    "address.js",
    "print.js",
    "main.js",
)
_FOLDER = files("attention_plasticity.page")
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
        "words": _words(),
        "groups": list(shown_groups()),
        "kinds": kinds(),
        "fewest_texts": FEWEST_TEXTS,
        "roles": role_words(),
        "drift": drift_words(),
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
        "script": "\n".join((parts_folder / name).read_text(encoding="utf-8") for name in _SCRIPTS),
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


def _words() -> dict[str, dict[str, Any]]:
    """The metrics of the table of heads and the role, as the page shows them."""
    shown = [metric for metric in METRICS.values() if metric.group]
    shown += [metric for metric in ROLES.columns if metric.column == "role"]
    return {
        metric.column: {
            "label": metric.label,
            "meaning": metric.meaning,
            "signed": metric.signed,
            "share": metric.format == "share",
            "decimals": metric.decimals,
            "optional": metric.optional,
            "error_of": metric.error_of,
        }
        for metric in shown
    }


def _block(name: str, content: bytes) -> str:
    text = base64.b64encode(content).decode("ascii")
    return f'<script type="text/plain" id="{name}">{text}</script>'
