"""Hooks of mkdocs: files outside docs/ that the site uses, and tables of settings.

Links in the Markdown files are relative to the repository. In the site the folder docs/ is the
root, so `docs/` and `../` are removed from links. A line `<!-- settings of package.Class -->` is
replaced by a table of the fields of that class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CITATION.cff"),
    *("examples/first_study.ipynb", "results/smollm2-135m/README.md"),
    *("results/study-rope-scaling/README.md", "findings/eviction/README.md"),
    *("results/smollm2-135m/figures/*.png", "results/study-rope-scaling/figures/*.png"),
)


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/."""
    for path in (path for pattern in OUTSIDE for path in sorted(ROOT.glob(pattern))):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links relative to the page's place in the site, and fill in tables of settings."""
    if page.file.src_uri in OUTSIDE:
        return re.sub(r"(\]\((?:\.\./)*)docs/", r"\1", markdown)
    if "/" in page.file.src_uri:
        return re.sub(r"<!-- settings of (\w+)\.(\w+) -->", _settings_table, markdown)
    return markdown.replace("](../", "](")


def _settings_table(match: re.Match[str]) -> str:
    model = getattr(import_module(match[1]), match[2])
    return "\n".join(["| field | default | meaning |", "|---|---|---|", *_settings_rows(model)])


def _settings_rows(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        section = _section(field)
        if section is not None:
            yield from _settings_rows(section, f"{prefix}{name}.")
            continue
        default = "required" if field.is_required() else f"`{json.dumps(field.default)}`"
        meaning = escape(field.description or "")
        yield f"| `{prefix}{name}` | {default} | {meaning} |"


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kinds = (field.annotation, *get_args(field.annotation))
    models = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return next(models, None)
